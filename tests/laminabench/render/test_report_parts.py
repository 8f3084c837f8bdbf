"""What the page is made of, for Runs of every kind: nothing is left out unsaid, and no manifest is obeyed."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_outcome import trace_of
from msgspec import structs

from laminabench.analysis.metrics import summarise
from laminabench.catalog.deployment import DeploymentFacts
from laminabench.render import report as page_module
from laminabench.render.charts.breakdown import PARTS
from laminabench.render.charts.chart import Chart
from laminabench.render.charts.latency import attainment_chart, cdf_chart, first_token_chart
from laminabench.render.charts.memory import SLICES, memory_charts
from laminabench.render.charts.over_time import charts, in_service
from laminabench.render.charts.timeline import MOST_ITERATIONS, timeline_chart
from laminabench.render.format import gigabytes, number
from laminabench.render.html import script_data, tag, text
from laminabench.render.report import page, report
from laminabench.render.sections import opening
from laminabench.render.sheets.runs import client_sheets, comparison
from laminabench.render.shown import DASHES, caveats, shown
from laminabench.runs.manifest import Manifest, Partial
from laminabench.runs.read import Run, read_run
from laminabench.runs.status import FAILED
from laminabench.runs.summary import Energy, Requests, Resumed
from laminabench.runs.write import write_run
from laminabench.sim.outcome import Outcome

BoardRun = Callable[..., Run]
RESUMED = {"resumed": Resumed(times=1, at_s=[0.7])}


def changed(run: Run, **summary: Any) -> Run:
    """The Run with a manifest that says something else."""
    reported = structs.replace(run.manifest.summary, **summary)
    return replace(run, manifest=structs.replace(run.manifest, summary=reported))


@given(st.text())
def test_text_is_never_markup(written: str) -> None:
    for result in (text(written), tag("td", written), tag("p", title=written)):
        assert len(re.findall("<", result)) == (0 if result == text(written) else 2)
    assert '"' not in text(written)


@given(st.text())
def test_data_in_a_script_comes_back_and_cannot_end_it(written: str) -> None:
    result = script_data("k", {"name": written, "unknown": float("nan")})
    inside = result.removeprefix('<script type="application/json" id="k">').removesuffix("</script>")
    assert not set("<>&") & set(inside)
    assert json.loads(inside) == {"name": written, "unknown": None}


@given(st.text(st.sampled_from("<>/be brxta=\"'&;s")))
def test_no_text_of_a_chart_is_markup_but_ours(foreign: str) -> None:
    trace = {
        "name": foreign,
        "hovertemplate": f"<b>1</b><br>{foreign}<extra></extra>",
        foreign: [foreign, 1.5],
    }
    drawn = json.dumps(Chart("key", "", "", "", [trace], {"title": {"text": foreign}}).figure())
    assert set(re.findall("<[^>]*>?", drawn)) <= {"<b>", "</b>", "<br>", "<extra>", "</extra>"}
    assert "<b>1</b><br>" in drawn


def test_in_service_is_exact(keep: Callable[..., Run]) -> None:
    outcome = keep().outcome
    rows = outcome.iterations
    result = in_service(outcome, "size", 7)
    # Sample very many moments; a request also counts between two of its iterations.
    moments = (np.arange(70_000) + 0.5) / 70_000 * outcome.end_s
    level = np.zeros(len(moments))
    for batch in np.unique(rows["batch"]):
        own = rows["batch"] == batch
        place = np.searchsorted(rows["start_s"][own], moments, side="right") - 1
        there = (place >= 0) & (moments < (rows["start_s"] + rows["duration_s"])[own][-1])
        level += np.where(there, rows["size"][own][place], 0)
    slices = level.reshape(7, -1)
    assert result.mean == pytest.approx(slices.mean(axis=1), rel=2e-3)
    assert result.least.tolist() == slices.min(axis=1).tolist()
    assert result.most.tolist() == slices.max(axis=1).tolist()


def test_names_and_lines_distinguish_runs(keep: Callable[..., Run]) -> None:
    runs = shown([keep(), keep(trace="other"), keep("vllm")])
    assert [each.name for each in runs] == [
        "lamina 2xh100+4xh20, small",
        "lamina 2xh100+4xh20, other",
        "vllm 4xh100, small",
    ]
    assert runs[0].colour == runs[1].colour != runs[2].colour
    assert [each.dash for each in runs] == [DASHES[0], DASHES[1], DASHES[0]]
    same = shown([runs[0].run, runs[0].run])
    assert same[0].name != same[1].name


def test_boards_are_distinguished_by_hardware_and_policy(keep: Callable[..., Run]) -> None:
    run = keep()
    reported = (("h2m2", "greedy"), ("h2m2", "oracle"), ("mine", "oracle"))
    deployments = [
        structs.replace(run.manifest.deployment, facts={"board": board, "mapping": mapping})
        for board, mapping in reported
    ]
    runs = [replace(run, manifest=structs.replace(run.manifest, deployment=each)) for each in deployments]
    messages = [each.name.split(", ", 1)[1] for each in shown(runs)]
    assert messages == [
        "board h2m2, mapping greedy",
        "board h2m2, mapping oracle",
        "board mine, mapping oracle",
    ]


def test_runs_with_and_without_prompts_are_distinguished(keep: Callable[..., Run]) -> None:
    without = keep("vllm")
    facts = structs.replace(without.manifest.deployment, facts={"prefill": "off"})
    off = replace(without, manifest=structs.replace(without.manifest, deployment=facts))
    messages = [each.name for each in shown([off, keep("vllm", prefill=True)])]
    assert messages == ["vllm 4xh100", "vllm 4xh100, prefill colocated"]


def test_an_older_run_without_energy_is_shown(keep: Callable[..., Run]) -> None:
    assert "J a token" not in comparison(shown([changed(keep(), energy=Energy())]))


def test_ratios_are_to_the_first(keep: Callable[..., Run]) -> None:
    runs = shown([keep(), keep("vllm")])
    rates = [each.summary.throughput_tokens_per_s for each in runs]
    result = comparison(runs)
    assert f'<data value="{rates[1]!r}">' in result
    assert f"{rates[1] / rates[0]:.3f}" in result
    worse = "worse" if rates[1] < rates[0] else "better"
    assert f'class="ratio {worse}"' in result.split("Goodput")[0]


def test_runs_of_two_loads_are_compared_within_each(keep: Callable[..., Run]) -> None:
    pair = [keep(), keep("vllm")]
    loads = [
        replace(
            run,
            manifest=structs.replace(
                run.manifest, workload=structs.replace(run.manifest.workload, mode=mode)
            ),
        )
        for mode in ("open", "saturate")
        for run in pair
    ]
    (*_, section) = opening(shown(loads), [], by_load=True)
    assert section.inside.count("<caption>") == 2
    (*_, section) = opening(shown(loads), [])
    assert section.inside.count("<caption>") == 1


def test_a_measured_difference_is_called_one_only_beyond_chance(keep: Callable[..., Run]) -> None:
    one, other = keep(live=True), keep(live=True)
    other = changed(other, throughput_tokens_per_s=other.manifest.summary.throughput_tokens_per_s * 1.01)
    row = comparison(shown([one, other])).split("Goodput")[0]
    assert "1.010" in row
    assert "better" not in row


def test_another_limit_is_recomputed_and_noted(keep: Callable[..., Run]) -> None:
    run = keep(slo_tbt_ms=60.0)
    (same,) = shown([run])
    assert same.slo == run.manifest.summary.slo
    assert "worked out again" not in " ".join(caveats([same]))
    (strict,) = shown([run], 1e-3)
    assert strict.slo.token_attainment == 0
    assert "worked out again for 0.001 ms" in " ".join(caveats([strict]))


def test_disturbances_of_a_run_are_noted(keep: Callable[..., Run]) -> None:
    counts = Requests(completed=390, rejected=3, unfinished=7)
    runs = shown([keep("vllm"), keep(live=True, requests=counts, **RESUMED)])
    message = " ".join(caveats(runs))
    assert "different backends" in message
    for words in (
        "7 of its requests are unfinished",
        "rejected 3 requests",
        "interrupted and resumed 1 times",
    ):
        assert words in message
    assert "partial: 7 requests unfinished" in comparison(runs)


def test_charts_end_where_the_numbers_do(keep: Callable[..., Run]) -> None:
    (each,) = runs = shown([keep()])
    (line,) = cdf_chart(runs).traces
    assert line["y"][-1] == 1
    assert line["x"][-1] == pytest.approx(each.summary.tbt_ms.max, rel=1e-5)
    requests, tokens = attainment_chart(runs).traces
    at = requests["x"].index(60.0)
    assert requests["y"][at] == pytest.approx(each.slo.request_attainment, rel=1e-5)
    assert tokens["y"][at] == pytest.approx(each.slo.token_attainment, rel=1e-5)


@pytest.mark.parametrize("live", [False, True])
def test_both_limits_are_drawn_over_each_and_meet_in_the_summary(
    keep: Callable[..., Run], live: bool
) -> None:
    (each,) = runs = shown([keep("vllm", prefill=True, slo_ttft_ms=9000.0, live=live)])
    assert 0 < each.slo.joint_attainment < min(each.slo.request_attainment, each.slo.ttft_attainment) < 1
    *_, over_tbt = attainment_chart(runs).traces
    assert over_tbt["y"][over_tbt["x"].index(60.0)] == pytest.approx(each.slo.joint_attainment, rel=1e-5)
    drawn = first_token_chart(runs)
    assert drawn is not None
    alone, over_ttft = drawn.traces
    at = over_ttft["x"].index(9.0)
    assert over_ttft["y"][at] == pytest.approx(each.slo.joint_attainment, rel=1e-5)
    saved = [share for wait, share in zip(alone["x"], alone["y"], strict=True) if wait <= 9.0]
    assert max(saved) == pytest.approx(each.slo.ttft_attainment, abs=0.01)


def test_what_has_no_limit_on_first_tokens_is_drawn_without(keep: Callable[..., Run]) -> None:
    without, prompts = keep("vllm"), keep("vllm", prefill=True)
    assert first_token_chart(shown([without])) is None
    assert len(attainment_chart(shown([without])).traces) == 2
    drawn = first_token_chart(shown([without, prompts]))
    assert drawn is not None
    assert len(drawn.traces) == 1
    assert len(attainment_chart(shown([without, prompts])).traces) == 4
    # The limit is that of the first Run which has one, for all that have prompts.
    limited = keep("vllm", prefill=True, slo_ttft_ms=9000.0)
    assert len(attainment_chart(shown([without, limited, prompts])).traces) == 8


def test_the_timeline_says_what_it_leaves_out(keep: Callable[..., Run]) -> None:
    runs = shown([keep()])
    rows = runs[0].run.outcome.iterations
    first = timeline_chart(runs, (0.0, float(rows["duration_s"][0]) / 2))
    assert "Only" not in first.note
    parts = [trace for trace in first.traces if trace["name"] in PARTS and trace["x"] != [None]]
    lasts = sum(sum(trace["x"]) for trace in parts)
    begun = rows["start_s"] < float(rows["duration_s"][0]) / 2
    assert lasts == pytest.approx(float(rows["duration_s"][begun].sum()), rel=1e-4)
    end_s = runs[0].run.outcome.end_s
    assert "No iteration" in timeline_chart(runs, (end_s + 1, end_s + 2)).note
    for name, values in rows.items():
        rows[name] = np.concatenate([values] * (MOST_ITERATIONS // len(values) + 2))
    assert f"Only the first {MOST_ITERATIONS} of" in timeline_chart(runs, (0.0, end_s)).note


def test_plotly_knows_every_property(
    keep: Callable[..., Run], board_run: BoardRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    from plotly import graph_objects

    observed: dict[str, Any] = {}
    monkeypatch.setattr(
        page_module, "script_data", lambda key, data: observed.update({key: data}) or script_data(key, data)
    )
    prompts = keep("vllm", prefill=True, slo_ttft_ms=9000.0)
    page(report(shown([keep(), keep("vllm"), keep(live=True), board_run(), prompts]), None, None))
    assert len(observed["figures"]) == 14
    for figure in observed["figures"]:
        graph_objects.Figure(data=figure["data"], layout=figure["layout"])  # an unknown one is an error


def test_a_run_in_which_nothing_ran_has_a_page(keep: Callable[..., Run], board_run: BoardRun) -> None:
    never = dict.fromkeys(("admitted_s", "first_token_s", "finished_s"), np.full(400, np.nan))
    never |= dict.fromkeys(("first_iteration", "last_iteration", "batch"), np.full(400, -1))
    for run in (keep(), board_run(), keep("vllm", prefill=True, slo_ttft_ms=9000.0)):
        memory = run.outcome.memory
        outcome = replace(
            run.outcome,
            requests=run.outcome.requests | never,
            iterations={name: values[:0] for name, values in run.outcome.iterations.items()},
            memory=memory and {name: values[:0] for name, values in memory.items()},
            end_s=0.0,
        )
        result = page(report(shown([replace(run, outcome=outcome)]), None, None))
        assert "No iteration" in result
        assert "nan%" not in result
        assert ("<h2>Memory</h2>" in result) == (memory is not None)


def test_equal_runs_make_equal_pages(keep: Callable[..., Run]) -> None:
    run = keep()
    first, second = (page(report(shown([run]), None, None)) for _ in range(2))
    assert first == second


REQUESTS, CHUNKS = 20, 30
PARTIAL = Partial(why="the server is gone", at_s=3.2)
ClientRun = Callable[..., Run]


@pytest.fixture
def client_run(
    tmp_path: Path, stream: Any, observed: Callable[..., Outcome], manifest_of: Callable[..., Manifest]
) -> ClientRun:
    """A Run against an endpoint: each request begins a tenth of a second after the one before."""

    def made(partial: Any = None) -> Run:
        rng = np.random.default_rng(2)
        streams = []
        for row in range(REQUESTS):
            ends = row / 10 + 0.3 + np.cumsum(rng.uniform(0.01, 0.03, CHUNKS))
            chunks = [
                (at_s, int(tokens)) for at_s, tokens in zip(ends, rng.integers(1, 4, CHUNKS), strict=True)
            ]
            streams.append(stream(row / 10, row / 10 + 0.002, chunks, attempts=2 if row == 3 else 1))
        streams[7].status, streams[7].error = FAILED, "<b>reset</b> by peer"
        streams[8].even = True
        outcome = observed(streams)
        made_tokens = [sum(tokens for _, tokens in each.chunks) for each in streams]
        arrival_s = outcome.requests["arrival_s"]
        trace = trace_of([1] * REQUESTS, made_tokens, arrival_s, name="small", sha256="ab" * 32)
        summary = summarise(outcome, trace, mode="open", slo_tbt_ms=60.0, usd_per_hour=None)
        facts = manifest_of(
            trace,
            workload={"mode": "open", "concurrency": None, "policy": "fifo", "slo_tbt_ms": 60.0},
            system="openai",
            deployment=DeploymentFacts(name="a url", usd_per_hour=None),
            backend="live",
            summary=summary,
            partial=partial,
        )
        directory = tmp_path / f"seen{len(list(tmp_path.iterdir()))}"
        write_run(directory, outcome, trace, facts)
        return read_run(directory)

    return made


def test_next_to_another_run_it_shows_what_it_can(keep: Callable[..., Run], client_run: ClientRun) -> None:
    runs = shown([client_run(), keep("vllm")])
    result = page(report(runs, None, None))
    assert "As the client saw it" in result
    assert "A client cannot see the iterations of openai a url." in result
    assert "Where only a client saw a request it counts from its first chunk to its last." in result
    assert "&lt;b&gt;reset&lt;/b&gt; by peer" in result
    (kv,) = [chart for chart in charts(runs) if chart.key == "kv"]
    assert {trace["meta"]["run"] for trace in kv.traces} == {1}
    message = " ".join(caveats(runs))
    for words in (
        "openai a url has 1 requests that failed",
        "openai a url does not know which tokens a chunk had",
        "some Runs saw their tokens in the engine and some as a client",
    ):
        assert words in message


def test_its_tables_are_of_its_manifest(client_run: ClientRun) -> None:
    (each,) = runs = shown([client_run()])
    times, calls = client_sheets(runs)
    assert len(times.rows) == 5
    itl, tbt = each.summary.itl_ms.mean, each.summary.tbt_ms.mean
    assert itl > 1.5 * tbt
    assert [row[1].value for row in times.rows[1:3]] == [itl, tbt]  # type: ignore[union-attr]
    assert dict(calls.rows[2:4]) == {"Attempts": "21", "of these, again": "1"}  # type: ignore[arg-type]


def test_requests_in_service_are_those_that_stream(client_run: ClientRun) -> None:
    outcome = client_run().outcome
    assert outcome.chunks is not None
    result = in_service(outcome, "size", 5)
    moments = (np.arange(50_000) + 0.5) / 50_000 * outcome.end_s
    level = np.zeros(len(moments))
    for row in range(REQUESTS):
        at_s = outcome.chunks["at_s"][outcome.chunks["request"] == row]
        level += (moments >= at_s[0]) & (moments < at_s[-1])
    slices = level.reshape(5, -1)
    assert result.mean == pytest.approx(slices.mean(axis=1), rel=2e-3)
    assert result.most.tolist() == slices.max(axis=1).tolist()


def test_a_run_that_ended_early_is_called_partial_everywhere(
    keep: Callable[..., Run], client_run: ClientRun
) -> None:
    runs = shown([keep(), client_run(PARTIAL)])
    assert [each.name for each in runs] == ["lamina 2xh100+4xh20", "openai a url (PARTIAL)"]
    assert "openai a url (PARTIAL) ended after 3.2 s: the server is gone" in caveats(runs)
    result = page(report(runs, None, None))
    assert "openai a url (PARTIAL)" in result.split("</h3>")[1]


@pytest.fixture
def board_run(keep: Callable[..., Run], on_boards: Callable[..., Any]) -> BoardRun:
    def made(system: str = "lamina", **more: Any) -> Run:
        run = keep(system)
        return replace(run, outcome=on_boards(run.outcome, **more))

    return made


def test_boards_are_shown_next_to_others(keep: Callable[..., Run], board_run: BoardRun) -> None:
    runs = shown([keep("vllm"), board_run()])
    result = page(report(runs, None, None))
    assert "<h2>Memory</h2>" in result
    assert 'id="hbm-1"' in result
    assert 'id="hbm-0"' not in result
    assert 'id="moved"' in result
    assert cells_of(comparison(runs))["HBM in use, most"][0] == "-"


def cells_of(table: str) -> dict[str, list[str]]:
    rows = re.findall(r'<tr><th scope="row">(.*?)</th>(.*?)</tr>', table)
    return {title: re.findall("<td>(?:<data[^>]*>)?([^<]*)<", row) for title, row in rows}


def test_the_table_says_what_the_summary_does(board_run: BoardRun) -> None:
    runs = shown([board_run(), board_run("vllm", seed=2)])
    cells = cells_of(comparison(runs))
    first, second = (each.recorded.summary.memory for each in runs)
    assert cells["HBM in use, most"][:2] == [f"{each.hbm_share.max:.1%}" for each in (first, second)]
    assert cells["Changes of mapping"][:2] == [number(each.mapping_changes) for each in (first, second)]
    assert cells["LPDDR side busy"][:2] == [f"{each.lpddr_busy_share:.1%}" for each in (first, second)]
    assert cells["Moved an iteration, most"][0] == gigabytes(first.moved_bytes.max)


def test_charts_hold_what_the_tables_do(board_run: BoardRun) -> None:
    runs = shown([board_run(), board_run("vllm", seed=2)])
    first, second, moved = memory_charts(runs)
    assert [first.key, second.key, moved.key] == ["hbm-0", "hbm-1", "moved"]
    for chart, each in ((first, runs[0]), (second, runs[1])):
        assert all(len(trace["y"]) == SLICES for trace in chart.traces)
        assert {trace["meta"]["run"] for trace in chart.traces} == {each.number}
        boards = len(np.unique(each.run.outcome.iterations["batch"]))
        whole = [sum(values) for values in zip(*(trace["y"] for trace in chart.traces), strict=True)]
        assert max(whole) <= 96.001 * boards
        assert chart.layout["shapes"][0]["y0"] == pytest.approx(96 * boards)
    for trace, each in zip(moved.traces, runs, strict=True):
        memory = each.run.outcome.memory
        assert memory is not None
        total = sum(trace["y"]) * each.run.outcome.end_s / SLICES
        assert total == pytest.approx(memory["moved_bytes"].sum() / 1e9, rel=1e-4)
