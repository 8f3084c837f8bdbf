"""The fast path never says anything that the careful one would not."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from laminabench.traces.formats import delimited, jsonlines
from laminabench.traces.formats.layout import FORMATS, choose
from laminabench.traces.formats.reading import Reading, Requests
from laminabench.traces.formats.source import Source
from laminabench.traces.formats.wording import BadValueError, Doubtful
from laminabench.util.errors import UserError

Way = Callable[[], Requests]
checked = settings(max_examples=80)

tokens = st.integers(1, 1 << 24)
tails = st.integers(0, 999_999_999).map(lambda n: f".{n:09}"[: n % 10 + 1].rstrip("."))
clocks = st.tuples(st.datetimes(), tails).map(lambda t: f"20{t[0]:%y-%m-%d %H:%M:%S}{t[1]}")
numbers = st.one_of(
    st.integers(-(10**18), 10**18).map(str),
    st.floats(-1e12, 1e12).map(repr),
    st.tuples(st.integers(0, 1 << 33), tails).map(lambda t: f"{t[0]}{t[1]}"),
)
arrivals = st.one_of(
    st.lists(numbers, min_size=1, max_size=8),
    st.lists(clocks, min_size=1, max_size=8),
    st.lists(clocks.map(lambda c: f"{c}+02:00"), min_size=1, max_size=8),
)
units = st.sampled_from(["s", "ms", "us", "ns"])


def columns_of(result: Requests) -> list[object]:
    blocks = () if result.blocks is None else (result.blocks.offsets, result.blocks.ids)
    return [result.arrival_s, result.prompt_tokens, result.output_tokens, result.session, *blocks]


def paths(source: Source, unit: str) -> tuple[Way, Way]:
    """The fast and the careful way to read this file."""
    if source.head.lstrip().startswith(b"{"):
        reading = Reading(source, FORMATS["jsonl"], {}, unit, False, None)
        columns = choose(reading.layout, jsonlines.keys_of(source), {}, "trace")
        first = next(record for record in jsonlines.records(source) if not record.problem)
        return partial(jsonlines.fast, reading, columns, first), partial(jsonlines.careful, reading, columns)
    reading = Reading(source, FORMATS["csv"], {}, unit, False, None)
    header = delimited.header_of(source)
    columns = choose(reading.layout, header.names, {}, "trace")
    return partial(delimited.fast, reading, header, columns), partial(
        delimited.careful, reading, header, columns
    )


def both(content: str, unit: str, *, valid: bool) -> None:
    """The fast path reads every valid file; others it may refuse, but not read unlike the careful one."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "trace")
        path.write_text(content, newline="")
        try:
            fast, careful = paths(Source.of(path), unit)
            quick = fast()
        except (UserError, StopIteration, Doubtful, BadValueError, pa.ArrowException):
            assert not valid
            return
        for ours, theirs in zip(columns_of(quick), columns_of(careful()), strict=True):
            np.testing.assert_array_equal(ours, theirs)


@checked
@given(arrivals, units, st.data())
def test_tables(times, unit, data):
    sessions = st.sampled_from(["", "a", "b", "7"])
    counts = [f"{data.draw(tokens)},{data.draw(st.integers(0, 99))},{data.draw(sessions)}" for _ in times]
    rows = [f"{time},{count}" for time, count in zip(times, counts, strict=True)]
    both("\n".join(["arrival_s,prompt_tokens,output_tokens,session", *rows]), unit, valid=True)


@checked
@given(st.lists(st.integers(-(1 << 40), 1 << 40) | clocks, min_size=1, max_size=8), units, st.data())
def test_json(times, unit, data):
    kind = type(times[0])
    rows = [
        {
            "timestamp": time,
            "prompt_tokens": data.draw(tokens),
            "output_tokens": data.draw(st.integers(0, 99)),
            "session": data.draw(st.sampled_from([None, 3, 5] if kind is int else [None, "3", "x"])),
            "hash_ids": data.draw(st.lists(st.integers(0, (1 << 63) - 1), max_size=3)),
        }
        for time in times
        if isinstance(time, kind)
    ]
    rows[0]["session"] = rows[0]["session"] or (3 if kind is int else "x")
    both("\n".join(map(json.dumps, rows)), unit, valid=True)


edits = st.lists(
    st.tuples(st.integers(0, 200), st.sampled_from([*'0159-+.eE"\n\r ,;:{}[]xX\t', "", "nan", "null"])),
    min_size=1,
    max_size=4,
)


def edited(text: str, changes: list[tuple[int, str]], *, fixed: int) -> str:
    for where, what in changes:
        place = fixed + where % (len(text) - fixed)
        text = text[:place] + what + text[place + (where % 2) :]
    return text


@settings(max_examples=200)
@given(edits, st.sampled_from(["2023-11-16 18:15:46.5", "2023-11-16 18:15:46+00:00", "12", "3.25"]))
def test_edited_tables(changes, time):
    header = "arrival_s,prompt_tokens,output_tokens\n"
    text = header + f"{time},374,44\n" * 3
    both(edited(text, changes, fixed=len(header)), "s", valid=False)


@settings(max_examples=200)
@given(edits)
def test_edited_json(changes):
    row = '{"timestamp": 12, "prompt_tokens": 374, "output_tokens": 44, "hash_ids": [1, 2]}\n'
    both(edited(row * 3, changes, fixed=1), "ms", valid=False)
