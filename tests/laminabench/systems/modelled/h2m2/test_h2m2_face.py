"""One iteration on a board through the Python face: the paper's models, and wrong questions."""

from __future__ import annotations

import re
from dataclasses import replace
from statistics import mean

import pytest

from laminabench.catalog.find_model import model
from laminabench.catalog.models import ModelShape
from laminabench.systems.modelled.h2m2 import mapping, timing
from laminabench.systems.modelled.h2m2.boards import board
from laminabench.systems.modelled.h2m2.timing import POLICIES
from laminabench.util.errors import UserError

BOARD = board("h2m2")
GPT3, CHINCHILLA, LLAMA = model("gpt3-175b"), model("chinchilla-70b"), model("llama2-70b")


def speed_up(policy: str, lengths: range | list[int], batch: int = 32, name: str = "gpt3-175b") -> float:
    """Over the LPDDR-only board, the mean over sequence lengths."""
    moments = [mapping.uniform(batch, length, BOARD) for length in lengths]
    return mean(
        mapping.plan(BOARD, model(name), "lpddr", moment).iteration_s
        / mapping.plan(BOARD, model(name), policy, moment, translated=policy == "greedy").iteration_s
        for moment in moments
    )


@pytest.mark.parametrize(
    ("shape", "batch", "longest"), [(GPT3, 32, 4477), (CHINCHILLA, 64, 5335), (LLAMA, 128, 21150)]
)
def test_the_longest_that_lpddr_alone_holds(shape: ModelShape, batch: int, longest: int) -> None:
    mapping.plan(BOARD, shape, "lpddr", mapping.uniform(batch, longest, BOARD))
    with pytest.raises(UserError, match=f"{batch - 1} requests of that length or {longest} tokens each"):
        mapping.plan(BOARD, shape, "lpddr", mapping.uniform(batch, longest + 1, BOARD))


# What the study of the model found with the same parameters; the paper has 1.46, 1.07, ~1.51, 1.55, 2.94.
@pytest.mark.parametrize(
    ("policy", "result", "batch", "lengths", "name"),
    [
        ("greedy", 1.46, 32, [512, 1024, 1536, 2048], "gpt3-175b"),
        ("hierarchical", 1.08, 32, [512, 1024, 1536, 2048], "gpt3-175b"),
        ("oracle", 1.51, 32, [512, 1024, 1536, 2048], "gpt3-175b"),
        ("8-hbm", 2.29, 32, [512, 1024, 1536, 2048], "gpt3-175b"),
        ("naive", 1.24, 32, [1024], "gpt3-175b"),
        ("a-major", 1.37, 32, [1024], "gpt3-175b"),
        ("q-major", 1.20, 32, [1024], "gpt3-175b"),
        ("f-major", 1.11, 32, [1024], "gpt3-175b"),
        ("greedy", 1.57, 64, range(512, 4097, 512), "chinchilla-70b"),
        ("greedy", 3.09, 128, [512, 1024, 2048, 4096], "llama2-70b"),
    ],
)
def test_speed_ups_are_those_of_the_study(
    policy: str, result: float, batch: int, lengths: range | list[int], name: str
) -> None:
    assert speed_up(policy, lengths, batch, name) == pytest.approx(result, abs=0.006)


def test_what_the_sentence_says_would_fit_does_fit() -> None:
    with pytest.raises(UserError) as caught:
        mapping.plan(BOARD, GPT3, "greedy", mapping.uniform(64, 9000, BOARD))
    batch, longest = map(int, re.findall(r"(\d+) (?:requests of that|tokens each)", str(caught.value)))
    mapping.plan(BOARD, GPT3, "greedy", mapping.uniform(batch, 9000, BOARD))
    mapping.plan(BOARD, GPT3, "greedy", mapping.uniform(64, longest, BOARD))
    for too_large in (mapping.uniform(batch + 1, 9000, BOARD), mapping.uniform(64, longest + 1, BOARD)):
        with pytest.raises(UserError, match="mapping-out-of-memory"):
            mapping.plan(BOARD, GPT3, "greedy", too_large)


