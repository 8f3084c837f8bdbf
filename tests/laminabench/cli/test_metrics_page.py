"""docs/metrics.md names every key that a replay prints: it cannot go stale unnoticed."""

from __future__ import annotations

import re
import typing
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from laminabench.analysis.metrics import summarise
from laminabench.analysis.metrics_table import COMPARED, METRICS, better
from laminabench.runs.summary import ClientSummary, EngineSummary
from laminabench.sim.outcome import Outcome
from laminabench.traces.table import Trace, TraceMeta
from laminabench.util.json import to_json

DOCS = Path(__file__).parents[3] / "docs"
# Described elsewhere, as what they are about differs from system to system.
SEPARATE = ("facts", "trace")
# Of pools of workers, which differ between systems too.
POOLS = {"model", "attention", "devices", "replicas"}


# Of the tables of metrics.md: unit and better way, by key.
ROWS = {
    key: (unit, sense)
    for key, unit, sense in re.findall(
        r"^\| `([\w.]+)` \| (\S*) \| (more|less|) \| \S",
        (DOCS / "metrics.md").read_text("utf-8"),
        re.MULTILINE,
    )
}


def keys(result: Any) -> Iterator[str]:
    if isinstance(result, dict):
        for name, inner in result.items():
            yield name
            if name not in SEPARATE:
                yield from keys(inner)


def named(page: str) -> set[str]:
    """Every word in backticks."""
    text = (DOCS / page).read_text(encoding="utf-8")
    return {word for quoted in re.findall(r"`([^`\n]+)`", text) for word in re.findall(r"[\w.]+", quoted)}


def words() -> set[str]:
    """Of the page on metrics, with the parts of dotted names."""
    return {part for word in named("metrics.md") for part in (word, *word.split("."))}


def test_every_key_of_a_replay_is_on_the_page(shell: Any, as_json: Any) -> None:
    del shell  # it has changed the folder
    Path("few.csv").write_text("arrival_s,prompt_tokens,output_tokens\n0,50,40\n1,90,30\n")
    for system in ("lamina", "vllm"):
        facts = as_json("replay", "--trace", "few.csv", "--system", system, "--no-out", "-q")
        assert set(keys(facts)) - words() - POOLS == set()
    facts = as_json("replay --trace few.csv --system vllm --instances 2 --prefill pool:4xh100 --no-out -q")
    assert {"instances", "prompt_pool"} <= facts.keys()
    assert set(keys(facts)) - words() - POOLS == set()
    facts = as_json("replay --trace few.csv --system h2m2 --model llama2-70b --no-out -q")
    assert "memory" in facts
    assert set(keys(facts)) - words() - POOLS == set()


def test_every_key_of_what_only_a_client_saw_is_on_the_page(
    stream: Any, observed: Callable[..., Outcome]
) -> None:
    one = np.ones(1, np.int32)
    outcome = observed([stream(chunks=[(0.5, 1), (1.0, 2)])])
    trace = Trace(np.zeros(1), one, one, TraceMeta("one"))
    facts = to_json(summarise(outcome, trace, mode="open", slo_tbt_ms=1, usd_per_hour=None))
    facts["attempts"]["by_status"].clear()  # its keys are the server's
    assert set(keys(facts)) - words() - POOLS == set()


def test_every_metric_of_a_gate_is_on_its_page() -> None:
    assert COMPARED.keys() - named("compare.md") == set()


def test_the_tables_are_those_of_the_code() -> None:
    listed = {metric.key: metric for metric in METRICS if metric.key}
    for key, (unit, sense) in ROWS.items():
        if key in listed:
            assert (listed[key].unit, listed[key].better or "") == (unit, sense), key
        assert better(key) == (sense or None), key
    # One that has no row of its own is within one that has.
    alone = {key for key in listed if not any(f"{key}.".startswith(f"{row}.") for row in ROWS)}
    assert alone == set()


def test_every_metric_is_a_number_of_a_summary() -> None:
    """A key that is misspelt would read as one that is not known."""
    for key in [*ROWS, *(metric.key for metric in METRICS if metric.key)]:
        first = key.split(".", maxsplit=1)[0]
        kind: Any = next(each for each in (EngineSummary, ClientSummary) if first in each.__struct_fields__)
        for name in key.replace("p99.9", "p99_9").split("."):
            kinds = [each for each in typing.get_args(kind) or (kind,) if hasattr(each, "__struct_fields__")]
            kind = typing.get_type_hints(kinds[0])[name]
