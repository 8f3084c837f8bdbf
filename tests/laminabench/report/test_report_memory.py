"""A page with Runs of boards shows what their memories held and moved, and of other Runs nothing new."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from laminabench.report.memory import SLICES, memory_charts, memory_table
from laminabench.report.page import page, report
from laminabench.report.shown import shown
from laminabench.runs.read import Run

BoardRun = Callable[..., Run]


@pytest.fixture
def board_run(keep: Callable[..., Run], on_boards: Callable[..., Any]) -> BoardRun:
    def made(system: str = "lamina", **more: Any) -> Run:
        run = keep(system)
        return replace(run, outcome=on_boards(run.outcome, **more))

    return made


def test_without_boards_there_is_no_section(keep: Callable[..., Run]) -> None:
    runs = shown([keep()])
    assert not memory_table(runs)
    assert not memory_charts(runs)
    assert "<h2>Memory</h2>" not in page(report(runs, None, None))


def test_boards_are_shown_beside_others(keep: Callable[..., Run], board_run: BoardRun) -> None:
    runs = shown([keep("vllm"), board_run()])
    found = page(report(runs, None, None))
    assert "<h2>Memory</h2>" in found
    assert 'id="hbm-1"' in found
    assert 'id="hbm-0"' not in found
    assert 'id="moved"' in found
    (table,) = memory_table(runs)
    assert runs[0].name not in table
    assert runs[1].name in table


def test_the_table_says_what_the_summary_does(board_run: BoardRun) -> None:
    runs = shown([board_run(), board_run("vllm", seed=2)])
    (table,) = memory_table(runs)
    cells = {
        title: re.findall("<td>(.*?)</td>", row)
        for title, row in re.findall(r'<tr><th scope="row">(.*?)</th>(.*?)</tr>', table)
    }
    first, second = (each.recorded.summary.memory for each in runs)
    assert cells["HBM in use, most"] == [f"{each.hbm_share.max:.1%}" for each in (first, second)]
    assert cells["Changes of mapping"] == [f"{each.mapping_changes:,}" for each in (first, second)]
    assert cells["LPDDR side busy"] == [f"{each.lpddr_busy_share:.1%}" for each in (first, second)]
    moved = first.moved_bytes.max / 1e9
    assert cells["Moved an iteration, most"][0] == f"{moved:#.4g} GB"


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


def test_plotly_knows_every_property(board_run: BoardRun) -> None:
    from plotly import graph_objects

    for chart in memory_charts(shown([board_run()])):
        figure = chart.figure()
        graph_objects.Figure(data=figure["data"], layout=figure["layout"])  # an unknown one is an error


def test_boards_on_which_nothing_ran_have_a_page(board_run: BoardRun) -> None:
    run = board_run()
    assert run.outcome.memory is not None
    never = dict.fromkeys(("admitted_s", "first_token_s", "finished_s"), np.full(400, np.nan))
    never |= dict.fromkeys(("first_iteration", "last_iteration", "batch"), np.full(400, -1))
    outcome = replace(
        run.outcome,
        requests=run.outcome.requests | never,
        iterations={name: values[:0] for name, values in run.outcome.iterations.items()},
        memory={name: values[:0] for name, values in run.outcome.memory.items()},
        end_s=0.0,
    )
    assert "<h2>Memory</h2>" in page(report(shown([replace(run, outcome=outcome)]), None, None))
