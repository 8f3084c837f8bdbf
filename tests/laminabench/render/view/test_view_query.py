"""The query box and the table: what is found, in which order, and what is said of what means nothing."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import msgspec
import pytest
from starlette.datastructures import QueryParams

from laminabench.render.view.facts import BRIEFLY, all_facts, brief, brief_facts
from laminabench.render.view.index import Index
from laminabench.render.view.query import field_of, in_order, parsed
from laminabench.render.view.table_page import ROWS, columns_page, table_page
from laminabench.util.errors import UserError


def result(index: Index, text: str) -> list[str]:
    expected = parsed(text, index)
    return sorted(row.key for row in expected.matching(index.rows(complete=expected.needs_all)))


@pytest.mark.parametrize(
    ("text", "keys"),
    [
        ("", ["lamina", "vllm"]),
        ("lamina", ["lamina", "vllm"]),  # in the name of the trace's tool as well
        ("2xh100+4xh20", ["lamina"]),
        ('"saturate" 4xH100', ["vllm"]),
        ("nothing-like-this", []),
        ("system=lamina", ["lamina"]),
        ("system != lamina", ["vllm"]),
        ("system=LAMINA,vllm", ["lamina", "vllm"]),
        ("deployment=2x*", ["lamina"]),
        ("deployment.name=4xh100 backend=modelled", ["vllm"]),
        ("numbers=measured", []),
        ("throughput>0", ["lamina", "vllm"]),
        ("tbt_p99<0.001", []),
        ("slo.token_attainment>=0% slo.token_attainment<=100%", ["lamina", "vllm"]),
        ("request.num-requests=200", ["lamina", "vllm"]),
        ("num-requests>200", []),
        ("facts.pipelining=rotational", ["lamina"]),
        ("date>2026-01-01 date<2027", ["lamina", "vllm"]),
        ("gated_mlp=yes", ["lamina", "vllm"]),
    ],
)
def test_what_is_found(two_runs: Path, text: str, keys: list[str]) -> None:
    assert result(Index(two_runs / "runs"), text) == keys


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("tbt_ms.p98<80", "tbt_ms.p99"),
        ("tbt_ms.p99<fast", "'fast' is not a number"),
        ("tbt_ms.p99<", "lacks a value"),
        ("p99>1", "may be any of"),
        ("x" * 3000, "at most 2,000 characters"),
    ],
)
def test_what_means_nothing_is_said_on_the_page(two_runs: Path, text: str, message: str) -> None:
    index = Index(two_runs)
    with pytest.raises(UserError) as error:
        parsed(text, index)
    assert error.value.code == "view-query"
    assert message in str(error.value)
    body = table_page(index, QueryParams({"q": text})).body
    assert 'role="alert"' in body
    assert "No Run is like that" in body


def test_a_manifest_says_the_same_at_a_glance_and_whole(two_runs: Path) -> None:
    document = (two_runs / "runs/lamina/run.json").read_bytes()
    glance = brief_facts(brief(document), "lamina", 0)
    assert glance.keys() <= BRIEFLY
    whole = all_facts(document, {})
    known = {
        name: value
        for name, value in glance.items()
        if name not in ("run", "date", "system", "backend", "numbers")
    }
    assert known.items() <= whole.items()
    manifest = msgspec.json.decode(document)
    assert whole["tbt_ms.p99.9"] == manifest["summary"]["tbt_ms"]["p99.9"]
    assert whole["request.num-requests"] == 200
    assert not [name for name in whole if name.startswith(("coefficients", "tables"))]


def copies(folder: Path, count: int, **changed: Any) -> None:
    """Runs with numbers of their own."""
    manifest = json.loads((folder / "runs/lamina/run.json").read_text())
    for number in range(count):
        manifest["summary"]["throughput_tokens_per_s"] = 1000.0 + number
        manifest.update(changed)
        there = folder / f"runs/copy-{number:03}"
        there.mkdir()
        (there / "run.json").write_text(json.dumps(manifest))


def test_any_order_and_pages(folder: Path) -> None:
    copies(folder, ROWS + 20)
    index = Index(folder)
    rows = in_order(index.rows(), "throughput_tokens_per_s", down=False)
    values = [row.facts["throughput_tokens_per_s"] for row in rows]
    assert values == sorted(values)
    query = {"q": "copy- throughput<1500", "sort": "-throughput"}
    first, second = (table_page(index, QueryParams({**query, "page": page})).body for page in ("1", "2"))
    assert first.count("<tr data-key") == ROWS
    assert second.count("<tr data-key") == 20
    assert first.index("copy-119") < first.index("copy-118")
    assert "copy-000" in second
    assert "120 of 122 Runs, 101 to 120" in second
    assert "101 to 120" in table_page(index, QueryParams({**query, "page": "99999999"})).body


def test_what_lacks_a_field_is_last_whichever_way(folder: Path) -> None:
    copies(folder, 1, partial={"why": "it was stopped", "at_s": 1.0})
    rows = Index(folder).rows()
    for down in (True, False):
        assert in_order(rows, "partial.why", down=down)[0].key == "runs/copy-000"


def test_columns_of_any_field(two_runs: Path) -> None:
    index = Index(two_runs)
    query = QueryParams([("col", "request.costs"), ("col", "system"), ("col", "host.cores")])
    body = table_page(index, query).body
    assert body.index(">system<") < body.index("request.costs<") < body.index("host.cores<")
    assert "vllm-0.24" in body
    choice = columns_page(index, query).body
    assert '<input type="checkbox" name="col" value="request.costs" checked>' in choice
    assert '<input type="checkbox" name="col" value="tbt_ms.p99">' in choice
    assert field_of("costs", index) == "request.costs"
    # A column that there is none of is said, and the table is the usual one.
    assert 'role="alert"' in table_page(index, QueryParams("col=nothing")).body


def test_new_runs_appear_and_old_ones_go(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr("laminabench.render.view.index.time.monotonic", lambda: now[0])
    index = Index(folder)
    assert {row.key for row in index.rows()} == {"runs/lamina", "runs/vllm"}
    before = index.version
    now[0] += 100
    assert index.version == before
    copies(folder, 1)
    shutil.rmtree(folder / "runs/vllm")
    assert index.version == before  # not looked at again yet
    now[0] += 100
    assert {row.key for row in index.rows()} == {"runs/lamina", "runs/copy-000"}
    assert index.version == before + 1
