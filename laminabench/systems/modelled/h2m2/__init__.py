"""H2M2 (the third paper): whole models on boards of two memories, heads mapped to either side as KV grows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import ClassVar

from laminabench.catalog.deployment import Deployment, Workers
from laminabench.catalog.hardware import Device
from laminabench.catalog.models import ModelShape
from laminabench.catalog.provenance import host_provenance
from laminabench.requests.replay import taken_by
from laminabench.sim.spec import Spec
from laminabench.systems.modelled.h2m2.boards import Board, board
from laminabench.systems.modelled.h2m2.mapping import flexgen_shares, footprint, uniform
from laminabench.systems.modelled.h2m2.timing import BoardTiming
from laminabench.systems.modelled.setup import MEMORY_SHARE, PREFILL_ROWS, Modelled, Setup, kv_tokens
from laminabench.systems.modelled.system import EVERY, ONE_BATCH, System
from laminabench.util.errors import UserError
from laminabench.util.json import Json, JsonObject

# As in vLLM, because scheduling is vLLM's.
MAX_NUM_SEQS = 1024
MAPPING = "greedy"
WEIGHTS_AND_KV = "int8"
MOST_BOARDS = 64

_CHOICES = {
    "greedy": ("paper", "algorithm 1: attention, then qkv, then fc, each balanced between the sides"),
    "oracle": ("derived", "the best of all mappings by heads, searched exactly; TLB misses left out"),
    "flexgen": (
        "assumed",
        "FlexGen's linear programme, solved once for as many requests as may run, which fill the KV memory",
    ),
    "naive": (
        "paper",
        "section 3: whole sublayers of layers, one side at work at a time, the best such choice",
    ),
    "q-major": ("paper", "section 3: as much of qkv in HBM as fits, then the best mapping of the others"),
    "a-major": (
        "paper",
        "section 3: as much of attention in HBM as fits, then the best mapping of the others",
    ),
    "f-major": ("paper", "section 3: as much of fc in HBM as fits, then the best mapping of the others"),
    "lpddr": ("paper", "section 5: the baseline, all chips at LPDDR and no HBM"),
    "hierarchical": ("paper", "section 5: all chips at HBM, which caches LPDDR"),
    "8-hbm": ("paper", "section 5.5: HBM devices instead of LPDDR, with as many chips"),
}


def build(setup: Setup) -> Modelled:
    """Return the deployment as the simulator takes it."""
    model, workers = setup.model, setup.deployment.model
    on = _board_of(setup)
    most = setup.max_num_seqs or MAX_NUM_SEQS
    timing, room, column = _timing(setup, on, most)
    tokens = kv_tokens(room, 1, setup, f"{workers} ({on.name})", pools=workers.count)
    spec = Spec(
        layers=model.layers,
        timing=timing,
        tokens_per_pool=tokens,
        max_requests=most,
        pipelining="serial",
        admission=setup.admission,
        replica_names=(str(workers) if workers.count == 1 else workers.device.name,),
        shared_devices=True,
        copies=workers.count,
    )
    facts = {
        "board": on.name,
        "boards": workers.count,
        "mapping": timing.mapping,
        "weights_and_kv": WEIGHTS_AND_KV,
        "weight_bytes_per_board": _weight_bytes(model),
        "kv_capacity_tokens": tokens * workers.count,
        "kv_column_tokens": column,
        "translation": timing.translated,
        "hbm_bytes_per_board": on.hbm.capacity_bytes,
        "lpddr_bytes_per_board": on.lpddr.capacity_bytes,
        "admission": spec.admission,
        "host_async": setup.host_async,
        "max_num_seqs": most,
    }
    return Modelled(spec, facts, _coefficients(setup, on, timing))


def _board_of(setup: Setup) -> Board:
    deployment, kind = setup.deployment, setup.deployment.model.device.board
    if deployment.attention is not None:
        raise UserError(
            "deployment-not-for-system",
            f"h2m2 runs whole models on boards, not on {deployment}; write for example 2xh2m2",
        )
    if kind is None:
        raise UserError(
            "deployment-not-for-system",
            f"h2m2 runs on boards with two memories, and {deployment} is none; write for example 1xh2m2",
        )
    return board(setup.board or kind)


def _timing(setup: Setup, on: Board, most: int) -> tuple[BoardTiming, int, int]:
    """Return a board's timing, the KV tokens it has room for, and how many it allocates at once."""
    mapping, host = setup.mapping or MAPPING, setup.costs.host

    def timing(name: str, shares: tuple[float, float] = (0.0, 0.0)) -> BoardTiming:
        return BoardTiming(
            on,
            setup.model,
            name,
            # The oracle is the ideal that the others are compared with.
            translated=name != "oracle",
            shares=shares,
            host_fixed=host.per_step_s,
            host_per_request=host.per_request_s,
            host_async=setup.host_async,
            recompute_per_token=_recompute_seconds(setup.model, on),
        )

    chosen = timing(mapping)
    room, column = chosen.kv_room()
    if room < 1:
        raise UserError(
            "model-does-not-fit",
            f"{setup.model.name} does not fit on board {on.name}: its {_weight_bytes(setup.model) / 1e9:.1f} "
            f"GB of INT8 weights leave {mapping} no room for KV in "
            f"{_room_text(on)}{_at_once(setup.model, column)}; "
            "take a smaller model or a board with more memory",
        )
    if mapping == "flexgen":
        moment = uniform(most, max(1, room // most), on)
        chosen = timing(mapping, flexgen_shares(on, setup.model, moment, lm_head=True))
    return chosen, room, column


def _recompute_seconds(model: ModelShape, on: Board) -> float:
    """Return one token's part of a prefill of so many rows at peak speed: the price of a preempted token."""
    macs = model.weights().matrices + model.vocab * model.hidden
    loading = on.mm_size if on.weight_load == "before" else 0
    arrays = (on.hbm.chips + on.lpddr.chips) * on.cores * on.mm_size**2 * on.clock_hz
    return macs / arrays * (PREFILL_ROWS + loading) / PREFILL_ROWS


def _room_text(on: Board) -> str:
    memories = (on.hbm.capacity_bytes, "HBM"), (on.lpddr.capacity_bytes, "LPDDR")
    return " + ".join(f"{size / 1e9:g} GB {name}" for size, name in memories)


def _at_once(model: ModelShape, column: int) -> str:
    """Return what is too much where some KV fits, but not a page of each layer and KV head."""
    size = footprint(model, column)["attention"]
    return f", as {column} tokens of it come at once and take {size / 1e9:.1f} GB" if column > 1 else ""


def _weight_bytes(model: ModelShape) -> float:
    return sum(footprint(model, 0, lm_head=True).values())


def _coefficients(setup: Setup, on: Board, timing: BoardTiming) -> list[JsonObject]:
    """Return every number that times are computed from: of the board, the policy, and the cost set's host."""
    kind, source = _CHOICES[timing.mapping]
    chosen: dict[str, Json] = {"policy": timing.mapping, "translated": timing.translated}
    if timing.mapping == "flexgen":
        chosen |= {"weights_share": timing.shares[0], "kv_share": timing.shares[1]}
    return [
        *(
            {
                "term": row["name"],
                "device": on.name,
                "kind": row["kind"],
                "source": row["source"],
                "coefficients": {"value": row["value"], "unit": row["unit"]},
            }
            for row in on.assumptions()
        ),
        {"term": "mapping", "device": on.name, "kind": kind, "source": source, "coefficients": chosen},
        host_provenance(setup.costs),
        {
            "term": "recompute",
            "device": on.name,
            "kind": "derived",
            "source": "a step of so many rows at the peak of all arrays, by token; LM head included",
            "coefficients": {"prefill_rows": PREFILL_ROWS, "seconds_per_token": timing.recompute_per_token},
        },
    ]


# Mappings for which the paper puts the chips at other memories than an H2M2 board does.
_BUILDS = {
    "lpddr": "both chips at LPDDR and no HBM",
    "hierarchical": "both chips at HBM",
    "8-hbm": "{devices} HBM devices and no LPDDR",
}


def other_board(setup: Setup) -> str | None:
    """Return what the boards are made of, where that is not what the device is; None if it is."""
    kind = setup.deployment.model.device.board
    if kind is None:
        return None
    on = board(setup.board or kind)
    if setup.mapping in _BUILDS:
        return _BUILDS[setup.mapping].format(devices=on.hbm_devices)
    return None if on.bought_as(board(kind)) else on.title


def at_own_price(setup: Setup) -> Setup:
    """Return the setup without the device's price and watts, where the boards differ; the user's own stay."""
    if other_board(setup) is None:
        return setup
    workers = setup.deployment.model
    varied = Workers(workers.device.varied(), workers.count)
    return replace(setup, deployment=Deployment(varied, setup.deployment.attention))


def unpriced(setup: Setup) -> str:
    """Return a note that the catalogue's price and watts do not apply; empty if all are given."""
    other, device = other_board(setup), setup.deployment.model.device.name
    known = (("price", "USD", setup.deployment.usd_per_hour), ("power", "WATTS", setup.deployment.power_w))
    missing = [(name, f"--{name} {device}={unit}") for name, unit, value in known if value is None]
    if other is None or not missing:
        return ""
    names, flags = (" and ".join(words) for words in zip(*missing, strict=True))
    return (
        f"no {names} of these boards is known, as they are other hardware than {device}: "
        f"{other}; {flags} would say it"
    )


class H2m2(System):
    """The system of boards, each of which serves a full model by itself."""

    NAME = "h2m2"
    COLOUR, MARKER = "#009e73", "diamond"
    TAKES = EVERY | taken_by("h2m2")
    # A board's memories are used whole, as its paper does.
    ANYWAY: ClassVar[Mapping[str, object]] = {**ONE_BATCH, "gpu_memory_utilization": MEMORY_SHARE}
    WHY_NOT = "a board has the whole model, one batch, and KV token by token in pages of its own"
    MAX_REQUESTS = MAX_NUM_SEQS
    TABLES = False

    def default_deployment(self, model: ModelShape) -> str:
        """Return one board, as the paper evaluates: it has room for the largest models."""
        del model
        return "1xh2m2"

    def instances_of(self, deployment: Deployment) -> int:
        """Return the number of boards: every one has a full model."""
        return deployment.model.count

    def _build(self, setup: Setup) -> Modelled:
        return build(setup)

    def settled(self, setup: Setup) -> tuple[Setup, str]:
        """Adjust the price: some mappings and boards need other hardware than the catalogue's."""
        priced = at_own_price(setup)
        return priced, unpriced(priced)

    def runs_on(self, device: Device) -> bool:
        return bool(device.board)

    def deployments(
        self, model: ModelShape, devices: Sequence[Device], *, most_attention: int, replicas: int
    ) -> Iterator[Deployment]:
        """Return boards in any number: each has a full model."""
        del model, most_attention, replicas
        boards = [device for device in devices if self.runs_on(device)]
        return (Deployment(Workers(each, count)) for each in boards for count in range(1, MOST_BOARDS + 1))

    def limits(self, device: Device) -> tuple[int | None, ...]:
        """Return no limits: a board fits many more than it is fast with, so memory does not limit them."""
        del device
        return (16, 32, 64, 128, 256, 512, 1024)


SYSTEM = H2m2()
