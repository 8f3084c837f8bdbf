"""One layer of each model read block by block, and by the closed formulas that all other figures rest on."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cache
from typing import NamedTuple

import pandas as pd

from laminabench.catalog.find_model import model
from laminabench.papers.context import Context
from laminabench.papers.h2m2.boards import BoardChanges
from laminabench.papers.h2m2.overheads import overheads
from laminabench.papers.h2m2.speeds import (
    CASES,
    GPT3,
    H2M2,
    LLAMA,
    LPDDR_ONLY,
    OF_GQA,
    OF_TRANSLATION,
    Case,
    how,
    lengths_text,
    original,
    plan_of,
    points_of,
)
from laminabench.papers.paper import Result
from laminabench.systems.modelled.h2m2.layer import (
    AS_ASSUMED,
    DRAMS,
    SIDES,
    LayerReplay,
    Reading,
    Side,
    SideReplay,
    efficiency,
    load_drams,
    replay_side,
)
from laminabench.systems.modelled.h2m2.mapping import Mapping


@dataclass(frozen=True, slots=True)
class Other:
    """An assumption made differently."""

    words: str
    reading: Reading = AS_ASSUMED
    queue: int | None = None  # bursts that a channel sees ahead
    board: BoardChanges = field(default_factory=BoardChanges)

    def dram(self, side: Side) -> dict[str, float]:
        native = load_drams()[DRAMS[side]].native()
        return native if self.queue is None else native | {"queue": self.queue}


ASSUMED = Other("as assumed")
_TURNS, _DEEP = Reading(in_turn=True), 256
IN_TURN = Other("cores take tiles in turn", _TURNS)
DEEP = Other(f"channels see {_DEEP} bursts ahead", queue=_DEEP)
BOTH = Other("both", _TURNS, _DEEP)
BEHIND = Other("weights behind the last tile", board={"weight_load": "behind"})
ONE_WALK = Other("one page-table walk at a time", board={"tlb_misses_at_once": 1})
OTHERS = (IN_TURN, DEEP, BOTH, BEHIND, ONE_WALK)
UNPACKED = Other("tiles not packed", Reading(packed=False))
ONCE = Other("KV read once for a group", board={"reread_kv": False})
_BY_WORDS = {each.words: each for each in (ASSUMED, *OTHERS, UNPACKED, ONCE)}
# Where all three models are averaged: other assumptions are tried here alone.
LENGTH = 1024


class Replayed(NamedTuple):
    """A layer at one point: with all, without TLB misses, and the memories alone."""

    layer: LayerReplay
    untranslated: LayerReplay
    memory: LayerReplay
    baseline_s: float  # a layer on LPDDR alone

    @property
    def translation_percent(self) -> float:
        return 100 * (self.layer.seconds() / self.untranslated.seconds() - 1)

    @property
    def closed_translation_percent(self) -> float:
        return 100 * (self.layer.seconds(closed=True) / self.untranslated.seconds(closed=True) - 1)

    @property
    def off_percent(self) -> float:
        """Return the replay over the closed formulas."""
        return 100 * (self.layer.seconds() / self.layer.seconds(closed=True) - 1)

    @property
    def speed_up(self) -> float:
        return self.baseline_s / self.layer.seconds()


@cache
def replayed(model_name: str, point: tuple[int, int], words: str = ASSUMED.words) -> Replayed:
    """Replay with the mapping that H2M2 finds, and LPDDR alone read in the same way."""
    other = _BY_WORDS[words]
    board, shape = replace(original(), **other.board), model(model_name)
    planned = plan_of(H2M2, model_name, point, board)
    alone = plan_of(LPDDR_ONLY, model_name, point, board)
    lengths = [point[1]] * point[0]

    def side(where: Side, mapping: Mapping, *, chips: int | None = None, **differs: bool) -> SideReplay:
        reading = other.reading._replace(**differs)
        return replay_side(
            board, shape, mapping, lengths, where, reading, chips=chips, dram=other.dram(where)
        )

    def layer(**differs: bool) -> LayerReplay:
        overhead_s = planned.exchange_s + planned.launch_s
        return LayerReplay({where: side(where, planned.mapping, **differs) for where in SIDES}, overhead_s)

    both_chips = board.hbm.chips + board.lpddr.chips
    baseline = side("lpddr", Mapping(0, 0, 0), chips=both_chips, translated=False)
    return Replayed(
        layer(),
        layer(translated=False),
        layer(translated=False, computed=False),
        baseline.seconds + alone.launch_s,
    )


def layer(context: Context) -> Result:
    """Replay every point of figures 12, 13 and 15 as assumed; at one length also with other assumptions."""
    frame = pd.DataFrame(_rows())
    usual, both = (frame[frame["assumed"] == words] for words in (ASSUMED.words, BOTH.words))
    hbm = load_drams()[DRAMS["hbm"]].timings
    block = hbm["row_bytes"].value * hbm["groups"].value
    values = {
        "source": _source(),
        "fitted": f"{original().dram_efficiency:g}",
        "at_once": original().tlb_misses_at_once,
        "models": {case.words: _model(case, frame) for case in CASES},
        "titles": {side: load_drams()[DRAMS[side]].title for side in SIDES},
        "efficiency": {side: usual[f"{side}_efficiency"] for side in SIDES},
        "both": {
            side: (both[f"{side}_efficiency"].min(), both[f"{side}_efficiency"].max()) for side in SIDES
        },
        # Of HBM's channels, those that K of Llama2-70B's shortest requests lies in.
        "shortest": min(LLAMA.lengths),
        "few": min(LLAMA.lengths) * model(LLAMA.model).head_dim / block,
        "channels": hbm["channels"].value,
    }
    return Result(frame, values)


def _source() -> str:
    timings = [timing for each in load_drams().values() for timing in each.timings.values()]
    assumed = sum(timing.kind == "assumed" for timing in timings)
    return (
        f"{how(lengths_text(*CASES), also=(OF_GQA, OF_TRANSLATION))}; replayed: {len(timings)} timings and "
        f"sizes of HBM3 and LPDDR5X from data sheets and simulators' configurations, {assumed} of them "
        "assumed, none fitted; assumed: tiles lie packed, each core reads those that follow each other, K of "
        "a page before V, channels serve in order and are not hashed, all banks refresh at once"
    )


def _rows() -> Iterator[dict[str, object]]:
    for case in CASES:
        for point in points_of(case):
            yield _row(case, point, ASSUMED)
        for other in OTHERS:
            yield _row(case, (case.batch, LENGTH), other)
    yield _row(GPT3, (GPT3.batch, LENGTH), UNPACKED)
    yield _row(LLAMA, (LLAMA.batch, LENGTH), ONCE)


def _row(case: Case, point: tuple[int, int], other: Other) -> dict[str, object]:
    point_replay = replayed(case.model, point, other.words)
    board = original()
    times: dict[str, object] = {
        "replayed_ms": 1000 * point_replay.layer.seconds(),
        "closed_ms": 1000 * point_replay.layer.seconds(closed=True),
        "off_percent": point_replay.off_percent,
    }
    for side in SIDES:
        there = point_replay.layer.by_side[side]
        times[f"{side}_ms"] = 1000 * there.seconds
        times[f"{side}_closed_ms"] = 1000 * there.closed_s
        times[f"{side}_efficiency"] = efficiency(board, side, point_replay.memory.by_side[side])
        times[f"{side}_misses"] = there.misses
    return {
        "model": case.words,
        "length": point[1],
        "assumed": other.words,
        **times,
        "translation_percent": point_replay.translation_percent,
        "closed_translation_percent": point_replay.closed_translation_percent,
        "speed_up": point_replay.speed_up,
    }


def _model(case: Case, frame: pd.DataFrame) -> dict[str, object]:
    """Return what a model's claims have: ratios and overheads in percent, as assumed and otherwise."""
    rows = frame[frame["model"] == case.words]
    usual, others = rows[rows["assumed"] == ASSUMED.words], rows[rows["assumed"] != ASSUMED.words]
    at, here = others.set_index("assumed"), usual.set_index("length").loc[LENGTH]
    translation = usual["translation_percent"]
    return {
        "ratio": 1 + usual["off_percent"] / 100,
        "worst": int(usual.loc[usual["off_percent"].abs().idxmax(), "length"]),
        "ratios": (1 + at["off_percent"] / 100).to_dict(),
        "speed_up": usual["speed_up"].mean(),
        "closed": overheads(case).abstraction,
        "translation": translation.mean(),
        "translations": (translation.min(), translation.max()),
        "here": here.to_dict(),
        "in_turn": at.loc[IN_TURN.words].to_dict(),
        "one_walk": at.loc[ONE_WALK.words].to_dict(),
    }
