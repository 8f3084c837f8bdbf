"""Replay of one decoder layer of a board, block by block, through TLBs and DRAMs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Literal, NamedTuple

from laminabench import _sim
from laminabench.catalog.entries import packaged
from laminabench.catalog.models import ModelShape
from laminabench.systems.modelled.h2m2.boards import NS, Board
from laminabench.systems.modelled.h2m2.mapping import Mapping
from laminabench.systems.modelled.h2m2.timing import shape_of

Side = Literal["hbm", "lpddr"]
SIDES: tuple[Side, ...] = ("hbm", "lpddr")
DRAMS: dict[Side, str] = {"hbm": "hbm3", "lpddr": "lpddr5x"}  # of the catalogue


class DramTiming(NamedTuple):
    """A timing of a DRAM, in nanoseconds or bytes, and where it is from."""

    value: float
    kind: Literal["data sheet", "simulator", "assumed"]
    source: str


class DramKind(NamedTuple):
    """A DRAM's timings by the names of the C++ code."""

    title: str
    timings: dict[str, DramTiming]

    def native(self) -> dict[str, float]:
        return {name: timing.value for name, timing in self.timings.items()}


@cache
def load_drams() -> dict[str, DramKind]:
    """Return the catalogue's DRAMs by their names."""
    return {
        name: DramKind(row.pop("title"), {key: DramTiming(**value) for key, value in row.items()})
        for name, row in packaged("drams.toml").items()
    }


class Reading(NamedTuple):
    """Assumptions about how a layer is read, where the paper says nothing."""

    packed: bool = True  # a tile's weights lie together; else as in a matrix stored by columns
    in_turn: bool = False  # cores take tiles and requests in turn; else those that follow each other
    translated: bool = True  # TLB misses cost time
    computed: bool = True  # computing does


AS_ASSUMED = Reading()


@dataclass(frozen=True, slots=True)
class KernelReplay:
    """The replay of one kernel on one side."""

    kernel: str
    seconds: float
    closed_s: float  # by the closed formula
    bytes: int
    closed_bytes: float
    misses: int  # of the TLB
    bursts: int
    hits: int  # banks that had the row open
    opened: int  # that had none
    conflicts: int  # that had another
    refreshes: int


@dataclass(frozen=True, slots=True)
class SideReplay:
    """A layer at one side."""

    kernels: tuple[KernelReplay, ...]

    @property
    def seconds(self) -> float:
        return sum(each.seconds for each in self.kernels)

    @property
    def closed_s(self) -> float:
        return sum(each.closed_s for each in self.kernels)

    @property
    def bytes(self) -> int:
        return sum(each.bytes for each in self.kernels)

    @property
    def misses(self) -> int:
        return sum(each.misses for each in self.kernels)

    def by_sublayer(self, *, closed: bool = False) -> dict[str, float]:
        """Return the seconds of the three parts between two barriers."""
        parts = dict.fromkeys(("qkv", "attention", "fc"), 0.0)
        for each in self.kernels:
            name = each.kernel if each.kernel in parts else "fc"
            parts[name] += each.closed_s if closed else each.seconds
        return parts


def replay_side(
    board: Board,
    model: ModelShape,
    mapping: Mapping,
    lengths: Sequence[int],
    side: Side,
    reading: Reading = AS_ASSUMED,
    *,
    chips: int | None = None,
    dram: dict[str, float] | None = None,
) -> SideReplay:
    """Replay the kernels of a middle layer on one side; `dram` replaces the catalogue's."""
    memory = board.hbm if side == "hbm" else board.lpddr
    kernels = _sim.h2m2_replay_layer(
        board=board.native(),
        shape=shape_of(model),
        mapping=mapping,
        lengths=list(lengths),
        side=side,
        chips=chips or memory.chips,
        dram=dram or load_drams()[DRAMS[side]].native(),
        **reading._asdict(),
    )
    return SideReplay(
        tuple(
            KernelReplay(seconds=each.pop("ns") * NS, closed_s=each.pop("closed_ns") * NS, **each)
            for each in kernels
        )
    )


@dataclass(frozen=True, slots=True)
class LayerReplay:
    """A layer on both sides: at each barrier the faster one waits."""

    by_side: dict[Side, SideReplay]
    overhead_s: float  # exchange between the sides, launches and barriers: not replayed

    def seconds(self, *, closed: bool = False) -> float:
        parts = [side.by_sublayer(closed=closed) for side in self.by_side.values()]
        return self.overhead_s + sum(max(part[name] for part in parts) for name in parts[0])


def efficiency(board: Board, side: Side, replayed: SideReplay) -> float:
    """Return the share of peak bandwidth of a replay without computing and TLB misses."""
    memory = board.hbm if side == "hbm" else board.lpddr
    return replayed.bytes / replayed.seconds / memory.bandwidth_bytes_per_s
