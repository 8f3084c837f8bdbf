"""--deployment auto as a person uses it: said, kept, repeated, and once for all rounds of a comparison."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from laminabench.systems.live.lamina import fastest
from laminabench.systems.live.lamina.fastest import Load, Trial
from laminabench.systems.live.lamina.setup import LiveSetup

SMALL = (
    *("--trace", "azure-code", "--offline", "--num-requests", "20", "--scale-lengths", "0.1"),
    *("--model", "llama-tiny"),
)
AUTO = ("replay", *SMALL, "--backend", "live", "--deployment", "auto")
SPEEDS = {"2xcpu": 900.0, "1xcpu+1xcpu": 500.0}


@pytest.fixture(autouse=True)
def measured_layouts(pretended: Any, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What was measured, of layouts that are as fast as is said."""
    del pretended
    results: list[str] = []

    def measured(setup: LiveSetup, _: Load) -> Trial:
        results.append(str(setup.deployment))
        return Trial(results[-1], SPEEDS[results[-1]], 0.4)

    monkeypatch.setattr(fastest, "measured", measured)
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0, 1})
    return results


def test_it_says_which_and_why_and_the_run_keeps_it(shell: Any, measured_layouts: list[str]) -> None:
    code, out, err = shell(*AUTO, "--out", "kept", "--json")
    assert code == 0, err
    assert json.loads(out)["deployment"] == "2xcpu"
    assert "2xcpu is the fastest for 20 sequences" in err
    manifest = json.loads(Path("kept/run.json").read_text())
    assert manifest["deployment"]["name"] == "2xcpu"
    assert 'deployment = "2xcpu"' in manifest["request"]
    assert "--deployment auto" in manifest["command"]
    reported = manifest["deployment"]["facts"]["deployment_auto"]
    assert "500 tokens/s" in reported["why"]
    assert [each["tokens_per_s"] for each in reported["trials"]] == [900.0, 500.0]
    assert measured_layouts == [*SPEEDS]


def test_again_repeats_what_was_taken(as_json: Any, measured_layouts: list[str]) -> None:
    as_json(*AUTO, "--out", "kept")
    measured_layouts.clear()
    assert as_json("replay --again kept", "--no-out")["deployment"] == "2xcpu"
    assert not measured_layouts


def test_a_comparison_measures_once(as_json: Any, measured_layouts: list[str]) -> None:
    facts = as_json(
        "compare",
        *SMALL,
        *(
            "--live",
            "--deployment auto",
            "--live",
            "--deployment 1xcpu+1xcpu",
            "--rounds",
            "3",
            "--out",
            "kept",
        ),
    )
    assert [len(side["runs"]) for side in facts["sides"]] == [3, 3]
    assert measured_layouts == [*SPEEDS]


def test_warmed_up_with_what_the_trace_has(as_json: Any, pretended: dict[str, Any]) -> None:
    facts = as_json(*AUTO, "--no-out")
    sequences, longest = pretended["warm_up"]
    assert sequences == facts["trace"]["requests"] == 20
    assert longest > 1
