from __future__ import annotations

import json
from pathlib import Path

import msgspec
import numpy as np
import pandas as pd
import pytest

import laminabench as lb
from laminabench.api.run import Run
from laminabench.requests.replay import ReplayRequest
from laminabench.runs.read import read_run
from laminabench.workflows.replay import run as run_request


def test_numbers_are_the_summarys(lamina: lb.Run) -> None:
    assert not lamina.measured
    assert lamina.tbt.p99 == lamina.summary.tbt_ms.p99
    assert lamina.ttft is None
    assert lamina.throughput_tokens_per_s == lamina.summary.throughput_tokens_per_s
    assert lamina.goodput_tokens_per_s == lamina.attainment.goodput_tokens_per_s
    assert lamina.cost.usd_per_hour == pytest.approx(40.64)


def test_nothing_is_written_unless_requested(nowhere: Path) -> None:
    lb.replay("profile:azure-conv", num_requests=20)
    assert list(nowhere.iterdir()) == []
    saved = lb.replay("profile:azure-conv", num_requests=20, out="mine")
    assert saved.path == Path("mine")
    assert read_run(Path("mine")).manifest.summary == saved.summary


def test_it_is_what_the_command_replays() -> None:
    request = ReplayRequest(
        trace="profile:azure-conv", num_requests=50, mode="open", price=("h100=3",), directory="there"
    )
    result = run_request(request)
    own = lb.replay("profile:azure-conv", num_requests=50, mode="open", price={"h100": 3})
    assert own.summary == result.replayed.summary
    assert own.manifest.request == read_run(Path("there")).manifest.request


def test_saved_and_read_it_is_the_same(lamina: lb.Run, nowhere: Path) -> None:
    assert lamina.path is None
    lamina.save("a")
    again = lb.read("a")
    assert again.path == Path("a")
    assert again.summary == lamina.summary
    pd.testing.assert_frame_equal(again.requests, lamina.requests)
    pd.testing.assert_frame_equal(again.iterations, lamina.iterations)
    assert repr(again) == repr(lamina)
    (nowhere / "a" / "log.txt").write_text("beside")
    copied = again.save("b")
    assert copied.path == Path("b")
    assert (nowhere / "b" / "log.txt").read_text() == "beside"
    assert lb.read("b").summary == lamina.summary


def test_the_tables(lamina: lb.Run) -> None:
    requests, iterations = lamina.requests, lamina.iterations
    assert len(requests) == 200
    assert (requests.status == "done").all()
    assert iterations["size"].sum() == requests.output_tokens.sum() == lamina.summary.tokens_generated
    assert set(requests.columns) == set(requests.attrs["columns"])
    requests.loc[0, "output_tokens"] = 0  # a copy of its own: the Run keeps what it has
    assert lamina.table("x").output_tokens[0] > 0


def test_what_never_came_to_pass_is_missing() -> None:
    result = lb.replay(
        pd.DataFrame({"prompt_tokens": [10, 2_000_000], "output_tokens": [5, 5]}),
        system="vllm",
        kv_tokens=4000,
    )
    assert result.summary.requests.rejected == 1
    rejected = result.requests.iloc[1]
    assert rejected.status == "rejected"
    assert pd.isna(rejected.finished_s)
    assert pd.isna(rejected.first_iteration)


def test_prompts_have_a_ttft() -> None:
    result = lb.replay(
        "profile:azure-conv",
        num_requests=30,
        system="vllm",
        mode="open",
        prefill="colocated",
        slo_ttft_ms=500,
    )
    assert result.ttft
    assert (result.ttft.p99 or 0) > 0
    assert result.iterations.prompt_tokens.sum() > 0
    assert "ms TTFT p99" in result._repr_html_()


def test_a_trace_in_every_form() -> None:
    frame = lb.traces.load("profile:azure-conv", num_requests=60)
    frame.to_csv("mine.csv", index=False)
    trace = lb.traces.from_frame(frame, name="mine")
    forms = [frame, "mine.csv", Path("mine.csv"), trace]
    results = [lb.replay(each, mode="open", num_requests=40, system="lamina") for each in forms]
    assert len({msgspec.json.encode(each.summary) for each in results}) == 1
    assert [each.manifest.trace.name for each in results] == ["dataframe", "mine", "mine", "mine"]
    assert all(each.manifest.trace.requests == 40 for each in results)


