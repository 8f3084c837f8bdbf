"""`laminabench replay --system openai`: the flags as a server somewhere, and what a client saw of it."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from laminabench.cli.ending import Interrupted
from laminabench.cli.endpoint_extra import needed
from laminabench.cli.hardware import priced_devices
from laminabench.cli.output import Output
from laminabench.cli.replay_endpoint_key import fields_of
from laminabench.cli.replay_endpoint_options import FLAGS, SYSTEM, without_value
from laminabench.errors import CheckFailedError, UserError

if TYPE_CHECKING:
    from laminabench.replay import Workload
    from laminabench.replay_endpoint import ReplayedEndpoint
    from laminabench.runs.manifest import Backend, Partial
    from laminabench.systems.endpoint.setup import EndpointSetup
    from laminabench.traces.table import Trace

# Flags that are not of this system alone, and mean the same here.
_SHARED = {
    *("trace", "system_name", "deployment", "model_name", "backend", "mode", "concurrency", "slo_tbt_ms"),
    *("policy", "resume", "prices", "powers", "price_basis", "directory", "no_out", "plot"),
}


class EndpointReplay:
    """Over HTTP, seen from outside."""

    name: Backend = "live"
    coefficients: tuple[dict[str, Any], ...] = ()
    partial: Partial | None = None
    beside: Mapping[str, bytes] = MappingProxyType({})

    def __init__(self, flags: dict[str, Any], given: set[str], out: Output, seed: int) -> None:
        self.flags, self.out, self.seed = flags, out, seed
        self._refuse(given)
        with needed():
            self.setup = self._setup()
        # From here on the flags are those in force, as a Run keeps them.
        flags |= {name: None for name in flags if name not in _SHARED and name not in FLAGS}
        flags |= self._in_force()

    def _refuse(self, given: set[str]) -> None:
        """Flags that say how an engine of ours, or a modelled one, is made."""
        from laminabench.cli.replay_flags import spelled

        for name in sorted(given & set(self.flags) - _SHARED - set(FLAGS)):
            seen = name in ("timeline", "timeline_window")
            why = "of the server's workers nothing is seen" if seen else "the server has been started already"
            raise UserError("replay-flag-unused", f"{spelled(name)} is not for --system {SYSTEM}: {why}")
        if self.flags["policy"] != "fifo":
            raise UserError(
                "replay-flag-unused",
                f"--policy is not for --system {SYSTEM}: the server decides who goes first",
            )
        for name in ("url", "model_name"):
            if not self.flags[name]:
                what = "--url http://127.0.0.1:8000" if name == "url" else "--model, as the server calls it"
                raise UserError("replay-flag-needed", f"--system {SYSTEM} needs {what}")
        if self.flags["connections"] and self.flags["mode"] != "saturate":
            why = {
                "open": "an open replay has as many connections as its arrivals need",
                "closed": "--concurrency says how many are in flight",
            }[self.flags["mode"]]
            raise UserError("replay-flag-unused", f"--connections is for --mode saturate: {why}")
        if self.flags["deployment"] is None and any(
            self.flags[name] for name in ("prices", "powers", "price_basis")
        ):
            flag = "--power" if self.flags["powers"] else "--price"
            raise UserError(
                "replay-flag-needed",
                f"{flag}: give --deployment too, such as 4xh100, to say what hardware is behind the URL",
            )

    def _setup(self) -> EndpointSetup:
        from laminabench.catalog.deployment import parse_deployment
        from laminabench.systems.endpoint import setup
        from laminabench.systems.endpoint.address import parse_url

        flags = self.flags
        address, fields = parse_url(flags["url"]), fields_of(flags["headers"] or (), flags["api_key_file"])
        if fields and not address.secure and not address.loopback:
            self.out.note(
                f"{address} is not encrypted: whoever is on the way can read the key and the headers"
            )
        devices = priced_devices(flags["prices"], flags["price_basis"], flags["powers"])
        hardware = parse_deployment(flags["deployment"], devices) if flags["deployment"] else None
        return setup.EndpointSetup(
            deployment=setup.Behind(address, hardware),
            model=setup.Served(flags["model_name"]),
            api=flags["api"] or "completions",
            fields=fields,
            tokenizer=flags["tokenizer"],
            vocab=flags["vocab"],
            timeout_s=flags["timeout_s"] or setup.TIMEOUT_S,
            first_byte_timeout_s=flags["first_byte_timeout_s"] or setup.FIRST_BYTE_TIMEOUT_S,
            retries=setup.RETRIES if flags["retries"] is None else flags["retries"],
            warm_up=setup.WARM_UP if flags["warm_up"] is None else flags["warm_up"],
            connections=flags["connections"],
            workers=flags["client_workers"] or 1,
        )

    def _in_force(self) -> dict[str, Any]:
        setup = self.setup
        return {
            "url": str(setup.address),
            "api": setup.api,
            "headers": [without_value(header) for header in self.flags["headers"] or ()],
            "timeout_s": setup.timeout_s,
            "first_byte_timeout_s": setup.first_byte_timeout_s,
            "retries": setup.retries,
            "warm_up": setup.warm_up,
            "client_workers": setup.workers,
        }

    def replay(self, trace: Trace, offered: Workload) -> None:
        with needed():
            from laminabench.replay_endpoint import replay_endpoint

            with self.out.rates("replaying", "requests", "tokens/s") as progress:
                began = False

                def tell(requests: int, tokens: int) -> None:
                    nonlocal began
                    if not began:
                        self.out.detail("the server has been asked and warmed up: the clock is running")
                    began = True
                    progress(requests, len(trace), tokens)

                self.replayed: ReplayedEndpoint = replay_endpoint(
                    trace, self.setup, offered, seed=self.seed, tell=tell
                )
        self.partial = self.replayed.partial
        for sentence in self.replayed.notes:
            self.out.note(sentence)

    def timeline(self, trace: Trace, offered: Workload) -> dict[str, Any]:  # noqa: ARG002 - as others
        raise AssertionError("refused with the flags")

    @property
    def facts(self) -> dict[str, Any]:
        return self.replayed.facts

    def more(self) -> dict[str, Any]:
        """Fields of the result that only this backend has."""
        return {}

    def disturbed(self) -> dict[str, Any]:
        """What a picture over time marks."""
        return {}

    def require_sound(self) -> None:
        """All of the trace has been offered, and something came of it."""
        if self.replayed.interrupted:
            raise Interrupted("what had been replayed is above, and is a partial Run")
        if self.partial:
            raise CheckFailedError("replay-ended-early", f"the replay ended early: {self.partial.why}")
        if not self.replayed.summary.requests.completed:
            why, said = next(iter(self.facts["first_errors"].items()), ("nobody knows why", ""))
            raise CheckFailedError(
                "replay-none-completed", f"no request was completed: {why}{f' ({said})' if said else ''}"
            )
