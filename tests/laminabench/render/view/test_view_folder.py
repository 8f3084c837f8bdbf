"""What is found in a folder, and what is not: hidden, damaged, foreign, or led to elsewhere."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from starlette.datastructures import QueryParams

from laminabench.render.report import page, report
from laminabench.render.sheets.runs import cards, comparison
from laminabench.render.shown import caveats, shown
from laminabench.render.view import folder as folders
from laminabench.render.view.compare_page import compare_page, export
from laminabench.render.view.folder import scan
from laminabench.render.view.index import Index
from laminabench.render.view.opened import at_a_glance, chosen, with_tables
from laminabench.render.view.table_page import table_page
from laminabench.runs.read import read_run
from laminabench.util.errors import UserError

NAME = """a "b" & 'c' %2F #x?y=<b> ü
z"""


def test_what_there_is(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (".hidden", "node_modules", "__pycache__"):
        os.rename(folder / "runs", folder / name)  # noqa: PTH104
        assert scan(folder).entries["run"] == {}
        os.rename(folder / name, folder / "runs")  # noqa: PTH104
    for name in ("sweep.json", "plan.json", "validation.json"):
        (folder / name).write_text("{}")
    (folder / "runs/x.live").write_text("")
    result = scan(folder).entries
    assert result["run"].keys() == {"runs/lamina", "runs/vllm"}
    assert result["live"].keys() == {"runs/x.live"}
    assert [list(result[kind]) for kind in ("sweep", "plan", "validation")] == [[folder.name]] * 3
    # The folder may be a Run itself.
    assert scan(folder / "runs/lamina").entries["run"].keys() == {"lamina"}
    (folder / "runs/pyvenv.cfg").write_text("")
    assert scan(folder).entries["run"] == {}
    monkeypatch.setattr(folders, "MOST_FOLDERS", 1)
    assert scan(folder).cut


def test_links_to_elsewhere_are_not_followed(folder: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    os.rename(folder / "runs/vllm", elsewhere)  # noqa: PTH104
    (folder / "runs/vllm").symlink_to(elsewhere)
    (folder / "runs/other").mkdir()
    (folder / "runs/other/run.json").symlink_to(elsewhere / "run.json")
    assert scan(folder).entries["run"].keys() == {"runs/lamina"}


@pytest.mark.parametrize(
    "key", ["../elsewhere", "/etc", "runs/../runs/lamina", "runs/lamina/", "runs", "", "\0"]
)
def test_addresses_name_indexed_runs_only(two_runs: Path, key: str) -> None:
    with pytest.raises(UserError) as error:
        chosen(Index(two_runs), [key])
    assert error.value.code == "view-not-there"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"{", "is damaged: it is not JSON"),
        (b'{"format": "laminabench-run"}', "is damaged"),
        (b'{"format": "laminabench-run", "format_version": 99}', "upgrade laminabench"),
        (b"\xff\xfe", "is damaged"),
    ],
)
def test_damaged_runs_are_listed_with_what_is_wrong(folder: Path, text: bytes, message: str) -> None:
    (folder / "runs/vllm/run.json").write_bytes(text)
    index = Index(folder)
    rows = {row.key: row.damage for row in index.rows(complete=True)}
    assert rows["runs/lamina"] is None
    assert message in (rows["runs/vllm"] or "")
    assert message in table_page(index, QueryParams("")).body
    assert "1 of 2 Runs" in table_page(index, QueryParams("q=damaged")).body or "upgrade" in message
    with pytest.raises(UserError):
        compare_page(index, QueryParams("run=runs/vllm"))


def test_a_run_json_of_something_else_is_no_run(folder: Path) -> None:
    (folder / "runs/vllm/run.json").write_text('{"format": "laminabench-pingpong", "format_version": 1}')
    index = Index(folder)
    assert [row.key for row in index.rows()] == ["runs/lamina"]
    assert index.refreshed().entries["run"].keys() == {"runs/lamina"}


def test_names_are_shown_and_not_obeyed(folder: Path) -> None:
    os.rename(folder / "runs/lamina", folder / "runs" / NAME)  # noqa: PTH104
    odd = os.fsencode(folder / "runs") + b"/odd-\xff"
    os.rename(os.fsencode(folder / "runs/vllm"), odd)  # noqa: PTH104
    manifest = json.loads((folder / "runs" / NAME / "run.json").read_text())
    manifest["trace"]["name"] = "<script>alert(1)</script>"
    del manifest["crc32"]
    (folder / "runs" / NAME / "run.json").write_text(json.dumps(manifest))
    index = Index(folder)
    body = table_page(index, QueryParams("col=trace.name")).body
    assert "<script" not in body
    assert "&lt;script&gt;alert(1)" in body
    # As a browser sends the names back.
    key = "runs/" + NAME.replace("\n", r"\n")
    query = QueryParams([("run", key), ("run", r"runs/odd-\xff")])
    assert "<script" not in compare_page(index, QueryParams(str(query))).body
    charts = QueryParams([("run", key), ("part", "charts")])
    assert "<b>" not in compare_page(index, charts).body


def test_the_page_and_its_parts(two_runs: Path) -> None:
    index = Index(two_runs)
    both = [("run", "runs/lamina"), ("run", "runs/vllm")]
    page_ = compare_page(index, QueryParams(both))
    assert page_.title == "lamina 2xh100+4xh20 and vllm 4xh100"
    body = page_.body
    places = [body.index(f"<h2>{title}</h2>") for title in ("What differs", "Headline", "Comparison")]
    assert places == sorted(places)
    differing = body[places[0] : places[1]]
    assert "<code>system</code>" in differing
    assert "<code>trace.name</code>" not in differing
    charts = compare_page(index, QueryParams([*both, ("part", "charts")]))
    assert {"cdf", "attainment", "batch", "kv", "time", "timeline"} <= {chart.key for chart in charts.charts}
    lanes = compare_page(index, QueryParams([*both, ("part", "lanes"), ("window", "1:1.5")]))
    assert [chart.title for chart in lanes.charts] == ["Timeline from 1.000 to 1.500 s"]
    assert "window=0.75%3A1.25" in lanes.body
    other = compare_page(index, QueryParams([*both, ("base", "runs/vllm"), ("slo", "50")]))
    assert other.title == "vllm 4xh100 and lamina 2xh100+4xh20"
    assert "of tokens within 50 ms" in other.body
    assert page_opens_with_curves(index, both)
    alone = compare_page(index, QueryParams(both[:1]))
    assert "What differs" not in alone.body
    assert "curves" not in alone.body


def page_opens_with_curves(index: Index, both: list[tuple[str, str]]) -> bool:
    whole = compare_page(index, QueryParams(both)).body
    part = compare_page(index, QueryParams([*both, ("part", "curves")]))
    names = [trace["name"] for trace in part.charts[0].traces]
    assert {"vllm 4xh100", "lamina 2xh100+4xh20"} < {*names}
    return whole.index("part=curves") < whole.index("What differs")


@pytest.mark.parametrize(
    ("query", "code"),
    [
        ("", "view-no-runs"),
        ("slo=0", "view-slo"),
        ("slo=nan", "view-slo"),
        ("slo=x", "view-slo"),
        ("window=2:1", ""),
    ],
)
def test_what_cannot_be_compared(two_runs: Path, query: str, code: str) -> None:
    runs = "run=runs/lamina&" if query else ""
    with pytest.raises(UserError) as error:
        compare_page(Index(two_runs), QueryParams(runs + query))
    assert error.value.code == code or not code
    if query:
        with pytest.raises(UserError):
            compare_page(Index(two_runs), QueryParams("run=runs/lamina&part=lanes&window=1e6:"))


def test_manifests_alone_say_what_whole_runs_say(two_runs: Path) -> None:
    result = chosen(Index(two_runs), ["runs/lamina", "runs/vllm"])
    quick, slow = at_a_glance(result, None), with_tables(result, None)
    assert len(quick[0].run.outcome.requests) == 0
    assert (cards(quick), comparison(quick), caveats(quick)) == (cards(slow), comparison(slow), caveats(slow))
    # Another limit takes the tables.
    assert cards(at_a_glance(result, 50.0)) == cards(with_tables(result, 50.0)) != cards(slow)


@pytest.mark.parametrize(("slo", "window"), [(None, None), (50.0, (1.0, 2.0))])
def test_an_export_is_the_report_of_the_same_runs(
    two_runs: Path, slo: float | None, window: tuple[float, float] | None
) -> None:
    paths = [two_runs / "runs" / name for name in ("lamina", "vllm")]
    expected = page(report(shown([read_run(path) for path in paths], slo), None, window))
    query = "run=runs/lamina&run=runs/vllm" + ("" if slo is None else "&slo=50&window=1:2")
    assert export(Index(two_runs), QueryParams(query)) == expected


DEEP = "[" * 5000 + "]" * 5000


@pytest.mark.parametrize(
    ("part", "value"),
    [
        ("x", DEEP),
        ("summary", f'{{"x": {DEEP}}}'),
        ("summary", '{"x": 1' + "0" * 400 + "}"),
        ("request", json.dumps("x = " + "[" * 5000)),
        ("request", json.dumps("x = " + "1" * 5000)),
    ],
)
def test_one_hostile_run_spoils_no_page_of_the_others(folder: Path, part: str, value: str) -> None:
    path = folder / "runs/vllm/run.json"
    manifest = json.loads(path.read_text())
    del manifest["crc32"]
    path.write_text(json.dumps({**manifest, part: "HERE"}).replace('"HERE"', value))
    for query in ("", "q=lamina", "q=wall_s>0", "sort=-wall_s", "col=seed"):
        assert "runs/lamina" in table_page(Index(folder), QueryParams(query)).body
    assert "lamina" in compare_page(Index(folder), QueryParams("run=runs/lamina")).title
    if "000" in value:
        assert "runs/vllm" in table_page(Index(folder), QueryParams("q=x!=1&col=x&sort=-x")).body


def test_what_goes_while_a_folder_is_looked_through(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "runs/x.live").write_text("")

    def removed_entry(path: Path) -> Iterator[os.DirEntry[str]]:
        for entry in list(os.scandir(path)):
            if entry.name == "x.live":
                (folder / "runs/x.live").unlink()
            yield entry

    monkeypatch.setattr(folders, "_entries", removed_entry)
    result = scan(folder).entries
    assert result["live"] == {}
    assert result["run"].keys() == {"runs/lamina", "runs/vllm"}


def test_a_run_removed_while_compared_is_reported(folder: Path) -> None:
    both = QueryParams([("run", "runs/lamina"), ("run", "runs/vllm")])
    compare_page(Index(folder), both)
    index = Index(folder)
    index.refreshed()
    shutil.rmtree(folder / "runs/vllm")
    with pytest.raises(UserError) as error:
        compare_page(index, both)
    assert error.value.code == "view-not-there"
