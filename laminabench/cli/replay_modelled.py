"""`laminabench replay --backend modelled`: the flags as a virtual cluster, and what it says."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from laminabench.cli.hardware import priced_devices
from laminabench.cli.output import Output
from laminabench.errors import UserError

if TYPE_CHECKING:
    from laminabench.replay import Replayed, Workload
    from laminabench.runs.manifest import Backend, Partial
    from laminabench.systems.setup import Setup
    from laminabench.traces.table import Trace

MODEL = "llama3-70b"


class ModelledReplay:
    """On hardware that need not be there."""

    name: Backend = "modelled"
    partial: Partial | None = None
    beside: Mapping[str, bytes] = {}

    def __init__(self, flags: dict[str, Any], given: set[str], out: Output, _: int) -> None:
        from laminabench.catalog.cost_file import load_costs
        from laminabench.catalog.deployment import parse_deployment
        from laminabench.catalog.find_model import modelled
        from laminabench.catalog.network import parse_network
        from laminabench.systems.other_boards import at_own_price
        from laminabench.systems.registry import system
        from laminabench.systems.setup import Setup

        for flag in ("prefill", "chaos", "ray", "dtype"):
            if flag in given:
                raise UserError(
                    "replay-flag-unused", f"--{flag} is about workers that run; it goes with --backend live"
                )
        if "oversubscribe" in given:
            raise UserError(
                "replay-flag-unused",
                "--oversubscribe is about this machine's cores; it goes with --backend live",
            )
        if flags["batches"] == "auto":
            raise UserError(
                "replay-flag-unused",
                "--batches auto goes with --backend live; give a modelled replay a number",
            )
        self.flags, self.out = flags, out
        flags["model_name"] = flags["model_name"] or MODEL
        shape = modelled(flags["model_name"])
        found = system(flags["system_name"])
        flags["deployment"] = flags["deployment"] or found.default_deployment(shape)
        flags["network_name"] = flags["network_name"] or found.NETWORK
        deployment = parse_deployment(
            flags["deployment"], priced_devices(flags["prices"], self.price_basis(), flags["powers"])
        )
        chosen = Setup(
            model=shape,
            deployment=deployment,
            costs=load_costs(flags["costs_name"]),
            network=parse_network(flags["network_name"]),
            batches=flags["batches"],
            pipelining=flags["pipelining"],
            overlap=flags["overlap"],
            partition=flags["partition"],
            stream_chunks=flags["stream_chunks"],
            overcommit=flags["kv_overcommit"],
            pipeline_parallel=flags["pipeline_parallel"],
            stream_along=flags["stream_along"],
            host_async=flags["host_async"],
            admission=flags["admission"],
            prefix_sharing=flags["prefix_sharing"],
            max_num_seqs=flags["max_num_seqs"],
            block_tokens=flags["block_size"],
            memory_utilization=flags["gpu_memory_utilization"],
            kv_capacity=flags["kv_tokens"],
            mapping=flags["mapping"],
            board=flags["board"],
        )
        # Some mappings and boards ask for other hardware than what the catalogue has a price of.
        self.setup = at_own_price(chosen)
        for note in (_unpriced(self.setup), self.setup.deployment.price_note):
            if note:
                out.note(note)

    def price_basis(self) -> str | None:
        """v1's cheap devices are not for rent: its systems are compared by what they cost to buy."""
        chosen: str | None = self.flags["price_basis"]
        return chosen or ("purchase" if self.flags["system_name"] == "lamina-v1" else None)

    def replay(self, trace: Trace, offered: Workload) -> None:
        if self.flags["prefix_sharing"] and trace.prefix_blocks is None:
            self.out.note(f"{trace.meta.name} does not say which prompts share a prefix: nothing is shared")
        self.replayed = self._replay(trace, offered, (0.0, 0.0))

    def _replay(self, trace: Trace, offered: Workload, record_s: tuple[float, float]) -> Replayed:
        from laminabench.replay import replay as run_replay

        with self.out.progress("replaying", unit="requests") as progress:
            return run_replay(
                trace,
                self.flags["system_name"],
                self.setup,
                offered,
                record_s=record_s,
                progress=lambda done: progress(done, len(trace)),
            )

    def timeline(self, trace: Trace, offered: Workload) -> dict[str, Any]:
        """Replay once more, keeping every piece of work of one window."""
        from laminabench.sim.timeline import bubbles, lanes_of, two_iterations, write_timeline

        outcome = self.replayed.outcome
        first, last = self.flags["timeline_window"] or two_iterations(outcome)
        first, last = min(first, outcome.end_s), min(last, outcome.end_s)
        again = self._replay(trace, offered, (first, last))
        lanes = lanes_of(again.outcome, again.modelled.spec)
        write_timeline(self.flags["timeline"], again.outcome, lanes)
        return {"window_s": [first, last], "bubbles": bubbles(again.outcome, lanes)}

    @property
    def facts(self) -> dict[str, Any]:
        return self.replayed.modelled.facts

    @property
    def coefficients(self) -> list[dict[str, Any]]:
        return self.replayed.modelled.coefficients

    def more(self) -> dict[str, Any]:
        """Fields of the result that only this backend has."""
        return {"costs_set": self.setup.costs.name, "simulation_s": self.replayed.simulation_s}

    def disturbed(self) -> dict[str, Any]:
        """What a picture over time marks: nothing happens to a virtual cluster."""
        return {}

    def require_sound(self) -> None:
        """Tests hold the simulator to its schedule; a replay does not check it again."""


def _unpriced(setup: Setup) -> str:
    """That the catalogue's price and watts are left out, and how to give some; empty if all are given."""
    from laminabench.systems.other_boards import other_board

    found, device = other_board(setup), setup.deployment.model.device.name
    known = (("price", "USD", setup.deployment.usd_per_hour), ("power", "WATTS", setup.deployment.power_w))
    missing = [(name, f"--{name} {device}={unit}") for name, unit, value in known if value is None]
    if found is None or not missing:
        return ""
    names, flags = (" and ".join(words) for words in zip(*missing, strict=True))
    return (
        f"no {names} of these boards is known, as they are other hardware than {device}: "
        f"{found}; {flags} would say it"
    )
