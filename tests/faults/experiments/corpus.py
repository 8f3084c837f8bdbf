"""One small file of every kind that is read from users, and mutations that are likely to break parsers."""

from __future__ import annotations

import gzip
import itertools
import json
import random
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa

from experiments.scenarios import HEADER, RECORDS, replayed, write_a_run
from laminabench.catalog.cost_file import load_costs, to_toml, write_costs
from laminabench.catalog.find_model import from_config_json, to_hf_config
from laminabench.catalog.importing import imported as imported_costs
from laminabench.interchange.importing import Given, imported
from laminabench.interchange.tools import read as results_in
from laminabench.requests.replay import of_file
from laminabench.runs.journal import Journal
from laminabench.runs.live import read_live
from laminabench.runs.read import read_run
from laminabench.traces.formats import load_file
from laminabench.traces.profile import named_profile, read_profile, write_profile
from laminabench.traces.store import save
from laminabench.workflows.check.case_file import read_cases
from laminabench.workflows.check.golden import Obtained, golden_path, read_golden, write_golden
from laminabench.workflows.replay.journal import ReplayJournal
from laminabench.workflows.sweep.store import SweepStore
from laminabench.workflows.validate.recording import packaged_recording, read

# Texts that often break parsers.
HURTFUL = (
    *(b"", b"\0", b"\n", b"\r", b'"', b"'", b",", b"[", b"{", b"}", b"]", b"=", b"-", b".", b"e9", b"\xff"),
    *(
        b"null",
        b"true",
        b"nan",
        b"inf",
        b"-inf",
        b"1e999",
        b"-1",
        b"0",
        b"2147483648",
        b"9223372036854775808",
    ),
    *(b"9" * 5000, b"[" * 3000, b"{" * 3000, b'{"a":' * 3000, b"a." * 3000, b"\xef\xbb\xbf", b"\xff\xfe"),
    *(
        b"1979-05-27T07:32:00Z",
        b"99999-99-99",
        b'\\ud800"',
        b"\\x",
        b"0x7f",
        b"\xf0\x9f\x98\x80",
        b"__proto__",
    ),
)


class Sample(NamedTuple):
    content: bytes
    path: Path
    read: Callable[[Path], Any]


def samples(folder: Path) -> Mapping[str, Sample]:
    """Return the samples by name; each is written to its own path and read from there."""
    by_name: dict[str, Sample] = {}

    def add(name: str, content: bytes, called: str, reader: Callable[[Path], Any]) -> None:
        path = folder / name.replace(" ", "-") / called
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        by_name[name] = Sample(content, path, reader)

    trace = replayed()[1].trace
    for suffix in ("parquet", "csv", "jsonl"):
        save(trace, folder / f"t.{suffix}")
        content = (folder / f"t.{suffix}").read_bytes()
        add(suffix, content, f"t.{suffix}", load_file)
        if suffix != "parquet":
            add(f"{suffix} gz", gzip.compress(content, mtime=0), "t.gz", load_file)
            add(f"{suffix} zst", pa.compress(content, "zstd", asbytes=True), "t.zst", load_file)
            skipping = lambda path: load_file(path, skip_bad=True)  # noqa: E731
            add(f"{suffix} without bad rows", content, f"t.{suffix}", skipping)
    add("csv utf-16", by_name["csv"].content.decode().encode("utf-16"), "t.csv", load_file)
    for name, text in _FORMATS.items():
        add(name, text.encode(), "t", load_file)
    write_costs(load_costs("vllm-0.14"), folder / "c.toml")
    add("costs", (folder / "c.toml").read_bytes(), "c.toml", lambda path: load_costs(str(path)))
    write_profile(named_profile("azure-conv"), folder / "p.toml")
    add("profile", (folder / "p.toml").read_bytes(), "p.toml", read_profile)
    add("request", replayed()[0].text().encode(), "r.toml", of_file)
    add("cases", _CASES.encode(), "cases.toml", read_cases)
    add("model", json.dumps(to_hf_config("llama3-70b")).encode(), "config.json", from_config_json)
    packaged_recording("rtx-4090-llama3.1-8b").write(folder / "v.toml")
    add("recording", (folder / "v.toml").read_bytes(), "v.toml", lambda path: read(path).trace())
    _golden(folder)
    golden = golden_path(folder, "case")
    add("golden", golden.read_bytes(), golden.name, lambda path: read_golden(path.parent, "case"))
    store = SweepStore(folder, ["k"])
    store.put("k", {"throughput": 1.5})
    read_point = lambda path: SweepStore(path.parent.parent, ["k"])  # noqa: E731
    add("point", (folder / "points" / "k.json").read_bytes(), "k.json", read_point)
    journal = Journal.create(folder / "j.journal", HEADER)
    for record in RECORDS[:9]:
        journal.append(record)
    journal.close()
    add("journal", (folder / "j.journal").read_bytes(), "j.journal", _reopened)
    add("live file", _LIVE.encode(), "l.live", read_live)
    write_a_run(folder / "a-run")
    for part in sorted((folder / "a-run").iterdir()):
        name = f"run {part.stem}"
        for other in (folder / "a-run").iterdir():
            add(name, other.read_bytes(), other.name, lambda path: read_run(path.parent))
        add(name, part.read_bytes(), part.name, lambda path: read_run(path.parent))
    for tool, called in _RESULTS.items():
        content = (_DATA / called).read_bytes()
        add(
            f"result of {tool}",
            gzip.decompress(content) if called.endswith(".gz") else content,
            "r.json",
            _imported,
        )
    for part, text in _PROFILE.items():
        for other, content in _PROFILE.items():
            add(f"profile {part}", content.encode(), f"p/{other}", _costs)
        add(f"profile {part}", text.encode(), f"p/{part}", _costs)
    return by_name


