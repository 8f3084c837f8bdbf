"""`laminabench torture`: what is chosen, kept, gone on with and told; of an experiment made up here."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from laminabench.torture import experiments
from laminabench.torture.experiments import EXPERIMENTS, Listed, cases
from laminabench.torture.tally import Tally

Try = Callable[[Sequence[int]], Tally]


def survives(seeds: Sequence[int]) -> Tally:
    tally = Tally("made-up", facts={"largest": float(max(seeds))})
    for seed in seeds:
        tally.add(None, "", seed)
    return tally


@pytest.fixture
def made_up(monkeypatch: pytest.MonkeyPatch) -> Callable[[Try], list[list[int]]]:
    """An experiment of this name; what it was asked to try."""

    def registered(tries: Try) -> list[list[int]]:
        asked: list[list[int]] = []

        def trying(seeds: Sequence[int]) -> Tally:
            asked.append(list(seeds))
            return tries(seeds)

        module = ModuleType("laminabench.torture.made_up")
        module.tries = trying  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, module.__name__, module)
        alone = {"made-up": Listed("something", "made_up:tries", 4, 10)}
        monkeypatch.setattr(experiments, "EXPERIMENTS", alone)
        return asked

    return registered


def test_chunk_after_chunk_and_then_no_more(made_up: Any, as_json: Any, shell: Any) -> None:
    asked = made_up(survives)
    found = as_json("torture")
    (of,) = found["experiments"]
    assert (of["cases"], of["tried"], of["survived"], of["failures"]) == (10, 10, 10, [])
    assert of["facts"] == {"largest": max(cases("made-up", 0, 0, 10))}
    assert [len(each) for each in asked] == [4, 4, 2]
    assert [seed for each in asked for seed in each] == list(cases("made-up", 0, 0, 10))
    code, _, err = shell("torture")
    assert code == 0
    assert len(asked) == 3
    assert "all 10 cases were tried before" in err
    as_json("torture made-up --count 12")
    assert asked[3] == list(cases("made-up", 0, 10, 2))
    as_json("torture --seed 1 --count 1")
    assert asked[4] == list(cases("made-up", 1, 0, 1))
    assert "| made-up | 1 | 1 of 10 |" in Path("torture", "summary.md").read_text()
    kept = json.loads(Path("torture", "made-up-0.json").read_text())
    assert (kept["cases"], kept["seed"], kept["versions"][0][:1]) == (12, 0, "0")


def test_an_interruption_keeps_whole_chunks(made_up: Any, shell: Any, as_json: Any) -> None:
    calls = []

    def interrupted(seeds: Sequence[int]) -> Tally:
        calls.append(seeds)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return survives(seeds)

    made_up(interrupted)
    code, _, err = shell("torture made-up -q")
    assert (code, "8 cases of made-up are kept" in err) == (130, True)
    # What a crash leaves of a line is no line.
    with Path("torture", "made-up-0.jsonl").open("a") as file:
        file.write('{"first":8,"cou')
    assert as_json("torture")["experiments"][0]["cases"] == 10
    assert [len(each) for each in calls] == [4, 4, 2, 2]


def test_a_failure_is_told_with_what_repeats_it(made_up: Any, shell: Any) -> None:
    def loses(seeds: Sequence[int]) -> Tally:
        tally = survives(seeds)
        tally.add("lost", "a thing", seeds[-1], "it is\nnot there")
        return tally

    made_up(loses)
    code, out, err = shell("torture --count 4 --json")
    seed = cases("made-up", 0, 3, 1)[0]
    told = f"lost: a thing: it is not there; again: laminabench torture made-up --case {seed}\n"
    assert (code, told in err) == (1, True)
    assert json.loads(out)["experiments"][0]["lost"] == 1
    assert shell("torture --count 4 -q")[0] == 1, "also when there is nothing more to try"
    code, out, err = shell(f"torture made-up --case {seed} -q")
    assert (code, out.startswith("made-up: lost: a thing")) == (1, True)


def test_an_experiment_that_breaks_is_told_and_gone_on_behind(made_up: Any, shell: Any) -> None:
    def breaks(seeds: Sequence[int]) -> Tally:
        raise RuntimeError(f"no server for {len(seeds)}")

    asked = made_up(breaks)
    code, _, err = shell("torture")
    assert (code, "crashed: the experiment" in err, "no server" in err) == (1, True, True)
    assert len(asked) == 1
    shell("torture")
    assert asked[1][0] == asked[0][-1] + 1


def test_what_cannot_run_here_is_left_out_or_refused(
    made_up: Any, monkeypatch: pytest.MonkeyPatch, as_json: Any, refused: Any
) -> None:
    made_up(survives)
    monkeypatch.setitem(experiments.NEEDS, "a moon", lambda: "there is no moon")  # type: ignore[arg-type]
    listed = Listed("something", "made_up:tries", 1, 1, ("a moon",))
    monkeypatch.setitem(experiments.EXPERIMENTS, "moon", listed)  # type: ignore[arg-type]
    found = as_json("torture --count 1")
    assert found["left_out"] == {"moon": "there is no moon"}
    refused("moon cannot run here: there is no moon", "torture moon")
    assert as_json("torture --list")["experiments"]["moon"]["missing"] == "there is no moon"
    refused("no experiment is called 'mon'; did you mean moon?", "torture mon")
    refused("leave out one", "torture --minutes 1 --count 2")
    refused("name it", "torture --case 5")


def test_minutes_are_those_of_all_times_together(made_up: Any, as_json: Any) -> None:
    asked = made_up(survives)
    as_json("torture --minutes 0.0001")
    count = len(asked)
    assert count >= 1
    as_json("torture --minutes 0.000001")
    assert len(asked) == count


def test_each_experiment_is_there() -> None:
    for name, listed in EXPERIMENTS.items():
        assert callable(listed.load()), name
        assert 0 < listed.chunk <= listed.full, name
