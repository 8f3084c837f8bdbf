"""The verdict on a plan: its winner against the cheapest of the system that people run."""

from __future__ import annotations

from typing import Any

import pytest

from laminabench.catalog.hardware import load_devices
from laminabench.workflows.plan.answer import Answer, answer
from laminabench.workflows.plan.measure import meets, order
from laminabench.workflows.plan.question import Limits, candidates
from laminabench.workflows.plan.search import search
from laminabench.workflows.plan.verdict import best_of_each, described, includes, verdict_on

SYSTEMS = ("vllm", "lamina", "lamina-v1")


@pytest.fixture(scope="module")
def planned(draw_trace: Any, pose: Any) -> Answer:
    question = pose(draw_trace(7, requests=300, prompt=4000), 100.0, costs="vllm-0.24")
    devices = [load_devices()[name] for name in ("h100", "h20")]
    every = list(candidates(SYSTEMS, question.model, devices, Limits(60.0)))
    return answer(question, every, jobs=1)


def test_the_runner_up_is_the_cheapest_of_its_system(planned: Answer) -> None:
    judged = verdict_on(planned)
    assert judged.sentences[0].count("(saturated)") == 1
    assert planned.winner
    assert judged.cheapest
    assert judged.runner_up
    assert judged.cheapest.usd_per_million_tokens == planned.winner.usd_per_million_tokens
    assert {judged.cheapest.system, judged.runner_up.system} == {"lamina", "vllm"}
    question = planned.question
    devices = [load_devices()[name] for name in ("h100", "h20")]
    every = list(candidates(SYSTEMS, question.model, devices, Limits(60.0)))
    for point in best_of_each(planned):
        own = [each for each in every if each.system == point.candidate.system]
        exact = search(question, own, exhaustive=True, jobs=1).points
        cheapest = min((each for each in exact if meets(each, 100.0)), key=order)
        assert cheapest.candidate == point.candidate


def test_json_has_the_verdict_first_and_in_its_answer(planned: Answer) -> None:
    result = described([planned])
    assert list(result) == ["verdict", "includes", "answers"]
    (row,) = result["answers"]
    assert row["verdict"] == result["verdict"] == verdict_on(planned).describe()
    assert described([planned, planned])["verdict"] is None


def test_it_says_what_its_numbers_include(planned: Answer) -> None:
    text = str(includes(planned))
    assert text.startswith("Includes: prompts computed elsewhere (--prefill off); kernels of vllm-0.24")
    assert "decode attention of flashinfer on h20" in text
    assert "lamina: step off by" in text