def _imported(path: Path) -> None:
    """Import a result as a Run, which must be one that is read again."""
    for number, benchmark in enumerate(results_in(path)):
        run = path.parent / f"run{number}"
        imported(benchmark, path, Given("model")).write(run)
        read_run(run)


def _costs(path: Path) -> None:
    folder = path.parent if path.suffix == ".yaml" else path.parent.parent
    to_toml(imported_costs("llmservingsim", [folder], "mine"))


def changed(content: bytes, drawn: random.Random, others: Sequence[bytes]) -> bytes:
    """Return the content with a few mutations, some of them by pieces of others."""
    data = bytearray(content)
    for _ in range(drawn.choice((1, 1, 1, 2, 4, 16))):
        at = drawn.randint(0, len(data))
        to = min(len(data), at + drawn.choice((0, 1, 1, 2, 4, 8, 100)))
        way = drawn.randrange(9)
        if way == 0 and data:
            data[drawn.randrange(len(data))] ^= 1 << drawn.randrange(8)
        elif way == 1:
            data[at:to] = drawn.choice(HURTFUL)
        elif way == 2:
            del data[at:to]
        elif way == 3:
            data[at:to] = drawn.randbytes(drawn.choice((1, 2, 4, 8, 64)))
        elif way == 4:
            del data[at:]
        elif way == 5:
            data[at:at] = data[at:to] * drawn.choice((2, 30, 1000))
        elif way >= 6 and (value := _VALUE.search(data, at)):
            # A whole number, text or word becomes another: the form of the file stays as it is.
            value = drawn.choice(list(itertools.islice(_VALUE.finditer(data, at), 50)))
            data[value.start() : value.end()] = drawn.choice(VALUES)
        else:
            other = drawn.choice(others)
            start = drawn.randint(0, len(other))
            data[at:to] = other[start : start + drawn.choice((4, 40, 400))]
    return bytes(data)


def _reopened(path: Path) -> None:
    ReplayJournal.reopened(path).close()


def _golden(folder: Path) -> None:
    facts = {"backend": "modelled", "laminabench": {"version": "0", "commit": None}}
    write_golden(folder, "case", Obtained({"throughput_tokens_per_s": 1.5}, facts))


