"""No replay, and no iteration of a board, is better than its bound, and bounds say something."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from laminabench.catalog.deployment import parse_deployment
from laminabench.catalog.find_model import model
from laminabench.catalog.hardware import load_devices, priced_devices
from laminabench.sim.spec import Spec, Timing
from laminabench.systems.modelled.h2m2.boards import NAMES, board
from laminabench.systems.modelled.h2m2.mapping import plan, uniform
from laminabench.systems.modelled.h2m2.timing import POLICIES, BoardTiming
from laminabench.traces.table import PrefixBlocks, Trace, TraceMeta, make_trace
from laminabench.util.errors import UserError
from laminabench.workflows.plan.bounds import Bound
from laminabench.workflows.plan.measure import Point
from laminabench.workflows.plan.question import NO_PROMPTS, Candidate, Limits, Prompts, Question, candidates
from laminabench.workflows.plan.stages import Stage, Team, stage_of, team
from laminabench.workflows.plan.tables import below

SYSTEMS = ("vllm", "lamina", "lamina-v1")


def alone(question: Question) -> Team:
    """In this process."""
    with team(stage_of(question), 1, jobs=1) as result:
        return result


def falling(question: Question, some: list[Candidate]) -> list[Candidate]:
    """Those that fall behind by their bounds."""
    result = alone(question).bounds(some, lambda _: None)
    return [each for each, of in zip(some, result, strict=True) if of == "falls_behind"]


def judged(question: Question, some: list[Candidate]) -> list[tuple[Bound, Point]]:
    """Those that fit, with what their replays come to."""
    result = alone(question).bounds(some, lambda _: None)
    fitting = [(each, of) for each, of in zip(some, result, strict=True) if isinstance(of, Bound)]
    replayed = alone(question).points([each for each, _ in fitting], lambda _: None)
    return [(of, point) for (_, of), point in zip(fitting, replayed, strict=True)]


def a_dozen(
    seed: int, model: Any, prompts: Prompts = NO_PROMPTS, systems: tuple[str, ...] = SYSTEMS
) -> list[Candidate]:
    """Of all these systems, by chance."""
    devices = [load_devices()[name] for name in ("h100", "h20", "a100-80g", "l40s")]
    every = list(candidates(systems, model, devices, Limits(devices=16), prompts))
    chosen = np.random.default_rng(seed).choice(len(every), 12, replace=False)
    return [every[i] for i in chosen]


def some_boards(*sizes: tuple[int, int | None]) -> list[Candidate]:
    return [Candidate("h2m2", parse_deployment(f"{n}xh2m2"), most_requests=most) for n, most in sizes]


BOARDS = some_boards((1, 8), (2, 32), (3, None))


@pytest.mark.long(but=["False-?-*", "False-1?-*", "True-[0-5]-*"])
@pytest.mark.parametrize("mode", ["saturate", "open"])
@pytest.mark.parametrize(
    ("boards", "seed"), [*((False, seed) for seed in range(40)), *((True, seed) for seed in range(12))]
)
def test_no_replay_is_better_than_its_bound(
    boards: bool, seed: int, mode: Any, draw_trace: Any, pose: Any
) -> None:
    random = np.random.default_rng(seed if boards else 1000 + seed)
    trace = draw_trace(
        seed,
        requests=int(random.integers(1, 250 if boards else 500)),
        prompt=random.choice([10, 300, 2000] if boards else [10, 300, 2000, 8000]),
        output=random.choice([3, 30, 150]),
        spread=random.choice([0.0, 0.5, 1.5]),
        rate=random.choice([0.5, 5, 50]),
    )
    if int(trace.output_tokens.max()) == 1:
        pytest.skip("no time between tokens")
    models = ("llama3-8b", "llama-33b", "llama3-70b", "gpt3-175b" if boards else "qwen3-32b")
    question = pose(
        trace,
        model=models[seed % len(models)],
        mode=mode,
        costs=("vllm-0.14", "vidur-2024", "roofline")[seed % 3],
        host_async=seed % 5 == 0,
    )
    several = Prompts(instances=3 if mode == "open" else 1)
    for bound, point in judged(question, BOARDS if boards else a_dozen(seed, question.model, several)):
        assert point.tokens_per_s <= bound.tokens_per_s, point.candidate
        # The speed of a candidate that does not keep up with arrivals is irrelevant.
        assert point.tbt_p99_ms >= bound.tbt_p99_s * 1000 or not point.keeps_up, point.candidate


@pytest.mark.parametrize("mode", ["saturate", "open"])
@pytest.mark.parametrize("seed", range(3))
def test_bounds_hold_where_attention_workers_have_weights(
    seed: int, mode: Any, draw_trace: Any, pose: Any
) -> None:
    trace = draw_trace(seed, requests=200, prompt=300, output=30, spread=0.5, rate=5)
    question = pose(
        trace, model=("llama3-8b", "llama3-70b", "qwen3-30b-a3b")[seed], mode=mode, costs="roofline"
    )
    for bound, point in judged(question, a_dozen(seed, question.model, systems=("afd",))):
        assert point.tokens_per_s <= bound.tokens_per_s, point.candidate
        assert point.tbt_p99_ms >= bound.tbt_p99_s * 1000 or not point.keeps_up, point.candidate


@pytest.mark.parametrize("prefill", ["off", "colocated"])
@pytest.mark.parametrize("seed", range(6))
def test_bounds_hold_where_attention_was_measured(
    seed: int, prefill: Any, draw_trace: Any, pose: Any
) -> None:
    random = np.random.default_rng(3000 + seed)
    trace = draw_trace(
        seed,
        requests=200,
        prompt=random.choice([10, 300, 2000]),
        output=random.choice([3, 30, 150]),
        spread=random.choice([0.5, 1.5]),
        rate=random.choice([0.5, 5]),
    )
    question = pose(
        trace,
        model=("llama3.1-8b", "qwen3-32b")[seed % 2],
        mode=("saturate", "open")[seed // 2 % 2],
        costs="vllm-0.19",
        prefill=prefill,
        slo_queueing_p99_s=2.0,
    )
    priced = priced_devices(["rtx-pro-6000=1.5"])
    budget = 0 if prefill == "off" else 512
    names = ("1xrtx-pro-6000", "2xrtx-pro-6000")
    some = [Candidate("vllm", parse_deployment(name, priced), prompt_budget=budget) for name in names]
    result = judged(question, some)
    assert result
    for bound, point in result:
        assert point.tokens_per_s <= bound.tokens_per_s
        assert point.tbt_p99_ms >= bound.tbt_p99_s * 1000 or not point.keeps_up


ONE = Prompts((64, 512, 2048), (512, 2048))
# More instances than one are for arrivals only.
PROMPTS = {"saturate": ONE, "open": replace(ONE, instances=3)}


def with_prefixes(trace: Trace, random: np.random.Generator) -> Trace:
    """Prompts that share their beginnings with others, in blocks of 16, 128 or 512 tokens."""
    unit = int(random.choice([16, 128, 512]))
    root = random.integers(0, 4, len(trace))
    blocks = [
        [
            1000 * int(of) + place if place < 3 else 100_000 * (row + 1) + place
            for place in range(prompt // unit)
        ]
        for row, (of, prompt) in enumerate(zip(root, trace.prompt_tokens.tolist(), strict=True))
    ]
    columns = (trace.arrival_s, trace.prompt_tokens, trace.output_tokens)
    meta = TraceMeta("shared", block_tokens=unit)
    return make_trace(*columns, meta, prefix_blocks=PrefixBlocks.from_lists(blocks))


# Each model; prefixes and none with either mode.
@pytest.mark.long(but=["0-open", "1-saturate", "2-saturate", "3-open"])
@pytest.mark.parametrize("mode", ["saturate", "open"])
@pytest.mark.parametrize("seed", range(16))
def test_no_replay_with_prompts_is_better_than_its_bound(
    seed: int, mode: Any, draw_trace: Any, pose: Any
) -> None:
    random = np.random.default_rng(2000 + seed)
    trace = draw_trace(
        seed,
        requests=int(random.integers(60, 400)),
        prompt=random.choice([1, 10, 300, 2000, 8000]),
        output=random.choice([2, 30, 150]),
        spread=random.choice([0.0, 0.5, 1.5]),
        rate=random.choice([0.3, 2, 30]),
    )
    if int(trace.output_tokens.max()) == 1:
        pytest.skip("no time between tokens")
    if seed % 2:
        trace = with_prefixes(trace, random)
    question = pose(
        trace,
        model=("llama3-8b", "llama-33b", "llama3-70b", "qwen3-32b")[seed % 4],
        mode=mode,
        costs=("vllm-0.14", "vidur-2024")[seed % 3 == 0],
        host_async=seed % 5 == 0,
        prefill="colocated",
        slo_queueing_p99_s=2.0,
    )
    some = a_dozen(seed, question.model, PROMPTS[mode])[:6]
    for bound, point in judged(question, some):
        assert point.ttft_p99_ms is not None
        assert point.tokens_per_s <= bound.tokens_per_s, point.candidate
        assert point.tbt_p99_ms >= bound.tbt_p99_s * 1000 or not point.keeps_up, point.candidate
        assert point.ttft_p99_ms >= bound.ttft_p99_s * 1000, point.candidate
    assert not any(
        point.keeps_up for point in alone(question).points(falling(question, some), lambda _: None)
    )


def change_cluster(monkeypatch: pytest.MonkeyPatch, change: Callable[[Spec, Timing], Spec]) -> None:
    """Every candidate's, to what no system asks for of these models."""
    built = Stage.cluster

    def changed(stage: Stage, candidate: Candidate) -> Spec | None:
        spec = built(stage, candidate)
        if spec is None:
            return None
        assert isinstance(spec.timing, Timing)
        return change(spec, spec.timing)

    monkeypatch.setattr(Stage, "cluster", changed)


