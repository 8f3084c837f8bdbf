"""Damaged files of every format end in a trace or in one sentence that names the file."""

from __future__ import annotations

import functools
import gzip
import json
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from laminabench.traces.formats import load_file
from laminabench.traces.store import save
from laminabench.traces.table import MAX_TOKENS, PrefixBlocks, TraceMeta, make_trace
from laminabench.util.errors import UserError


@functools.cache
def samples() -> dict[str, bytes]:
    rng = np.random.default_rng(0)
    rows = [(i * 37, int(p), int(o)) for i, (p, o) in enumerate(rng.integers(1, 5000, (40, 2)))]
    tables = {
        "azure": ("TIMESTAMP,ContextTokens,GeneratedTokens\r\n", "2023-11-16 18:15:{:02}.6805900,{},{}\r\n"),
        "azure-2024": (
            "TIMESTAMP,ContextTokens,GeneratedTokens\n",
            "2024-05-12 00:00:{:02}.001+00:00,{},{}\n",
        ),
        "burstgpt": (
            "Timestamp,Session ID,Model,Request tokens,Response tokens,Total tokens\n",
            "{}.5,1,GPT-4,{},{},9\n",
        ),
        "vidur": ("arrived_at,num_prefill_tokens,num_decode_tokens\n", "{}.25,{},{}\n"),
        "lengths": (
            "num_prefill_tokens,num_decode_tokens,num_total_tokens,pd_ratio\r\n",
            "{1},{2},9,0.5\r\n",
        ),
        "csv": ("time;session;prompt_tokens;output_tokens\n", '{};"a";{};{}\n'),
    }
    contents = {
        name: header + "".join(row.format(i % 60, p, o) for i, p, o in rows)
        for name, (header, row) in tables.items()
    }
    mooncake = [dict(zip(("timestamp", "input_length", "output_length"), row, strict=True)) for row in rows]
    contents["mooncake"] = "".join(json.dumps(row | {"hash_ids": [1, 2, 3]}) + "\n" for row in mooncake)
    contents["jsonl"] = contents["mooncake"].replace("timestamp", "arrival_s").replace("hash_ids", "blocks")
    turns = [{"from": role, "value": f"hello {role}"} for role in ("human", "gpt", "human", "gpt")]
    contents["sharegpt"] = json.dumps([{"id": str(i), "conversations": turns} for i in range(9)], indent=1)
    encoded = {name: content.encode() for name, content in contents.items()}
    encoded["utf-16"] = contents["vidur"].encode("utf-16")
    encoded["gzip"] = gzip.compress(encoded["vidur"], mtime=0)
    encoded["parquet"] = parquet(rows)
    return encoded


def parquet(rows: list[tuple[int, int, int]]) -> bytes:
    time, prompt, output = np.array(rows).T
    blocks = PrefixBlocks.from_lists([[1, 2]] * len(rows))
    trace = make_trace(
        time.astype(float), prompt, output, TraceMeta("t"), prefix_blocks=blocks, session=np.arange(len(rows))
    )
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "t.parquet")
        save(trace, path)
        return path.read_bytes()


@functools.cache
def tokenizer() -> Path:
    tokenizers = pytest.importorskip("tokenizers")
    words = tokenizers.models.WordLevel({"hello": 0, "[UNK]": 1}, unk_token="[UNK]")
    built = tokenizers.Tokenizer(words)
    built.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    path = Path(tempfile.mkdtemp(), "tokenizer.json")
    built.save(str(path))
    return path


def mutate(data: bytes, draw: st.DrawFn) -> bytes:
    where = draw(st.integers(0, len(data) - 1))
    more = draw(st.integers(0, 60))
    kind = draw(st.sampled_from(["flip", "set", "cut", "insert", "delete", "repeat", "swap"]))
    if kind == "flip":
        return data[:where] + bytes([data[where] ^ (1 << more % 8)]) + data[where + 1 :]
    if kind == "set":
        return data[:where] + draw(st.binary(min_size=1, max_size=4)) + data[where + 1 :]
    if kind == "cut":
        return data[:where]
    if kind == "insert":
        garbage = st.binary(max_size=20) | st.sampled_from(
            [
                b"\0",
                b"\xff\xfe",
                b'"',
                b",",
                b"\n\n",
                b"\r",
                b"null",
                b"NaN",
                b"1e999",
                b"9" * 40,
                b"[" * 3000,
            ]
        )
        return data[:where] + draw(garbage) + data[where:]
    if kind == "delete":
        return data[:where] + data[where + more :]
    if kind == "repeat":
        return data[: where + more] + data[where:]
    middle = where + more
    return data[:where] + data[middle : middle + more] + data[where:middle] + data[middle + more :]


@pytest.mark.parametrize("name", sorted(samples()))
@settings(max_examples=60)
@given(data=st.data())
def test_damage(name, data):
    content = samples()[name]
    for _ in range(data.draw(st.integers(1, 3))):
        if content:
            content = data.draw(st.composite(lambda draw, c=content: mutate(c, draw))())
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "damaged.trace")
        path.write_bytes(content)
        try:
            trace = load_file(path, skip_bad=data.draw(st.booleans()), tokenizer=tokenizer())
        except UserError as error:
            message = str(error)
            assert "damaged.trace" in message
            assert len(message) < 300
            assert len(message.splitlines()) == 1
        else:
            assert len(trace) > 0
            assert np.isfinite(trace.arrival_s).all()
            assert trace.arrival_s[0] == 0
            assert (np.diff(trace.arrival_s) >= 0).all()
            assert trace.prompt_tokens.min() >= 1
            assert trace.output_tokens.min() >= 1
            assert max(trace.prompt_tokens.max(), trace.output_tokens.max()) <= MAX_TOKENS