_VALUE = re.compile(rb'-?\d[\d.eE+-]*|"[^"\n]*"|\b(?:true|false|null)\b')
# What stands where another value was expected.
VALUES = (
    rb"""0 -1 1 0.5 -0.0 1e30 1e308 1e999 -1e999 NaN Infinity -Infinity 2147483647 2147483648 16777217
    4294967296 9223372036854775807 9223372036854775808 -9223372036854775809 1e-320 null true false "" "x" []
    {} [[]] [1,2] "\ud800" "\u0000" "</script>" "../../x" "1e5" "\t7" "nan" """
    + b"9" * 400
).split()
_DATA = Path(__file__).parents[2] / "laminabench" / "interchange" / "data"
_RESULTS = {"vllm": "vllm.json", "guidellm": "guidellm.json.gz", "aiperf": "aiperf/profile_export.jsonl"}
_LAYERS = (
    "qkv_proj",
    "o_proj",
    "gate_up_proj",
    "down_proj",
    "layernorm",
    "rotary_emb",
    "act_fn",
    "embedding",
)


def _csv(columns: str, rows: Iterable[Sequence[object]]) -> str:
    return "\n".join([columns, *(",".join(map(str, row)) for row in rows)]) + "\n"


_BATCHES = itertools.product((0, 16, 32), (0, 512), (0, 1, 2), (0, 16, 512, 1024))
_PROFILE = {
    "tp1/dense.csv": _csv(
        "layer,tokens,time_us",
        [(name, m, 9 + m / 2) for name in (*_LAYERS, "final_layernorm") for m in (1, 2, 4)],
    ),
    "tp1/per_sequence.csv": _csv(
        "layer,sequences,time_us", [(name, n, 20 + n) for name in ("lm_head", "sampler") for n in (1, 2, 4)]
    ),
    "tp1/attention.csv": _csv(
        "prefill_chunk,kv_prefill,n_decode,kv_decode,time_us",
        [
            (c, p, n, kv, 5 + c * (p + c / 2) / 100 + n * kv / 100)
            for c, p, n, kv in _BATCHES
            if (n == 0) == (kv == 0) and (c or (n and not p))
        ],
    ),
    "meta.yaml": "vllm_version: 0.19.0\ngpu: RTX 4090\nhardware: RTX4090\nmodel: meta-llama/Llama-3.1-8B\n",
}

_ROWS = [(number, number * 37 % 900 + 1, number * 11 % 90 + 1) for number in range(30)]
_FORMATS = {
    "azure": "TIMESTAMP,ContextTokens,GeneratedTokens\r\n"
    + "".join(f"2023-11-16 18:15:{a:02}.6805900,{p},{o}\r\n" for a, p, o in _ROWS),
    "burstgpt": "Timestamp,Session ID,Model,Request tokens,Response tokens,Total tokens\n"
    + "".join(f"{a}.5,1,GPT-4,{p},{o},9\n" for a, p, o in _ROWS),
    "lengths": "num_prefill_tokens,num_decode_tokens,num_total_tokens,pd_ratio\r\n"
    + "".join(f"{p},{o},9,0.5\r\n" for _, p, o in _ROWS),
    "mooncake": "".join(
        json.dumps({"timestamp": a, "input_length": p, "output_length": o, "hash_ids": [1, 2, a]}) + "\n"
        for a, p, o in _ROWS
    ),
    "sharegpt": json.dumps(
        [{"id": "1", "conversations": [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}]}] * 9
    ),
}
_CASES = """
[defaults]
trace = "profile:azure-conv"
num-requests = 20
[case.one]
system = "vllm"
deployment = "4xh100"
model = "llama3-70b"
metrics = ["throughput_tokens_per_s"]
tolerance = { throughput_tokens_per_s = 0.1 }
"""
_LIVE = (
    '{"kind":"header","laminabench":"0","pid":1,"pid_started":1,"began":"2026-01-01T00:00:00Z","command":["a"],'
    '"request":"","trace":"t","requests":2,"system":"lamina","deployment":"1xcpu","model":"m","mode":"open",'
    '"slo_tbt_ms":100.0}\n{"kind":"end","at_s":1.0,"state":"done"}\n'
)
