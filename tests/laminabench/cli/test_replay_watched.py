"""A live replay as others see it while it runs: the file beside its Run, and what Prometheus reads."""

from __future__ import annotations

import json
import os
import re
import socket
import urllib.request
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parsed_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parsed_text

from laminabench.runs.live import End, FaultEvent, Header, Line, Moment, alive, read_live
from laminabench.util.errors import Terminated
from laminabench.workflows.replay import metrics_page

SMALL = ("--trace", "azure-conv", "--offline", "--num-requests", "60", "--scale-lengths", "0.5")
LIVE = ("replay", *SMALL, "--model", "llama-tiny", "--backend", "live", "--max-num-seqs", "16")
OPENMETRICS = "application/openmetrics-text; version=1.0.0"


@pytest.fixture
def meanwhile(pretended: dict[str, Any], made_up_engine: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """What is to be done in an engine's n-th step."""
    del pretended
    step = made_up_engine.step

    def at(number: int, act: Any) -> None:
        left = [number]

        def stepping(engine: Any) -> Any:
            left[0] -= 1
            if left[0] == 0:
                act()
            return step(engine)

        monkeypatch.setattr(made_up_engine, "step", stepping)

    return at


def lines(path: str = "kept.live") -> list[Line]:
    return read_live(Path(path))[0]


def stopped(error: Callable[[], BaseException]) -> Any:
    def act() -> None:
        raise error()

    return act


def test_the_file_is_there_while_the_clock_runs_and_no_longer(as_json: Any, meanwhile: Any) -> None:
    observed: list[Line] = []
    meanwhile(300, lambda: observed.extend(lines()))
    facts = as_json(*LIVE, "--out", "kept", "--slo-tbt-ms", "50", "-q")
    header, *moments = observed
    assert isinstance(header, Header)
    assert alive(header)
    assert header.pid == os.getpid()
    assert (header.trace, header.requests, header.tokens) == ("azure-conv", 60, facts["tokens_generated"])
    assert (header.system, header.model, header.mode, header.slo_tbt_ms) == (
        *("lamina", "llama-tiny", "saturate"),
        50.0,
    )
    assert header.workers == ("model 0", "attention 0")
    assert (header.kv_capacity_tokens or 0) > 0
    assert header.command[:2] == ("laminabench", "replay")
    assert "--out" not in header.command
    assert all(isinstance(each, Moment) for each in moments)
    assert len(moments) > 1
    assert (
        sorted(path.name for path in Path().iterdir()) == ["home", "kept"] or not Path("kept.live").exists()
    )
    assert not list(Path().glob("*.live"))


def test_without_a_run_to_come_there_is_no_file(shell: Any, meanwhile: Any) -> None:
    meanwhile(20, stopped(KeyboardInterrupt))
    assert shell(*LIVE, "--no-out", "-q")[0] == 130
    assert not list(Path().rglob("*.live"))


@pytest.mark.parametrize(
    ("error", "state", "why"),
    [
        (KeyboardInterrupt, "interrupted", "Ctrl-C"),
        (Terminated, "interrupted", "terminated"),
        (
            partial(OSError, 28, "No space left on device"),
            "failed",
            "OSError: [Errno 28] No space left on device",
        ),
    ],
)
def test_a_resumable_replay_says_how_and_continues_in_a_new_file(
    shell: Any, as_json: Any, meanwhile: Any, error: Callable[[], BaseException], state: str, why: str
) -> None:
    chaos = ("--chaos", "model:0@tokens=20")
    meanwhile(100, stopped(error))
    assert shell(*LIVE, "--out", "kept", "-q", *chaos)[0] not in (0, 70)
    before = lines()
    end, made = before[-1], [each for each in before if isinstance(each, Moment)]
    assert isinstance(end, End)
    assert (end.state, end.why, end.resume) == (state, why, "laminabench replay --resume kept")
    observed: list[Line] = []
    meanwhile(1, lambda: observed.extend(lines()))
    as_json("replay", "--resume", "kept", "-q")
    # What was before, and then where it was.
    header, blow, fault, first = observed
    assert isinstance(header, Header)
    assert isinstance(blow, FaultEvent)
    assert isinstance(fault, FaultEvent)
    assert isinstance(first, Moment)
    assert (blow.struck, fault.struck, first.workers_lost) == ("kill", None, 0)
    assert first.tokens >= made[-1].tokens > 0
    assert not Path("kept.live").exists()


def read(url: str, accept: str) -> tuple[str, str]:
    request = urllib.request.Request(url, headers={"accept": accept})
    with urllib.request.urlopen(request, timeout=30) as answer:
        return answer.headers["content-type"], answer.read().decode()


def test_prometheus_reads_what_the_replay_reports(
    shell: Any, meanwhile: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    pages: list[tuple[str, str]] = []

    def act() -> None:
        match = re.search(r"metrics are at (http://127\.0\.0\.1:\d+/metrics)", capsys.readouterr().err)
        assert match
        pages.extend([read(match[1], OPENMETRICS), read(match[1], "text/plain")])

    meanwhile(300, act)
    chaos = ("--chaos", "model:0@tokens=20")
    code, out, err = shell(*LIVE, "--out", "kept", "--metrics-port", "0", *chaos, "--json")
    assert code == 0, err
    (kind, page), (plain, text) = pages
    assert kind.startswith("application/openmetrics-text; version=1.0.0")
    assert plain.startswith("text/plain")
    assert list(parsed_text(text))
    samples = {
        (sample.name, sample.labels.get("le")): sample
        for family in parsed_openmetrics(page)
        for sample in family.samples
    }
    prefix = "laminabench_replay_"
    reported = {
        name.removeprefix(prefix): sample.value for (name, le), sample in samples.items() if le is None
    }
    about = samples[f"{prefix}info", None].labels
    assert (about["trace"], about["system"], about["model"]) == ("azure-conv", "lamina", "llama-tiny")
    assert (about["deployment"], about["backend"], about["mode"]) == ("1xcpu+1xcpu", "live", "saturate")
    assert (reported["faults_total"], reported["faults_injected_total"], reported["workers_lost"]) == (
        1,
        1,
        0,
    )
    assert reported["requests"] == 60
    assert reported["requests_running"] <= 16
    assert reported["tokens_total"] <= json.loads(out)["tokens_generated"]
    assert 0 < reported["recent_tbt_p50_seconds"] <= reported["recent_tbt_p99_seconds"]
    # Every time between tokens that there was, up to the last Moment.
    assert reported["time_between_tokens_seconds_count"] >= reported["tokens_total"] - 60
    assert 0 < reported["kv_tokens_used"] <= reported["kv_tokens_capacity"]
    # Its port is not of what was replayed.
    assert "metrics-port" not in (Path("kept") / "run.json").read_text()


def test_a_taken_port_is_reported_before_anything_starts(refused: Any, pretended: Any) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = str(other.getsockname()[1])
        refused("choose another --metrics-port", *LIVE, "--metrics-port", port)
    assert "engine" not in pretended
    assert not list(Path().glob("kept*"))


def test_it_is_for_live_replays_and_only_one(refused: Any) -> None:
    refused("--metrics-port is for live lamina", "replay", *SMALL, "--metrics-port", "0")
    many = ("sweep", *SMALL, "--vary", "batches=1,2")
    refused("it tells of one replay", *many, "--metrics-port", "0")


def test_a_package_that_is_missing_is_named(
    refused: Any, pretended: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(name: str) -> Any:
        raise ModuleNotFoundError(name=name)

    monkeypatch.setattr(metrics_page, "importlib", SimpleNamespace(import_module=missing))
    refused("pip install", *LIVE, "--metrics-port", "0")
    assert "engine" not in pretended
