"""Front, winner and prices of points made up, and points that are those of a replay."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from laminabench.catalog.deployment import parse_deployment
from laminabench.errors import UserError
from laminabench.plan.answer import repriced
from laminabench.plan.demand import FractionalKnapsack, demand_of
from laminabench.plan.measure import Point, cluster, front, measure, nearest, winner
from laminabench.plan.question import Candidate
from laminabench.replay import Workload, replay


def a_point(deployment: str, tokens_per_s: float, tbt_p99_ms: float, **more: Any) -> Point:
    candidate = Candidate("lamina" if "+" in deployment else "vllm", parse_deployment(deployment))
    made = Point(candidate, tokens_per_s, 100.0, tbt_p99_ms / 2, tbt_p99_ms, 1.0, 0.0, keeps_up=True)
    return replace(made, **more)


FAST = a_point("8xh100", 5000, 20)  # $88.48/h: 4.92 $/M
CHEAP = a_point("2xh100+4xh20", 6000, 60)  # $40.64/h: 1.88
BEATEN = a_point("4xh100", 3000, 61)
SLOW = a_point("2xh20", 3000, 200)  # $9.26/h: 0.86
ALL = [SLOW, BEATEN, CHEAP, FAST]


def test_front_and_winner_are_of_those_that_meet_the_limit() -> None:
    assert front(ALL, 100) == [FAST, CHEAP]
    assert front(ALL, 1000) == [FAST, CHEAP, SLOW]
    assert winner(ALL, 100) is CHEAP
    assert winner(ALL, 30) is FAST
    assert winner(ALL, 10) is None
    assert nearest(ALL) is FAST


def test_who_does_not_keep_up_is_neither_winner_nor_nearest() -> None:
    behind = replace(CHEAP, keeps_up=False)
    assert winner([behind, FAST], 100) is FAST
    assert nearest([replace(FAST, keeps_up=False), SLOW]) is SLOW


def test_a_price_that_changes_the_winner() -> None:
    h100 = a_point("4xh100", 6000, 50)  # $44.24/h: 2.05; 1.84 if an H100 were a tenth cheaper
    found = {(each.device, round(each.change, 2)): each for each in repriced([CHEAP, h100], 100)}
    assert len(found) == 4
    cheaper = found["h100", -0.1]
    # Both have H100s: 2 of them go from 40.64 to 38.43, 4 from 44.24 to 39.82.
    assert cheaper.stays
    assert cheaper.winner.usd_per_million_tokens == pytest.approx((40.64 - 2.212) / 6000 / 3600 * 1e6)
    dearer_h20 = found["h20", 0.1]
    assert dearer_h20.stays
    nearly = replace(h100, tokens_per_s=6400)
    turned = {(each.device, round(each.change, 2)): each for each in repriced([CHEAP, nearly], 100)}
    assert not turned["h100", -0.1].stays
    assert str(turned["h100", -0.1].winner.candidate) == "vllm 4xh100"
    assert turned["h100", 0.1].stays
    assert list(repriced([SLOW], 100)) == []


@pytest.mark.parametrize("mode", ["saturate", "open"])
@pytest.mark.parametrize(
    "candidate",
    [
        Candidate("vllm", parse_deployment("4xh100")),
        Candidate("lamina", parse_deployment("2xh100+4xh20"), 2),
        Candidate("lamina-v1", parse_deployment("2xh100+4xh20"), 1),
    ],
    ids=str,
)
def test_a_point_is_what_replay_says(candidate: Candidate, mode: Any, draw_trace: Any, ask: Any) -> None:
    trace = draw_trace(2, requests=400)
    question = ask(trace, 40.0, mode=mode)
    spec = cluster(question, candidate)
    assert spec is not None
    point = measure(question, trace, candidate, spec)
    said = replay(trace, candidate.system, question.setup(candidate), Workload(mode, slo_tbt_ms=40.0)).summary
    assert point.tokens_per_s == said.throughput_tokens_per_s
    assert (point.tbt_p50_ms, point.tbt_p99_ms) == (said.tbt_ms.p50, said.tbt_ms.p99)
    assert point.mean_batch == said.mean_batch
    assert point.token_attainment == said.slo.token_attainment
    assert point.usd_per_million_tokens == said.cost.usd_per_million_tokens


def test_without_second_tokens_there_is_nothing_to_plan_for(draw_trace: Any, ask: Any) -> None:
    trace = draw_trace(2, requests=5, output=1, spread=0)
    candidate = Candidate("vllm", parse_deployment("4xh100"))
    spec = cluster(ask(trace), candidate)
    assert spec is not None
    with pytest.raises(UserError, match="trace-no-tbt"):
        measure(ask(trace), trace, candidate, spec)


def test_a_sack_may_cut_one_thing() -> None:
    sack = FractionalKnapsack(weight=np.array([4.0, 2, 1]), value=np.array([4.0, 6, 1]))
    assert [sack.most(weight) for weight in (0, 1, 2, 3, 100)] == [0, 3, 6, 7, 11]


def test_demand_counts_what_the_scheduler_charges(draw_trace: Any) -> None:
    trace = draw_trace(1, requests=50)
    prompt, output = trace.prompt_tokens.astype(int), trace.output_tokens.astype(int)
    blocks = -(-(prompt + output) // 16) * 16
    demand = demand_of(trace, 16)
    assert demand.charged == (blocks * output).sum()
    assert demand.read == sum(sum(p + i for i in range(o)) for p, o in zip(prompt, output, strict=True))
    assert demand.longest == blocks.max()
    assert demand.can_run(float(sorted(blocks)[0] + sorted(blocks)[1])) == 2
    assert demand.can_run(float(blocks.sum())) == 50
