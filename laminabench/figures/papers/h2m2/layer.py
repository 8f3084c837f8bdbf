"""One layer of each model read block by block, beside the closed formulas that all other figures rest on."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any, NamedTuple

import pandas as pd
from matplotlib.figure import Figure

from laminabench.catalog.find_model import model
from laminabench.figures.claims import Basis, Claim, Section
from laminabench.figures.ground import Ground
from laminabench.figures.paper import Made
from laminabench.figures.papers.h2m2.ground import (
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
from laminabench.figures.papers.h2m2.one_model import PUBLISHED_OF
from laminabench.figures.papers.h2m2.overheads import PUBLISHED as OVERHEADS
from laminabench.figures.papers.h2m2.overheads import overheads
from laminabench.figures.style import sentence, table_picture
from laminabench.systems.modelled.h2m2.drams import load_drams
from laminabench.systems.modelled.h2m2.layer import (
    AS_ASSUMED,
    DRAMS,
    SIDES,
    LayerReplay,
    Reading,
    Side,
    SideReplay,
    efficiency,
    replay_side,
)
from laminabench.systems.modelled.h2m2.mapping import Mapping

# The memories alone, and with what computes on them.
RESTS: tuple[Basis, ...] = ("paper's own numbers", "shape", "data sheet", "assumption")
WITH_FIT: tuple[Basis, ...] = (*RESTS, "fit")


@dataclass(frozen=True, slots=True)
class Other:
    """What is assumed differently."""

    words: str
    reading: Reading = AS_ASSUMED
    queue: int | None = None  # bursts that a channel sees ahead
    board: dict[str, Any] = field(default_factory=dict)

    def dram(self, side: Side) -> dict[str, Any]:
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
        """The replay over the closed formulas."""
        return 100 * (self.layer.seconds() / self.layer.seconds(closed=True) - 1)

    @property
    def speed_up(self) -> float:
        return self.baseline_s / self.layer.seconds()


@cache
def replayed(model_name: str, point: tuple[int, int], words: str = ASSUMED.words) -> Replayed:
    """With the mapping that H2M2 finds, and LPDDR alone read in the same way."""
    other = next(each for each in (ASSUMED, *OTHERS, UNPACKED, ONCE) if each.words == words)
    board, shape = replace(original(), **other.board), model(model_name)
    found = plan_of(H2M2, model_name, point, board)
    alone = plan_of(LPDDR_ONLY, model_name, point, board)
    lengths = [point[1]] * point[0]

    def side(where: Side, mapping: Mapping, *, chips: int | None = None, **differs: bool) -> SideReplay:
        reading = other.reading._replace(**differs)
        return replay_side(
            board, shape, mapping, lengths, where, reading, chips=chips, dram=other.dram(where)
        )

    def layer(**differs: bool) -> LayerReplay:
        besides_s = found.exchange_s + found.launch_s
        return LayerReplay({where: side(where, found.mapping, **differs) for where in SIDES}, besides_s)

    both_chips = board.hbm.chips + board.lpddr.chips
    baseline = side("lpddr", Mapping(0, 0, 0), chips=both_chips, translated=False)
    return Replayed(
        layer(),
        layer(translated=False),
        layer(translated=False, computed=False),
        baseline.seconds + alone.launch_s,
    )


def layer(ground: Ground) -> Made:
    """Every point of figures 12, 13 and 15 as assumed; at one length also with other assumptions."""
    frame = pd.DataFrame(_rows())
    source = _source()
    claims = [claim for case in CASES for claim in _claims(case, frame, source)]
    words = (
        f"{sentence(source)}. Each row is a middle layer with H2M2's mapping: milliseconds replayed and by "
        "the closed formulas (cf), the memories' share of their peak bandwidth when nothing else takes time "
        f"(a fitted {original().dram_efficiency:g} in the closed formulas), and what TLB misses add. Other "
        f"assumptions at {LENGTH} tokens"
    )
    return Made(frame, [*claims, *_of_the_memories(frame, source)], f"{words}.", _draw)


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
    found = replayed(case.model, point, other.words)
    board = original()
    times: dict[str, object] = {
        "replayed_ms": 1000 * found.layer.seconds(),
        "closed_ms": 1000 * found.layer.seconds(closed=True),
        "off_percent": found.off_percent,
    }
    for side in SIDES:
        there = found.layer.sides[side]
        times[f"{side}_ms"] = 1000 * there.seconds
        times[f"{side}_closed_ms"] = 1000 * there.closed_s
        times[f"{side}_efficiency"] = efficiency(board, side, found.memory.sides[side])
        times[f"{side}_misses"] = there.misses
    return {
        "model": case.words,
        "length": point[1],
        "assumed": other.words,
        **times,
        "translation_percent": found.translation_percent,
        "closed_translation_percent": found.closed_translation_percent,
        "speed_up": found.speed_up,
    }


def _claims(case: Case, frame: pd.DataFrame, source: str) -> list[Claim]:
    mine = frame[frame["model"] == case.words]
    usual, others = mine[mine["assumed"] == ASSUMED.words], mine[mine["assumed"] != ASSUMED.words]
    at, here = others.set_index("assumed"), usual.set_index("length").loc[LENGTH]
    ratio = 1 + usual["off_percent"] / 100
    worst = int(usual.loc[usual["off_percent"].abs().idxmax(), "length"])
    published, closed = OVERHEADS[case.words].abstraction, overheads(case).abstraction
    translation = usual["translation_percent"]
    says = Section("section 5.1", source, "performance", WITH_FIT)
    stated = PUBLISHED_OF[case.model].h2m2
    return [
        says(
            f"a layer of {case.words}, replayed over closed formulas",
            None,
            ratio,
            "times",
            remark=f"The paper simulates cycle by cycle and prints no times. Furthest off at {worst} tokens. "
            f"At {LENGTH} tokens it is {_ratio(at, IN_TURN)} where cores take tiles in turn, "
            f"{_ratio(at, DEEP)} where channels see {_DEEP} bursts ahead, {_ratio(at, BOTH)} with both."
            f"{_only(case, at)}",
        ),
        says(
            f"H2M2 over LPDDR-only, {case.words}, average: both replayed",
            stated,
            float(usual["speed_up"].mean()),
            "times",
            where=PUBLISHED_OF[case.model].where,
            remark="Without the fitted DRAM efficiency; lengths, weight_load and reread_kv are those "
            "that were fitted to this number with it.",
            fitted=True,
        ),
        says(
            f"{case.words}: abstraction, replayed",
            published,
            float(translation.mean()),
            "%",
            where="table 3",
            remark="A core reads ahead while pages are walked; the closed formulas add every miss, "
            f"{closed:.2f} %. What is left is below what the replay can resolve: misses also change how the "
            f"cores' reads interleave, and single lengths are at {translation.min():+.2f} to "
            f"{translation.max():+.2f} %, {LENGTH} tokens at {_translation(here)} and with cores that take "
            f"tiles in turn at {_translation(at.loc[IN_TURN.words])}.",
            experiment=f"one walk at a time in place of {original().tlb_misses_at_once} turns "
            f"{_translation(here)} at {LENGTH} tokens into {_translation(at.loc[ONE_WALK.words])}, by the "
            f"closed formulas {_translation(here, 'closed_')} into "
            f"{_translation(at.loc[ONE_WALK.words], 'closed_')}.",
        ),
    ]


def _only(case: Case, at: pd.DataFrame) -> str:
    """What was tried for one model alone."""
    if case is GPT3:
        return (
            f" With tiles not packed, each column of 128 bytes opens a row: {_ratio(at, UNPACKED)}. With "
            "the other assumptions as they are, such a layout cannot be the paper's."
        )
    if case is LLAMA:
        hbm = load_drams()[DRAMS["hbm"]].timings
        block = hbm["row_bytes"].value * hbm["groups"].value
        few = min(case.lengths) * model(case.model).head_dim / block
        return (
            " A core reads K and V of a request again for each of eight query heads, and at "
            f"{min(case.lengths)} tokens K lies in {few:.0f} of HBM's {hbm['channels'].value:.0f} channels: "
            f"read once for the group it is {_ratio(at, ONCE)}."
        )
    return ""


def _ratio(table: pd.DataFrame, other: Other) -> str:
    return f"{1 + float(table.loc[other.words, 'off_percent']) / 100:.2f}"


def _translation(row: pd.Series, closed: str = "") -> str:
    return f"{row[f'{closed}translation_percent']:.2f} %"


def _of_the_memories(frame: pd.DataFrame, source: str) -> list[Claim]:
    """The replay's own numbers for a parameter that was fitted."""
    usual, both = (frame[frame["assumed"] == words] for words in (ASSUMED.words, BOTH.words))
    says = Section("section 5.1", source, "performance", RESTS)
    fitted = original().dram_efficiency
    return [
        says(
            f"share of the peak bandwidth, nothing else taking time: {load_drams()[DRAMS[side]].title}",
            None,
            usual[f"{side}_efficiency"],
            remark=f"The closed formulas have {fitted:g}, fitted. With cores in turn and {_DEEP} bursts "
            f"ahead it is {both[f'{side}_efficiency'].min():.2f} to "
            f"{both[f'{side}_efficiency'].max():.2f} at {LENGTH} tokens.",
        )
        for side in SIDES
    ]


_COLUMNS = {
    "model": "model",
    "length": "tokens",
    "assumed": "assumed",
    "hbm_ms": "HBM",
    "hbm_closed_ms": "cf",
    "lpddr_ms": "LPDDR",
    "lpddr_closed_ms": "cf",
    "off_percent": "layer\nover cf",
    "hbm_efficiency": "HBM\nused",
    "lpddr_efficiency": "LPDDR\nused",
    "translation_percent": "TLB",
    "closed_translation_percent": "TLB\ncf",
    "speed_up": "speed-\nup",
}
_FORMATS = {
    "off_percent": "{:+.1f} %",
    "translation_percent": "{:.2f} %",
    "closed_translation_percent": "{:.2f} %",
}


def _draw(frame: pd.DataFrame) -> Figure:
    shown = frame[list(_COLUMNS)].copy()
    for name in shown.select_dtypes("float"):
        shown[name] = shown[name].map(_FORMATS.get(str(name), "{:.2f}").format)
    shown.columns = pd.Index(_COLUMNS.values())
    return table_picture(shown)
