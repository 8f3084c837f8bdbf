"""Files that the tools wrote, as Runs: their numbers are the tools' own, what they do not say is unknown."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec import structs

from laminabench.catalog.deployment import parse_deployment
from laminabench.catalog.hardware import priced_devices
from laminabench.interchange.benchmark import Benchmark, moment, seconds
from laminabench.interchange.tools import read, tool_of
from laminabench.runs.manifest import Host
from laminabench.runs.read import read_run
from laminabench.runs.status import DONE, FAILED, UNFINISHED
from laminabench.runs.summary import Requests
from laminabench.util.errors import UserError


def test_the_tool_is_known_by_what_is_in_the_file(tool: str, result: Path) -> None:
    assert tool_of(result) == tool
    if result.is_dir():
        assert {tool_of(path) for path in result.iterdir()} == {tool}


@pytest.mark.parametrize(
    "name", ["vllm.json", "vllm-rate.json", "vllm-failed.json", "aiperf", "aiperf-cancelled", "guidellm.json"]
)
def test_the_summary_that_a_tool_states_is_what_its_requests_come_to(run_of: Any, name: str) -> None:
    result: Benchmark = run_of(name).benchmark
    assert len(result.stated) >= 14
    assert result.stated.keys() <= result.recounted.keys()
    assert result.differences() == []


def test_sums_that_differ_from_stated_ones_are_noted(changed: Any) -> None:
    (result,) = read(changed("vllm.json", lambda message: message.update(mean_ttft_ms=1.0)))
    (reported,) = result.differences()
    assert "mean_ttft_ms 1," in reported


# Numbers of the files themselves, in ms: (mean TTFT, mean of a request's time of a token, tokens a second).
STATED = {
    "vllm.json": (33.820466, 6.511980, 519.617166),
    "aiperf": (102.864082, 26.796350, 130.774165),
    "guidellm.json": (140.689452, 40.325339, 87.400528),
}


@pytest.mark.parametrize(("name", "stated"), STATED.items())
def test_our_metrics_of_the_whole_run_are_theirs(run_of: Any, name: str, stated: Any) -> None:
    made = run_of(name)
    assert made.summary.requests == Requests(completed=12)
    assert made.summary.tokens_generated == 288
    calls = made.benchmark.calls
    ttft_ms, tpot_ms, rate = stated
    assert 1e3 * calls.waited_s().mean() == pytest.approx(ttft_ms, rel=1e-6)
    assert 1e3 * calls.per_token_s().mean() == pytest.approx(tpot_ms, rel=1e-5)
    assert made.summary.whole_run.throughput_tokens_per_s == pytest.approx(rate, rel=1e-4)
    # All have as many tokens, so the mean over tokens is that over requests.
    assert made.summary.whole_run.tbt_ms.mean == pytest.approx(tpot_ms, rel=1e-5)
    assert made.summary.counted.completion_tokens.other == 0
    assert made.summary.counted.other_length == 0


def test_what_is_known_and_what_is_not(run_of: Any, tool: str, result: Path, tmp_path: Path) -> None:
    (actual,) = read(result)
    made = run_of({"vllm-bench": "vllm.json", "aiperf": "aiperf", "guidellm": "guidellm.json"}[tool])
    made.write(tmp_path / "run")
    run = read_run(tmp_path / "run")
    manifest, known = run.manifest, run.manifest.deployment.facts["imported"]
    assert (manifest.backend, manifest.system, manifest.model_name) == ("live", "openai", "model")
    assert (manifest.workload.mode, manifest.workload.concurrency) == ("closed", 4)
    assert known["tool"] == actual.tool
    assert known["version"] == {"aiperf": "0.13.0", "guidellm": "0.8.1"}.get(tool)
    assert len(known["sha256"]) == 64
    assert known["sha256"] == manifest.trace.sha256
    # The machine and its price are unknown.
    assert structs.replace(manifest.host, platform=None) == Host()
    assert manifest.summary.cost.usd_per_hour is None
    assert manifest.summary.mean_waiting > 0
    assert np.isnan(run.outcome.calls["due_s"]).all()
    assert (run.outcome.calls["status_code"] == -1).all()
    assert np.isfinite(run.outcome.calls["headers_s"]).all() == (tool == "aiperf")
    counted = run.outcome.calls["completion_counted"]
    assert counted.tolist() == [24 if tool == "aiperf" else -1] * 12
    # aiperf sees only pieces that have text, guidellm only the first and the last.
    assert run.outcome.calls["even"].all() == (tool != "vllm-bench")
    assert run.outcome.calls["even"].any() == (tool != "vllm-bench")


def test_a_rate_with_a_limit_of_concurrency_is_open(changed: Any) -> None:
    (result,) = read(changed("vllm-rate.json", lambda message: message.update(max_concurrency=4)))
    assert (result.mode, result.concurrency) == ("open", None)


def test_hardware_and_limits_are_the_users(run_of: Any) -> None:
    hardware = parse_deployment("4xh100", priced_devices(["h100=2.5"]))
    made = run_of("vllm.json", hardware=hardware, model="mine", slo_tbt_ms=7.0, slo_ttft_ms=30.0)
    assert made.summary.cost.usd_per_hour == 10.0
    assert made.manifest.deployment.name == "4xh100"
    assert made.manifest.model_name == "mine"
    assert made.summary.slo.tbt_ms == 7.0
    assert 0 < made.summary.slo.ttft_attainment < 1


def test_one_that_failed_and_some_that_were_cancelled(run_of: Any) -> None:
    failed = run_of("vllm-failed.json")
    assert failed.summary.requests == Requests(completed=11, failed=1)
    assert failed.summary.attempts.by_error == {"Bad Request": 1}
    assert failed.benchmark.calls.status.tolist().count(FAILED) == 1
    stopped = run_of("aiperf-cancelled")
    assert stopped.summary.requests == Requests(completed=8, unfinished=4)
    assert stopped.benchmark.calls.status.tolist().count(UNFINISHED) == 4
    assert (stopped.manifest.workload.mode, stopped.manifest.workload.concurrency) == ("open", None)
    # When a request was due aiperf does not say.
    assert stopped.summary.lateness_ms.max is None


def test_a_rate_is_an_open_replay_and_metadata_is_retained(run_of: Any) -> None:
    made = run_of("vllm-rate.json")
    assert (made.benchmark.mode, made.benchmark.concurrency) == ("open", None)
    assert made.benchmark.more["request_rate"] == 10
    assert made.benchmark.more["metadata"] == {"gpu": "none"}
    assert made.summary.window.kind == "arrivals"


def test_several_benchmarks_of_one_report(written: Any) -> None:
    result = read(written("guidellm-two.json"))
    assert [(each.concurrency, each.part) for each in result] == [(1, "1-concurrent"), (3, "2-concurrent")]
    assert [len(each.calls) for each in result] == [5, 5]
    assert all(not each.differences() for each in result)


def test_several_results_of_one_file(written: Any, tmp_path: Path) -> None:
    line = written("vllm.json").read_text().strip()
    path = tmp_path / "appended.json"
    path.write_text(f"{line}\n{line}\n")
    assert [each.part for each in read(path)] == ["result 1", "result 2"]


def test_a_request_that_guidellm_never_saw_begin(changed: Any) -> None:
    def cut_off(report: Any) -> None:
        requests = report["benchmarks"][0]["requests"]
        row = requests["successful"].pop()
        row["info"]["timings"] |= {"first_token_iteration": None, "last_token_iteration": None}
        requests["incomplete"] = [row]
        report["benchmarks"][0]["metrics"]["request_totals"] |= {"successful": 11, "incomplete": 1}

    (result,) = read(changed("guidellm.json", cut_off))
    cut = result.calls.status.tolist().index(UNFINISHED)
    assert math.isnan(result.calls.first_s[cut])
    assert result.calls.output_tokens[cut] == 0
    assert result.calls.status.tolist().count(DONE) == 11


def test_what_aiperf_leaves_out_and_a_password_in_a_url(written: Any, tmp_path: Path) -> None:
    from laminabench.interchange.importing import Given, imported

    rows = [
        json.loads(line) for line in (written("aiperf") / "profile_export.jsonl").read_text().splitlines()
    ]
    rows[0]["metadata"]["benchmark_phase"] = "warmup"
    rows[1]["metadata"]["context_overflow_skip"] = True
    (tmp_path / "profile_export.jsonl").write_text("\n".join(map(json.dumps, rows)))
    message = json.loads((written("aiperf") / "profile_export_aiperf.json").read_text())
    message["input_config"]["endpoint"]["urls"] = ["http://me:secret@example.test:80"]
    (tmp_path / "profile_export_aiperf.json").write_text(json.dumps(message))
    (result,) = read(tmp_path)
    assert len(result.calls) == 10
    made = imported(result, tmp_path, Given())
    assert made.manifest.deployment.name == "unknown server"
    assert "secret" not in str(made.manifest)


# What is refused


def set_at(document: Any, value: Any, *place: Any) -> None:
    for key in place[:-1]:
        document = document[key]
    document[place[-1]] = value


TIMINGS = ("benchmarks", 0, "requests", "successful", 0, "info", "timings")
IMPOSSIBLE = [
    ("vllm.json", float("-inf"), ("output_lens", 0)),
    ("vllm.json", 2**31, ("input_lens", 1)),
    ("vllm.json", -1, ("input_lens", 1)),
    ("vllm.json", 10**30, ("ttfts", 0)),
    ("vllm.json", 2**63, ("itls", 0, 0)),
    ("vllm.json", -0.1, ("itls", 0, 0)),
    ("vllm.json", 1e30, ("duration",)),
    ("vllm.json", 0, ("duration",)),
    ("vllm.json", 10**400, ("start_times", 0)),
    ("guidellm.json", True, (*TIMINGS, "last_token_iteration")),
    ("guidellm.json", 1.0, (*TIMINGS, "last_token_iteration")),
    ("guidellm.json", 1e30, (*TIMINGS, "token_iterations")),
    ("guidellm.json", 2**31, (*TIMINGS[:-2], "prompt_tokens")),
]


@pytest.mark.parametrize(("name", "value", "place"), IMPOSSIBLE)
def test_numbers_that_no_benchmark_has(changed: Any, name: str, value: Any, place: Any) -> None:
    with pytest.raises(UserError, match="import-damaged"):
        read(changed(name, lambda message: set_at(message, value, *place)))


AIPERF = [
    (float("inf"), ("metrics", "output_sequence_length", "value")),
    (2**31, ("metrics", "input_sequence_length", "value")),
    (True, ("metrics", "time_to_first_token", "value")),
    (1e30, ("metrics", "time_to_first_token", "value")),
    (10**30, ("metadata", "request_start_ns")),
]


@pytest.mark.parametrize(("value", "place"), AIPERF)
def test_numbers_that_no_request_of_aiperf_has(written: Any, tmp_path: Path, value: Any, place: Any) -> None:
    first, *others = (written("aiperf") / "profile_export.jsonl").read_text().splitlines()
    row = json.loads(first)
    set_at(row, value, *place)
    (tmp_path / "profile_export.jsonl").write_text("\n".join([json.dumps(row), *others]))
    with pytest.raises(UserError, match="import-damaged"):
        read(tmp_path)


def test_no_zero_has_a_sign() -> None:
    assert [math.copysign(1, number(-0.0, "it")) for number in (seconds, moment)] == [1, 1]


def test_sums_alone_are_refused_with_the_flag_that_keeps_requests(written: Any, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="import-aggregates-only") as refused:
        read(written("vllm-plain.json"))
    assert "--save-detailed" in refused.value.sentence
    summary = tmp_path / "profile_export_aiperf.json"
    summary.write_text((written("aiperf") / summary.name).read_text())
    with pytest.raises(UserError, match="import-aggregates-only") as refused:
        read(summary)
    assert "--export-level records" in refused.value.sentence


def test_only_some_of_the_requests(changed: Any) -> None:
    def sampled(report: Any) -> None:
        del report["benchmarks"][0]["requests"]["successful"][3:]

    with pytest.raises(UserError, match="import-sampled"):
        read(changed("guidellm.json", sampled))


def test_no_times_of_sending(changed: Any) -> None:
    with pytest.raises(UserError, match="import-no-start-times"):
        read(changed("vllm.json", lambda message: message.pop("start_times") and message))


def test_answers_that_were_not_streamed(written: Any, tmp_path: Path) -> None:
    rows = [
        json.loads(line) for line in (written("aiperf") / "profile_export.jsonl").read_text().splitlines()
    ]
    for row in rows:
        del row["metrics"]["time_to_first_token"]
    (tmp_path / "profile_export.jsonl").write_text("\n".join(map(json.dumps, rows)))
    with pytest.raises(UserError, match="import-not-streamed"):
        read(tmp_path)


def test_an_unnamed_model(written: Any, tmp_path: Path) -> None:
    from laminabench.interchange.importing import Given, imported

    (tmp_path / "profile_export.jsonl").write_text((written("aiperf") / "profile_export.jsonl").read_text())
    (result,) = read(tmp_path)
    assert (result.version, result.stated) == ("", {})
    with pytest.raises(UserError, match="import-no-model"):
        imported(result, tmp_path, Given())
    assert imported(result, tmp_path, Given("mine")).manifest.model_name == "mine"


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("", "import-not-json"),
        ("{", "import-not-json"),
        ("[]", "import-unknown-tool"),
        ('{"a": 1}', "import-unknown-tool"),
        ("[" * 100_000, "import-not-json"),
    ],
)
def test_a_file_of_an_unknown_tool(tmp_path: Path, text: str, code: str) -> None:
    path = tmp_path / "file.json"
    path.write_text(text)
    with pytest.raises(UserError, match=code):
        read(path)


def test_what_is_no_file(tmp_path: Path) -> None:
    for path, code in ((tmp_path / "none", "file-not-readable"), (tmp_path, "import-unknown-tool")):
        with pytest.raises(UserError, match=code):
            read(path)
    (tmp_path / "bytes.json").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UserError, match="import-not-json"):
        read(tmp_path / "bytes.json")


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("vllm.json", lambda message: message["ttfts"].pop() and message),
        ("vllm.json", lambda message: message | {"ttfts": ["x"] * 12}),
        ("vllm.json", lambda message: message | {"start_times": [0.0] * 12}),
        ("vllm.json", lambda message: message | {"duration": None}),
        ("guidellm.json", lambda message: message | {"benchmarks": []}),
        ("guidellm.json", lambda message: message | {"benchmarks": [{}]}),
        ("guidellm.json", lambda message: message | {"benchmarks": [7]}),
    ],
)
def test_a_damaged_file(changed: Any, name: str, change: Any) -> None:
    with pytest.raises(UserError, match="import-damaged"):
        read(changed(name, change))


@pytest.mark.parametrize(
    "line", ["7", "{}", '{"metadata": {}, "metrics": {}}', '{"metadata": 1, "metrics": []}']
)
def test_a_damaged_line(tmp_path: Path, line: str) -> None:
    (tmp_path / "profile_export.jsonl").write_text(line)
    with pytest.raises(UserError, match="import-damaged"):
        read(tmp_path)