def test_a_model_that_is_too_large_by_itself() -> None:
    small = replace(BOARD, lpddr=replace(BOARD.lpddr, capacity_bytes=10e9))
    for compute in (mapping.plan, lambda *args: mapping.flexgen_shares(args[0], args[1], args[3])):
        with pytest.raises(UserError, match="mapping-out-of-memory"):
            compute(small, GPT3, "greedy", mapping.uniform(1, 1, BOARD))


def test_wrong_questions() -> None:
    with pytest.raises(UserError, match="mapping-unknown"):
        mapping.plan(BOARD, GPT3, "gredy", mapping.uniform(1, 1, BOARD))
    with pytest.raises(UserError, match="mapping-empty-iteration"):
        mapping.plan(BOARD, GPT3, "greedy", mapping.IterationLoad(0, 0, 0))


def test_a_moment_counts_rows_request_by_request() -> None:
    assert mapping.load_of([1, 32, 33], BOARD) == mapping.IterationLoad(3, 66, 4)
    assert mapping.load_of([100] * 7, BOARD) == mapping.uniform(7, 100, BOARD)


def test_every_policy_has_a_plan_and_stays_within_memory() -> None:
    moment = mapping.uniform(32, 1024, BOARD)
    total = sum(mapping.footprint(GPT3, moment.kv_tokens).values())
    for policy in POLICIES:
        plan = mapping.plan(BOARD, GPT3, policy, moment)
        layer = plan.qkv_s + plan.attention_s + plan.fc_s + plan.exchange_s + plan.launch_s
        assert plan.iteration_s == pytest.approx(plan.layers * layer + plan.lm_head_s + plan.on_demand_s)
        in_hbm = sum(plan.hbm_bytes.values())
        room = {"8-hbm": total, "lpddr": 0.0}.get(policy, BOARD.hbm.capacity_bytes)
        assert in_hbm <= room * (1 + 1e-12)


def test_a_given_mapping_takes_as_long_as_the_policys() -> None:
    moment = mapping.uniform(32, 1024, BOARD)
    for policy in ("greedy", "naive"):
        plan = mapping.plan(BOARD, GPT3, policy, moment)
        assert mapping.time_of(BOARD, GPT3, plan.mapping, moment) == plan


def test_weights_and_kv_are_int8_and_the_lm_head_is_extra() -> None:
    for dtype in ("bf16", "fp8"):
        assert timing.shape_of(replace(GPT3, dtype=dtype))["element_bytes"] == 1
    plain, headed = (sum(mapping.footprint(LLAMA, 0, lm_head=head).values()) for head in (False, True))
    assert headed - plain == LLAMA.hidden * LLAMA.vocab
    moment = mapping.uniform(128, 1024, BOARD)
    plans = [mapping.plan(BOARD, LLAMA, "greedy", moment, lm_head=head) for head in (False, True)]
    assert plans[0].lm_head_s == 0
    assert plans[1].lm_head_s > BOARD.launch_s


def test_flexgens_programme_finds_what_a_grid_of_shares_finds() -> None:
    moment = mapping.uniform(32, 1024, BOARD)
    size = mapping.footprint(GPT3, moment.kv_tokens)
    weights, kv = size["qkv"] + size["fc"], size["attention"]
    mm, mv = 4 * 128 * 128 * 1e9, 4 * 32 * 128 * 1e9

    def slower(in_hbm: float, kv_in_hbm: float) -> float:
        sides = ((in_hbm, kv_in_hbm), (1 - in_hbm, 1 - kv_in_hbm))
        return max(w * weights * 32 / mm + c * kv / mv for w, c in sides)

    shares = mapping.flexgen_shares(BOARD, GPT3, moment)
    assert shares[0] * weights + shares[1] * kv <= 96e9 * (1 + 1e-9)
    grid = [
        slower(w / 200, c / 200)
        for w in range(201)
        for c in range(201)
        if w / 200 * weights + c / 200 * kv <= 96e9
    ]
    assert slower(*shares) <= min(grid) * (1 + 1e-9)
    assert slower(*shares) == pytest.approx(min(grid), rel=0.01)
    given = mapping.plan(BOARD, GPT3, "flexgen", moment, shares=shares)
    assert mapping.plan(BOARD, GPT3, "flexgen", moment) == given
    assert mapping.plan(BOARD, GPT3, "flexgen", moment, shares=(0.2, 0.2)) != given