def attention_rows(spec: Spec, timing: Timing) -> Spec:
    """Attention workers that have a third of the model's work."""
    return replace(
        spec, timing=replace(timing, mid_slice=timing.mid_slice * 2 / 3, attention_rows=timing.mid_slice / 3)
    )


def windows(spec: Spec, timing: Timing) -> Spec:
    """Five layers of six look at no more than 1,024 tokens, and keep no more."""
    prompts = timing.prompts
    if prompts is not None:
        prompts = replace(prompts, per_pair=prompts.per_pair / 6, windowed_per_pair=prompts.per_pair * 5 / 6)
    per_token = timing.attention_per_token
    return replace(
        spec,
        timing=replace(
            timing,
            attention_per_token=per_token / 6,
            window=1024,
            windowed_per_token=per_token * 5 / 6,
            prompts=prompts,
        ),
        request_tokens=5 * 1024 // 6,
    )


def stages(spec: Spec, _: Timing) -> Spec:
    """Three, each of which does the attention of the batch that is with it."""
    names = tuple(f"stage {i}" for i in range(3))
    return replace(spec, batches=3, pipelining="fixed", own_attention=True, replica_names=names)


# Every pair of them.
@pytest.mark.long(
    but=[
        *("open-colocated-attention_rows", "saturate-off-attention_rows", "saturate-colocated-windows"),
        *("open-off-windows", "open-colocated-stages", "saturate-off-stages"),
    ]
)
@pytest.mark.parametrize("change", [attention_rows, windows, stages])
@pytest.mark.parametrize("prefill", ["off", "colocated"])
@pytest.mark.parametrize("mode", ["saturate", "open"])
def test_bounds_hold_of_other_layers(
    change: Any, prefill: Any, mode: Any, draw_trace: Any, pose: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    change_cluster(monkeypatch, change)
    trace = draw_trace(7, requests=250, prompt=1000, output=40, spread=0.7, rate=3)
    question = pose(trace, mode=mode, prefill=prefill, slo_queueing_p99_s=2.0)
    some = a_dozen(7, question.model, NO_PROMPTS if prefill == "off" else PROMPTS[mode])[:4]
    result = judged(question, some)
    assert result
    for bound, point in result:
        assert point.tokens_per_s <= bound.tokens_per_s, point.candidate
        assert point.tbt_p99_ms >= bound.tbt_p99_s * 1000 or not point.keeps_up, point.candidate
        assert (point.ttft_p99_ms or 0) >= bound.ttft_p99_s * 1000, point.candidate


@pytest.mark.parametrize("change", [attention_rows, windows])
@pytest.mark.parametrize("prefill", ["off", "colocated"])
def test_bounds_are_near_with_other_layers(
    change: Any, prefill: Any, draw_trace: Any, pose: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    change_cluster(monkeypatch, change)
    requests, output, budget, most = (2000, 100, 0, 1.1) if prefill == "off" else (1000, 20, 2048, 1.35)
    trace = draw_trace(1, requests=requests, prompt=4000, output=output, spread=0.3)
    question = pose(trace, prefill=prefill)
    some = [replace(each, prompt_budget=budget) for each in all_of_vllm(question.model)]
    result = judged(question, some)
    assert len(result) >= 2
    for bound, point in result:
        assert bound.tokens_per_s <= most * point.tokens_per_s, point.candidate


def test_bounds_with_prompts_say_something(draw_trace: Any, pose: Any) -> None:
    """Compute-bound: nearly all time is that of prompts, saturated or to the last arrival."""
    trace = draw_trace(4, requests=1000, prompt=4000, output=20, spread=0.3, rate=6)
    saturated = pose(trace, prefill="colocated")
    some = [replace(each, prompt_budget=2048) for each in all_of_vllm(saturated.model)]
    for bound, point in judged(saturated, some):
        assert bound.tokens_per_s <= 1.35 * point.tokens_per_s, point.candidate
    open_one = pose(trace, mode="open", prefill="colocated", slo_queueing_p99_s=2.0)
    assert "vllm 4xh20, 2048 tokens an iteration" in map(str, falling(open_one, some))
    for bound, point in judged(open_one, some):
        assert bound.ttft_p99_s * 1000 >= 0.15 * (point.ttft_p99_ms or 0), point.candidate


def test_bounds_are_near_where_batches_stay_full(draw_trace: Any, pose: Any) -> None:
    """Serial, many times more requests than fit: nothing but the beginning is unlike the steady state."""
    hosts = pose(draw_trace(1, requests=2000, prompt=4000, output=100, spread=0.3))
    boards = pose(draw_trace(1, requests=1000, prompt=1500, output=40, spread=0.3))
    for question, some, least in (
        (hosts, all_of_vllm(hosts.model), 0.6),
        (boards, some_boards((1, 64), (2, 32)), 0.8),
    ):
        result = judged(question, some)
        assert len(result) >= 2
        for bound, point in result:
            assert bound.tokens_per_s <= 1.1 * point.tokens_per_s, point.candidate
            assert bound.tbt_p99_s * 1000 >= least * point.tbt_p99_ms, point.candidate


def all_of_vllm(model: Any) -> list[Candidate]:
    devices = [load_devices()[name] for name in ("h100", "h20", "a100-80g")]
    return list(candidates(["vllm"], model, devices, Limits(devices=8)))


def test_open_what_falls_behind_by_its_bound_does_in_its_replay(draw_trace: Any, pose: Any) -> None:
    trace = draw_trace(3, requests=600, prompt=3000, output=150, rate=40)
    question = pose(trace, mode="open")
    behind = falling(question, all_of_vllm(question.model) + a_dozen(3, question.model))
    assert behind
    assert not any(point.keeps_up for point in alone(question).points(behind, lambda _: None))


def test_a_candidate_that_cannot_hold_the_longest_request_is_out(pose: Any) -> None:
    """2 H20 hold 84,503 tokens of llama3-70b in blocks of 16."""
    for prompt, fits in ((84_480 - 16, True), (84_496, False)):
        meta = TraceMeta("tall")
        trace = make_trace(np.zeros(2), np.array([prompt, 9], np.int32), np.array([16, 9], np.int32), meta)
        some = [Candidate("vllm", parse_deployment("2xh20"))]
        result = alone(pose(trace)).bounds(some, lambda _: None)
        assert isinstance(result[0], Bound) if fits else result == ["too_small"]


def test_a_bound_leaves_the_room_that_admission_leaves(pose: Any) -> None:
    """2 H20 hold 84,503 tokens of llama3-70b: requests of 50,100 run one at a time, and never 1.7."""
    prompts, outputs = np.full(60, 50_000, np.int32), np.full(60, 100, np.int32)
    question = pose(make_trace(np.zeros(60), prompts, outputs, TraceMeta("long")))
    ((bound, point),) = judged(question, [Candidate("vllm", parse_deployment("2xh20"))])
    assert point.tbt_p99_ms >= bound.tbt_p99_s * 1000 > 0


@pytest.mark.parametrize("at", [1, 3.7, 50, 200, 1e9])
@pytest.mark.parametrize("through_zero", [False, True])
def test_a_line_below_a_table_is_below_it(at: float, through_zero: bool) -> None:
    random = np.random.default_rng(7)
    requests = np.arange(1, 201)
    for table in (3.0 + 0.1 * requests, requests**1.5, np.cumsum(random.random(200)), np.full(200, 5.0)):
        line = below(table, at, through_zero=through_zero)
        assert all(line.at(one) <= value + 1e-9 for one, value in zip(requests, table, strict=True))
        assert not through_zero or line.base >= 0


MODELS = ("llama3-8b", "llama2-70b", "chinchilla-70b", "qwen3-32b")


def least_s(timing: BoardTiming, batch: int, kv_tokens: int, copies: int = 1) -> float:
    """Lower bound of so many boards in step, with so much on each."""
    bounds = timing.least(copies * batch, copies)
    assert bounds is not None
    return float(bounds[0][copies * batch - 1] + bounds[1] * copies * kv_tokens)


@settings(deadline=None, max_examples=200)
@given(
    st.sampled_from(NAMES),
    st.sampled_from(MODELS),
    st.sampled_from([name for name in POLICIES if name != "8-hbm"]),
    st.integers(1, 200),
    st.integers(1, 3000),
    st.sampled_from(["before", "behind"]),
    st.booleans(),
    st.booleans(),
)
def test_no_iteration_is_shorter(
    name: str, of: str, policy: str, batch: int, length: int, load: Any, reread: bool, translated: bool
) -> None:
    chosen = replace(board(name), weight_load=load, reread_kv=reread)
    shape, moment = model(of), uniform(batch, length, chosen)
    shares = (0.2, 0.2) if policy == "flexgen" else None
    try:
        result = plan(chosen, shape, policy, moment, translated=translated, shares=shares, lm_head=True)
    except UserError:
        return  # it does not fit
    timing = BoardTiming(chosen, shape, policy)
    assert least_s(timing, batch, moment.kv_tokens) <= result.iteration_s * (1 + 1e-9)


@pytest.mark.parametrize(("batch", "length"), [(32, 512), (128, 2048), (64, 4096)])
def test_the_best_mapping_is_near_it(batch: int, length: int) -> None:
    chosen, shape = board("h2m2"), model("llama2-70b")
    moment = uniform(batch, length, chosen)
    result = plan(chosen, shape, "oracle", moment, lm_head=True)
    least = least_s(BoardTiming(chosen, shape, "greedy"), batch, moment.kv_tokens)
    assert least >= 0.85 * result.iteration_s


def test_boards_in_step_take_as_long_as_one() -> None:
    timing = BoardTiming(board("h2m2"), model("llama3-8b"), "greedy", host_fixed=1e-3, host_per_request=1e-5)
    alone = least_s(timing, 20, 30_000)
    assert least_s(timing, 20, 30_000, copies=3) == pytest.approx(alone, rel=1e-12)
    behind = replace(timing, host_async=True)
    assert alone - least_s(behind, 20, 30_000) == pytest.approx(1e-3 + 20 * 1e-5)


def test_of_other_devices_than_a_board_s_nothing_is_known() -> None:
    timing = BoardTiming(board("h2m2"), model("llama3-8b"), "8-hbm")
    assert timing.least(4, 1) is None