@pytest.mark.parametrize(
    ("frame", "code"),
    [
        (pd.DataFrame(), "trace-empty"),
        (pd.DataFrame({"a": [1]}), "trace-no-column"),
        (pd.DataFrame({"prompt_tokens": [0], "output_tokens": [1]}), "trace-bad-row"),
        (pd.DataFrame({"prompt_tokens": [1.5], "output_tokens": [1]}), "trace-bad-row"),
        (pd.DataFrame({"prompt_tokens": ["x", 1], "output_tokens": [1, 1]}), "trace-frame"),
    ],
)
def test_a_frame_that_is_no_trace(frame: pd.DataFrame, code: str) -> None:
    with pytest.raises(lb.UserError, match=code) as error:
        lb.replay(frame)
    assert "dataframe" in str(error.value)
    assert "/tmp" not in str(error.value)


def test_what_is_no_trace_at_all() -> None:
    with pytest.raises(lb.UserError, match="trace-kind"):
        lb.replay(7)  # type: ignore[arg-type]


def test_a_page_a_picture_and_a_timeline(lamina: lb.Run) -> None:
    page = lamina.report("run.html", title="Mine & yours").read_text()
    assert "<title>Mine &amp; yours</title>" in page
    assert lamina.plot()._repr_png_().startswith(b"\x89PNG")
    assert lamina.plot().save("run.svg").read_text().startswith("<?xml")
    assert len(lamina.plot().figure.axes) == 2
    drawn = json.loads(lamina.timeline("run.json", (1.0, 1.5)).read_text())
    starts = [each["ts"] for each in drawn["traceEvents"] if each["ph"] == "X"]
    assert min(starts) > 0.9e6
    assert max(starts) < 1.6e6


def test_a_timeline_is_known_right_after_the_replay_only(lamina: lb.Run) -> None:
    lamina.save("kept")
    with pytest.raises(lb.UserError, match="timeline-unknown"):
        lb.read("kept").timeline("x.json")
    with pytest.raises(lb.UserError, match="timeline-bad-suffix"):
        lamina.timeline("x.txt")


def test_a_hostile_name_is_shown_and_not_obeyed() -> None:
    frame = pd.DataFrame({"prompt_tokens": [10] * 4, "output_tokens": [5] * 4})
    trace = lb.traces.from_frame(frame, name="<script>alert(1)</script>[bold]\x1b[31m")
    html = lb.replay(trace)._repr_html_()
    assert "<script" not in html
    assert "\x1b" not in html
    assert "&lt;script&gt;" in html


def test_a_partial_run_says_so_first(lamina: lb.Run) -> None:
    from laminabench.runs.manifest import Partial

    table = lamina.table("x")
    partial = msgspec.structs.replace(table.manifest, partial=Partial(why="it was stopped", at_s=3.0))
    stopped = Run(type(table)(table.directory, partial, *_rest(table)), path=None)
    assert "PARTIAL" in repr(stopped)
    html = stopped._repr_html_()
    assert html.index("PARTIAL") < html.index("<dl>")


def _rest(table: object) -> tuple[object, ...]:
    return tuple(getattr(table, name) for name in ("outcome", "prompt_tokens", "output_tokens"))


def test_progress_is_on_stderr_if_requested(capsys: pytest.CaptureFixture[str]) -> None:
    today = {"model": "llama3-70b", "num_requests": 20, "system": "h2m2", "deployment": "1xh2m2"}
    quiet = lb.replay("profile:azure-conv", **today)  # type: ignore[arg-type]
    assert capsys.readouterr() == ("", "")
    reported = lb.replay("profile:azure-conv", progress=True, **today)  # type: ignore[arg-type]
    assert quiet.notes == reported.notes != ()
    assert capsys.readouterr().err.splitlines()[0] == f"laminabench: {reported.notes[0]}"


def test_traces_as_frames() -> None:
    names = lb.traces.list()
    assert names.loc["azure-conv", "requests"] == 19366
    frame = lb.traces.load("profile:azure-conv", num_requests=7)
    assert frame.shape == (7, 3)
    assert np.allclose(lb.traces.from_frame(frame).arrival_s, frame.arrival_s)


@pytest.mark.long  # a real engine
def test_live_it_is_measured() -> None:
    result = lb.replay("profile:azure-conv", backend="live", num_requests=4, scale_lengths=0.02)
    assert result.measured
    assert "live, measured" in repr(result)
    assert '<span class="badge measured">' in result._repr_html_()
    assert result.iterations.network_s.isna().all()
