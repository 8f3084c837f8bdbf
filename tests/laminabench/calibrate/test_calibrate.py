"""`laminabench calibrate` on a model that takes next to no time, and the workers that it measures."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from laminabench import calibrate
from laminabench.calibrate import front_end, terms, workers
from laminabench.catalog.cost_file import load_costs
from laminabench.cli.main import run

CORES = len(os.sched_getaffinity(0))


@pytest.fixture
def command(
    tiny: Callable[[], Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Callable[..., tuple[object, dict[str, Any]]]:
    """The command with the fewest points: its exit code, and what it prints."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(tiny().to_dict() | {"dtype": "bfloat16"}))
    monkeypatch.setattr(terms.Model, "columns", (1, 4))
    monkeypatch.setattr(terms.Prompts, "columns", (0, 64))
    monkeypatch.setattr(terms, "KV_TOKENS", (16, 256))
    canned = {("trip", 1): [1e-5] * 3, ("trip", 4): [2e-5] * 3}
    canned |= {("boundary", 1): [1e-4] * 3, ("boundary", 4): [1e-4] * 3}
    monkeypatch.setattr(workers, "measure", lambda *_: canned)
    kinds = ("taken in", "begun", "out", "between steps")
    served = {(kind, size): [1e-3 * size] * 3 for kind in kinds for size in (1, 4)}
    monkeypatch.setattr(front_end, "measure", lambda *_: served)

    def call(*words: str) -> tuple[object, dict[str, Any]]:
        with pytest.raises(SystemExit) as ended:
            run(["calibrate", "--model", "config.json", "--seconds", "0.1", "--json", *words])
        return ended.value.code, json.loads(capsys.readouterr().out)

    return call


def test_a_set_is_written_that_replays_take(
    command: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    before = os.sched_getaffinity(0)
    code, result = command("--name", "my-core", "-o", "set.toml")
    assert code == 0
    assert os.sched_getaffinity(0) == before
    assert (result["set"], result["rounds"]) == ("set.toml", 3)
    points = {row["term"]: (row["points"], row["repeats"]) for row in result["terms"]}
    assert points["slices"] == (2, 3)
    assert points["matrix products"] == (2 * 5, 3)
    assert points["decode attention"] == (2 * 9 + 4, 3)
    assert points["attention of prompts"] == (2 * 3, 3)
    costs = load_costs("set.toml")
    assert set(costs.devices) == {"my-core"}
    assert CORES < 2 or (costs.server and costs.server.out_s) == pytest.approx(2.5e-3)
    assert CORES < 2 or result["server"]["out_s"] == pytest.approx(2.5e-3)
    assert CORES < 2 or costs.networks["shm"].rtt_s == pytest.approx(1e-5 - 1e-5 / 3, rel=1e-3)
    monkeypatch.setenv("LAMINABENCH_HOME", str(tmp_path / "home"))
    words = (
        "replay --trace azure-code --offline --num-requests 20 --no-out --model config.json --costs set.toml"
    )
    with pytest.raises(SystemExit) as ended:
        run([*words.split(), "--deployment", "1xmy-core+1xmy-core", "--json"])
    assert ended.value.code == 0, capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("--name", "h100"), "calibrate-name"),
        (("--name", "Mine.1"), "calibrate-name"),
        (("-o", "set.json"), "calibrate-suffix"),
        (("-o", "config.json/set.toml"), "file-not-writable"),
        (("--model", "nowhere.json"), "model-config-unreadable"),
        (("--model", "fp32.json"), "calibrate-dtype"),
        (("--model", "mixtral-8x7b"), "model-not-plain"),
        (("--deployment", "1xcpu"), "usage"),
        (("--system", "vllm", "--ray", "auto"), "usage"),
    ],
)
def test_mistakes_are_reported_before_anything_is_measured(
    command: Any, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], code: str
) -> None:
    monkeypatch.setattr(calibrate, "in_rounds", None)
    Path("fp32.json").write_text(Path("config.json").read_text().replace("bfloat16", "float32"))
    exit_code, result = command(*words)
    assert (exit_code, result["error"]["code"]) == (2, code)


def test_an_interrupt_leaves_nothing(command: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(calibrate, "in_rounds", interrupted)
    before = os.sched_getaffinity(0)
    assert command("-o", "set.toml")[0] == 130
    assert os.sched_getaffinity(0) == before
    assert [path.name for path in tmp_path.iterdir()] == ["config.json"]


@pytest.mark.skipif(CORES < 2, reason="model worker and attention worker have a core each")
@pytest.mark.usefixtures("shared_machine")
def test_workers_are_measured_by_their_own_records(tiny: Callable[[], Any]) -> None:
    result = workers.measure(tiny(), {1: 1e-3, 4: 1e-3}, 0.0)
    assert {point: len(taken) for point, taken in result.items()} == {
        # The first iteration of each batch is not counted: requests join in it.
        (kind, batch): workers.FEWEST_STEPS
        for kind in ("trip", "boundary", "slices", "attention")
        for batch in (1, 4)
    }
    # A worker that is interrupted between sending and noting when makes a trip shorter than none.
    least = {"trip": -10, "boundary": 0, "slices": 0, "attention": 0}
    for (kind, _), taken in result.items():
        assert all(least[kind] < seconds < 10 for seconds in taken), (kind, taken)


@pytest.mark.long
@pytest.mark.usefixtures("shared_machine")
def test_actors_are_measured_as_workers_are(tiny: Callable[[], Any], ray_cluster: Any) -> None:
    result = workers.measure(tiny(), {1: 1e-3}, 0.0, ray_cluster.address)
    assert {point: len(taken) for point, taken in result.items()} == {
        (kind, 1): workers.FEWEST_STEPS for kind in ("trip", "boundary", "slices", "attention")
    }
