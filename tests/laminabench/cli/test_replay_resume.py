"""A live replay that was interrupted goes on from its journal, or says in one sentence why it does not."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from laminabench.errors import Terminated
from laminabench.replay import journal
from laminabench.runs.journal import Journal
from laminabench.runs.read import Run, read_run

Shell = Callable[..., tuple[int, str, str]]
AsJson = Callable[..., dict[str, Any]]
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


def interrupted(shell: Shell, cut_off: Any, *more: str, steps: int = 5) -> None:
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
    shell: Shell, as_json: AsJson, cut_off: Any
) -> None:
    whole = as_json(*LIVE, "--out", "whole")
    interrupted(shell, cut_off)
    assert [path.name for path in Path().iterdir() if path.name != "whole"] == ["kept.journal"]
    cut_off(4)
    code, _, err = shell("replay", "--resume", "kept.journal", "-q")
    assert (code, err) == (
        130,
        "laminabench: interrupted; go on with: laminabench replay --resume kept\n",
    )
    cut_off(2, Terminated())
    code, _, err = shell("replay", "--resume", "kept.journal", "-q")
    assert (code, err) == (
        143,
        "laminabench: terminated; go on with: laminabench replay --resume kept\n",
    )
    cut_off(None)
    facts = as_json("replay", "--resume", "kept", "-q")
    assert not Path("kept.journal").exists()
    assert facts["run_dir"] == "kept"
    assert facts["resumed"]["times"] == 3
    assert facts["resumed"]["at_s"] == pytest.approx([5 * 0.007, 9 * 0.007, 11 * 0.007])
    for name in ("requests", "tokens_generated", "tokens_sha256", "trace", "facts", "preemptions", "kv"):
        assert facts[name] == whole[name], name
    same(read_run(Path("kept")), read_run(Path("whole")))
    kept = json.loads(Path("kept", "run.json").read_text())
    assert kept["summary"]["resumed"] == facts["resumed"]
    assert kept["seed"] == 5
    before = json.loads(Path("whole", "run.json").read_text())
    assert kept["workload"] == before["workload"]
    for name in ("transforms", "command", "trace", "model", "deployment"):
        assert kept[name] == before[name], name


def test_the_summary_says_so(shell: Shell, cut_off: Any) -> None:
    interrupted(shell, cut_off)
    code, out, _ = shell("replay", "--resume", "kept")
    assert code == 0
    assert re.search(r"resumed        once, at 0\.0 s; the time in between", out)
    assert re.search(r"tokens' sha256 [0-9a-f]{64}", out)
    assert "kept in kept" in out


def test_how_it_is_told_can_be_said_anew(shell: Shell, as_json: AsJson, cut_off: Any) -> None:
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


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--seed", "6"], "--seed contradicts the interrupted replay, which has 5: leave it out"),
        (["--trace", "azure-conv"], "--trace contradicts"),
        (["--prefill", "off"], "--prefill contradicts the interrupted replay, which has model"),
        (["--backend", "modelled"], "--backend contradicts"),
        (["--chaos", "random*3"], "--chaos contradicts the interrupted replay, which has none"),
        (["--out", "elsewhere"], "--out"),
        (["--no-out"], "--no-out contradicts the interrupted replay, which has none"),
        (["--timeline", "t.txt"], ".json"),
        (["--plot", "p.txt"], ".png, "),
    ],
)
def test_other_flags_contradict(
    shell: Shell, as_json: AsJson, cut_off: Any, arguments: list[str], said: str
) -> None:
    interrupted(shell, cut_off)
    code, out, err = shell("replay", "--resume", "kept", "-q", *arguments)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert said in err
    # And it can still be gone on with.
    assert as_json("replay", "--resume", "kept", "-q")["requests"]["completed"] == 60


def test_nothing_to_resume(shell: Shell, as_json: AsJson) -> None:
    code, _, err = shell("replay", "--resume", "runs/none")
    assert (code, err) == (
        2,
        "laminabench: error: there is no runs/none.journal: nothing was interrupted there\n",
    )
    as_json("replay", "--trace", "azure-code", "--offline", "--num-requests", "20", "-q", "--out", "done")
    code, _, err = shell("replay", "--resume", "done")
    assert (code, err) == (2, "laminabench: error: done is whole: there is nothing to resume\n")
    assert shell("replay")[0] == 2


def test_a_run_that_is_there_meanwhile_is_left_alone(shell: Shell, cut_off: Any, as_json: AsJson) -> None:
    interrupted(shell, cut_off)
    Path("kept").mkdir()
    Path("kept", "mine.txt").touch()
    code, _, err = shell("replay", "--resume", "kept")
    assert code == 2
    assert "kept exists meanwhile and is left alone" in err
    assert Path("kept", "mine.txt").exists()
    Path("kept", "mine.txt").unlink()
    Path("kept").rmdir()
    assert as_json("replay", "--resume", "kept", "-q")["requests"]["completed"] == 60


def test_the_run_that_was_to_be_replaced_is(shell: Shell, cut_off: Any, as_json: AsJson) -> None:
    as_json(*LIVE, "--out", "kept", "--seed", "9")
    interrupted(shell, cut_off)
    facts = as_json("replay", "--resume", "kept", "-q")
    kept = json.loads(Path("kept", "run.json").read_text())
    assert (facts["run_dir"], kept["seed"]) == ("kept", 5)


def test_another_replay_does_not_take_its_place(shell: Shell, cut_off: Any) -> None:
    interrupted(shell, cut_off)
    code, _, err = shell(*LIVE, "--out", "kept")
    assert code == 2
    assert "kept.journal is of a replay that was interrupted or still runs: go on with it" in err


def test_two_at_the_same_time(shell: Shell, cut_off: Any) -> None:
    interrupted(shell, cut_off)
    reopened, _ = Journal.reopen(Path("kept.journal"))
    code, _, err = shell("replay", "--resume", "kept")
    reopened.close()
    assert code == 2
    assert "kept.journal is in use" in err


def test_a_journal_of_another_version_or_none_at_all(
    shell: Shell, cut_off: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    interrupted(shell, cut_off)
    with monkeypatch.context() as patch:
        patch.setattr(journal, "FORMAT_VERSION", 99)
        code, _, err = shell("replay", "--resume", "kept")
    assert code == 2
    assert "(journal format 2) and this is" in err
    path = Path("kept.journal")
    path.write_bytes(b"hello")
    code, _, err = shell("replay", "--resume", str(path.absolute()))
    assert code == 2
    assert "is not a journal of a replay" in err


def test_a_journal_that_makes_no_sense(shell: Shell) -> None:
    for header in ([], {}, {"format_version": 1}, "text"):
        Path("odd.journal").unlink(missing_ok=True)
        Journal.create(Path("odd.journal"), header).close()
        code, _, err = shell("replay", "--resume", "odd")
        assert code == 2
        assert "odd.journal is damaged" in err
        assert err.count("\n") == 1


def test_a_trace_that_has_changed(shell: Shell, cut_off: Any, as_json: AsJson, tmp_path: Path) -> None:
    trace = Path("mine.csv")
    trace.write_text("arrival_s,prompt_tokens,output_tokens\n" + "0,10,50\n" * 5)
    cut_off(5)
    more = ("--backend", "live", "--model", "llama-tiny", "-q", "--out", "kept")
    assert shell("replay", "--trace", "mine.csv", *more)[0] == 130
    cut_off(None)
    was = trace.read_text()
    trace.write_text(was + "0,10,50\n")
    code, _, err = shell("replay", "--resume", "kept", "-q")
    assert code == 2
    assert "the trace mine is another one than when it was interrupted: 6 requests" in err
    trace.write_text(was)
    # From elsewhere too.
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    os.chdir(elsewhere)
    assert as_json("replay", "--resume", "../kept", "-q")["requests"]["completed"] == 5
    os.chdir(tmp_path)
    assert Path("kept", "run.json").is_file()


def test_an_error_in_the_middle_tells_how_to_go_on(shell: Shell, cut_off: Any, as_json: AsJson) -> None:
    cut_off(3, OSError(28, "No space left on device"))
    code, _, err = shell(*LIVE[:-1], "--out", "kept")
    assert code == 2
    assert "laminabench: go on with: laminabench replay --resume kept\n" in err
    cut_off(None)
    assert as_json("replay", "--resume", "kept", "-q")["requests"]["completed"] == 60


def test_blows_that_fell_do_not_fall_again(shell: Shell, cut_off: Any, as_json: AsJson) -> None:
    chaos = ("--chaos", "model:0@tokens=30", "--chaos", "random*4", "--chaos", "attention:0=stop@t=1s")
    interrupted(shell, cut_off, *chaos, steps=8)
    facts = as_json("replay", "--resume", "kept", "-q")
    total = facts["faults_in_all"]
    assert total["strikes"] == total["strikes_planned"] == 6
    # Those just before the interruption were never noticed: their workers were gone anyway.
    assert 1 <= total["faults"] <= 6
    assert facts["tokens_sha256"] == as_json(*LIVE, "--no-out")["tokens_sha256"]
