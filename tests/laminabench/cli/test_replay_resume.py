"""A live replay that was interrupted goes on from its journal, or says in one sentence why it does not."""

from __future__ import annotations

import contextlib
import copy
import json
import os
import random
import select
import signal
import subprocess
from pathlib import Path
from typing import Any

import msgpack
import pytest

from laminabench.runs.journal import Journal
from laminabench.runs.read import Run, read_run
from laminabench.util.errors import Terminated
from laminabench.util.version import __version__
from laminabench.workflows.replay import journal

SMALL = (
    *("--trace", "azure-code", "--offline", "--num-requests", "60", "--scale-lengths", "0.1"),
    *("--model", "llama-tiny", "--backend", "live", "--max-num-seqs", "16", "--seed", "5"),
)
LIVE = ("replay", *SMALL, "--prefill", "model", "-q")


@pytest.fixture
def cut_off(pretended: dict[str, Any], made_up_engine: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """From now on an engine's steps end in this after so many; None: never."""
    del pretended
    step = made_up_engine.step

    def after(steps: int | None, error: BaseException | None = None) -> None:
        left = [steps]

        def stepping(engine: Any) -> Any:
            if left[0] is not None:
                left[0] -= 1
                if left[0] < 0:
                    raise error or KeyboardInterrupt
            return step(engine)

        monkeypatch.setattr(made_up_engine, "step", stepping)

    return after


def interrupted(shell: Any, cut_off: Any, *more: str, steps: int = 5) -> None:
    cut_off(steps)
    assert shell(*LIVE, "--out", "kept", *more)[0] == 130
    cut_off(None)


def same(one: Run, other: Run) -> None:
    """The same requests, and what became of them."""
    for name in ("prompt_tokens", "output_tokens"):
        assert getattr(one, name).tolist() == getattr(other, name).tolist()
    assert one.outcome.requests["status"].tolist() == other.outcome.requests["status"].tolist()
    assert one.outcome.iterations["size"].sum() == other.outcome.iterations["size"].sum()


def test_interrupted_again_and_again_it_ends_as_if_it_never_had(
    shell: Any, as_json: Any, cut_off: Any
) -> None:
    whole = as_json(*LIVE, "--out", "whole")
    interrupted(shell, cut_off)
    assert {path.name for path in Path().iterdir()} == {"whole", "kept.journal", "kept.live"}
    cut_off(4)
    code, _, err = shell("replay", "--resume", "kept.journal", "-q")
    assert (code, err) == (130, "laminabench: interrupted; resume with: laminabench replay --resume kept\n")
    cut_off(2, Terminated())
    code, _, err = shell("replay", "--resume", "kept.journal", "-q")
    assert (code, err) == (143, "laminabench: terminated; resume with: laminabench replay --resume kept\n")
    cut_off(None)
    facts = as_json("replay", "--resume", "kept", "-q")
    assert not Path("kept.journal").exists()
    assert facts["run_dir"] == "kept"
    assert facts["resumed"]["times"] == 3
    assert facts["resumed"]["at_s"] == pytest.approx([5 * 0.007, 9 * 0.007, 11 * 0.007])
    for name in ("requests", "tokens_generated", "tokens_sha256", "trace", "facts", "preemptions", "kv"):
        assert facts[name] == whole[name], name
    same(read_run(Path("kept")), read_run(Path("whole")))
    saved = json.loads(Path("kept", "run.json").read_text())
    assert saved["summary"]["resumed"] == facts["resumed"]
    assert saved["seed"] == 5
    before = json.loads(Path("whole", "run.json").read_text())
    assert saved["workload"] == before["workload"]
    for name in ("transforms", "command", "trace", "model", "deployment"):
        assert saved[name] == before[name], name


def test_reporting_options_can_change_on_resume(shell: Any, as_json: Any, cut_off: Any) -> None:
    interrupted(shell, cut_off, "--slo-tbt-ms", "3")
    # The same again is no contradiction.
    facts = as_json(
        *("replay", "--resume", "kept", "--timeline", "t.json", "--plot", "p.svg", "--seed", "5"),
        *("--out", "kept", "--slo-tbt-ms", "3", "-q"),
    )
    assert facts["slo"]["tbt_ms"] == 3
    assert facts["plot"] == "p.svg"
    assert "resumed" in Path("p.svg").read_text()
    assert Path("t.json").is_file()


def test_what_a_journal_would_write_is_given_anew(
    shell: Any, as_json: Any, refused: Any, cut_off: Any
) -> None:
    cut_off(5)
    code, _, err = shell(*LIVE, "--out", "kept", "--plot", "p.svg")
    plot = str(Path("p.svg").absolute())
    assert (code, err.rstrip().endswith(f"--resume kept --plot {plot}")) == (130, True)
    cut_off(None)
    refused(f"add: --plot {plot}", "replay", "--resume", "kept", "-q")
    assert as_json("replay", "--resume", "kept", "-q", "--plot", plot)["plot"] == plot


def test_other_flags_contradict(shell: Any, refused: Any, as_json: Any, cut_off: Any) -> None:
    interrupted(shell, cut_off)
    for arguments, message in (
        ("--seed 6", "--seed contradicts the interrupted replay, which has 5: leave it out"),
        ("--trace azure-conv", "--trace contradicts"),
        ("--prefill off", "--prefill contradicts the interrupted replay, which has model"),
        ("--backend modelled", "--backend contradicts"),
        ("--chaos random*3", "--chaos contradicts the interrupted replay, which has none"),
        ("--out elsewhere", "--out"),
        ("--no-out", "--no-out contradicts the interrupted replay, which has none"),
        ("--timeline t.txt", ".json"),
        ("--plot p.txt", ".png, "),
    ):
        refused(message, f"replay --resume kept -q {arguments}")
    assert as_json("replay", "--resume", "kept", "-q")["requests"]["completed"] == 60


def test_nothing_to_resume(refused: Any, as_json: Any) -> None:
    refused("there is no runs/none.journal: nothing was interrupted there", "replay --resume runs/none")
    as_json("replay --trace azure-code --offline --num-requests 20 -q --out done")
    refused("done is whole: there is nothing to resume", "replay --resume done")
    refused("Missing option '--trace'", "replay")


def test_a_run_that_is_there_meanwhile_is_left_alone(
    shell: Any, refused: Any, cut_off: Any, as_json: Any
) -> None:
    interrupted(shell, cut_off)
    Path("kept").mkdir()
    Path("kept", "mine.txt").touch()
    refused("kept exists meanwhile and is left alone", "replay", "--resume", "kept")
    assert Path("kept", "mine.txt").exists()
    Path("kept", "mine.txt").unlink()
    Path("kept").rmdir()
    assert as_json("replay", "--resume", "kept", "-q")["requests"]["completed"] == 60


def test_the_run_that_was_to_be_replaced_is(shell: Any, cut_off: Any, as_json: Any) -> None:
    as_json(*LIVE, "--out", "kept", "--seed", "9")
    interrupted(shell, cut_off)
    facts = as_json("replay", "--resume", "kept", "-q")
    saved = json.loads(Path("kept", "run.json").read_text())
    assert (facts["run_dir"], saved["seed"]) == ("kept", 5)


def test_another_replay_does_not_take_its_place(shell: Any, refused: Any, cut_off: Any) -> None:
    interrupted(shell, cut_off)
    message = "kept.journal is of a replay that was interrupted or still runs: resume it"
    refused(message, *LIVE, "--out", "kept")


def test_two_at_the_same_time(shell: Any, refused: Any, cut_off: Any) -> None:
    interrupted(shell, cut_off)
    reopened, _ = Journal.reopen(Path("kept.journal"))
    refused("kept.journal is in use", "replay --resume kept")
    reopened.close()


def test_a_journal_of_another_version_or_none_at_all(
    shell: Any, refused: Any, cut_off: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    interrupted(shell, cut_off)
    with monkeypatch.context() as patch:
        patch.setattr(journal, "FORMAT_VERSION", 99)
        refused("(journal format 3) and this is", "replay --resume kept")
    path = Path("kept.journal")
    path.write_bytes(b"hello")
    refused("is not a journal of a replay", "replay", "--resume", str(path.absolute()))


def test_a_journal_that_makes_no_sense(refused: Any) -> None:
    trace = {"name": "t", "sha256": None, "requests": 1}
    whole = {"format_version": 2, "laminabench": __version__, "request": "", "replaces": None, "trace": trace}
    wrong: list[Any] = [whole | {key: odd} for key in whole for odd in (None, 1.5, [1], b"\xff", {"a": {}})]
    wrong = [header for header in wrong if header["replaces"] is not None or header != whole]
    for header in ([], {}, {"format_version": 1}, "text", *wrong):
        Path("odd.journal").unlink(missing_ok=True)
        Journal.create(Path("odd.journal"), header).close()
        refused("odd.journal is damaged", "replay", "--resume", "odd")


def test_a_journal_with_impossible_contents_is_refused(shell: Any, cut_off: Any) -> None:
    """Each value of each kind of event in turn is another one; no CRC says so."""
    interrupted(shell, cut_off)
    path = Path("kept.journal")
    saved, (header, *events) = Journal.reopen(path)
    saved.close()
    first = {event[0]: place for place, event in reversed(list(enumerate(events)))}
    draw = random.Random(5)
    codes = set()
    for kind, place in first.items():
        for number in range(len(events[place])):
            odd = draw.choice([None, -1, 10**9, 1 << 62, "x", b"\xff", [[]], [-1], float("nan"), {}])
            forged = copy.deepcopy(events)
            forged[place][number] = odd
            path.unlink(missing_ok=True)
            with contextlib.closing(Journal.create(path, header)) as journal:
                for event in forged:
                    journal.append(event)
            cut_off(0)  # what is not noticed goes on, and is stopped at its first step
            code, _, err = shell("replay", "--resume", "kept", "-q")
            assert code in (2, 130), (kind, number, odd, err)
            codes.add(code)
    assert 2 in codes


def test_a_trace_that_has_changed(
    shell: Any, refused: Any, cut_off: Any, as_json: Any, tmp_path: Path
) -> None:
    trace = Path("mine.csv")
    trace.write_text("arrival_s,prompt_tokens,output_tokens\n" + "0,10,50\n" * 5)
    cut_off(5)
    more = ("--backend", "live", "--model", "llama-tiny", "-q", "--out", "kept")
    assert shell("replay", "--trace", "mine.csv", *more)[0] == 130
    cut_off(None)
    was = trace.read_text()
    trace.write_text(was + "0,10,50\n")
    refused(
        "the trace mine is another one than when it was interrupted: 6 requests", "replay --resume kept -q"
    )
    trace.write_text(was)
    # From elsewhere too.
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    os.chdir(elsewhere)
    assert as_json("replay", "--resume", "../kept", "-q")["requests"]["completed"] == 5
    os.chdir(tmp_path)
    assert Path("kept", "run.json").is_file()


def test_an_error_in_the_middle_explains_how_to_resume(refused: Any, cut_off: Any, as_json: Any) -> None:
    cut_off(3, OSError(28, "No space left on device"))
    refused("laminabench: resume with: laminabench replay --resume kept\n", *LIVE[:-1], "--out", "kept")
    cut_off(None)
    assert as_json("replay", "--resume", "kept", "-q")["requests"]["completed"] == 60


def test_blows_that_fell_do_not_fall_again(shell: Any, cut_off: Any, as_json: Any) -> None:
    chaos = ("--chaos", "model:0@tokens=30", "--chaos", "random*4", "--chaos", "attention:0=stop@t=1s")
    interrupted(shell, cut_off, *chaos, steps=8)
    facts = as_json("replay", "--resume", "kept", "-q")
    total = facts["faults_in_all"]
    assert total["strikes"] == total["strikes_planned"] == 6
    # Those just before the interruption were never noticed: their workers were gone anyway.
    assert 1 <= total["faults"] <= 6
    assert facts["tokens_sha256"] == as_json(*LIVE, "--no-out")["tokens_sha256"]


def _iterations(path: Path) -> int:
    """Return the number of iterations in a journal that is being written."""
    try:
        return path.read_bytes().count(msgpack.packb("Iteration"))
    except FileNotFoundError:
        return 0


def _until(child: subprocess.Popen[str], path: Path, iterations: int) -> None:
    """Until the journal has so many iterations; looked at again and again, as it has no other way to tell."""
    assert child.stderr is not None
    while _iterations(path) < iterations:
        assert child.poll() is None, "it ended before it could be interrupted"
        select.select([], [], [], 0.01)


@pytest.mark.long
@pytest.mark.usefixtures("shared_machine")
@pytest.mark.parametrize("instances", ["1", "2"])
def test_ctrl_c_and_kill_9_lose_nothing(
    tmp_path: Path, exact_model: dict[str, Any], as_json: Any, started: Any, instances: str
) -> None:
    """Interrupted twice; every token is that of a replay that was not. Only what is interrupted is a process
    of its own.
    """
    (tmp_path / "tiny.json").write_text(json.dumps(exact_model))
    arguments = (
        *(*SMALL, "--model", "tiny.json", "--prefill", "model", "--oversubscribe", "-q"),
        *("--instances", instances),
    )
    home = {"LAMINABENCH_HOME": str(tmp_path / "home")}  # conversions are kept there
    whole = as_json("replay", *arguments, "--out", "whole")
    journal = tmp_path / "cut.journal"
    before = 0
    calls = {
        signal.SIGINT: [*arguments, "--json", "--out", "cut"],
        signal.SIGKILL: ["--resume", "cut", "--json", "-q"],
    }
    for how, call in calls.items():
        child = started(tmp_path, "replay", *call, process_group=0, more=home)
        _until(child, journal, before + 4)
        before = _iterations(journal)
        child.send_signal(how)
        _, err = child.communicate(timeout=60)
        if how == signal.SIGINT:
            assert child.returncode == 130
            assert err.endswith("interrupted; resume with: laminabench replay --resume cut\n")
        assert not (tmp_path / "cut").exists()
    facts = as_json("replay", "--resume", "cut", "-q")
    assert facts["resumed"]["times"] == 2
    for name in ("requests", "tokens_generated", "tokens_sha256", "preemptions"):
        assert facts[name] == whole[name], name
    assert facts["schedule"]["violations"] == []
    same(read_run(tmp_path / "cut"), read_run(tmp_path / "whole"))
    assert {path.name for path in tmp_path.iterdir()} - {"home"} == {"whole", "cut", "tiny.json"}
