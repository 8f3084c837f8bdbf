"""No iteration of a board is shorter than its bound's tables say, and they say something."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from laminabench.catalog.boards import NAMES, board
from laminabench.catalog.find_model import model
from laminabench.errors import UserError
from laminabench.plan.tables import tables_of_boards
from laminabench.sim.h2m2 import plan, uniform
from laminabench.sim.spec import POLICIES, BoardTiming, Spec

MODELS = ("llama3-8b", "llama2-70b", "chinchilla-70b", "qwen3-32b")


def least_s(timing: BoardTiming, batch: int, kv_tokens: int, copies: int = 1) -> float:
    """By the tables: of so many boards in step, with so much on each."""
    spec = Spec(timing.model.layers, timing, tokens_per_pool=1, max_requests=1, copies=copies)
    tables = tables_of_boards(spec, timing, copies * batch)
    assert tables is not None
    return float(tables.chain[copies * batch - 1] + tables.per_token * copies * kv_tokens)


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
        found = plan(chosen, shape, policy, moment, translated=translated, shares=shares, lm_head=True)
    except UserError:
        return  # it does not fit
    timing = BoardTiming(chosen, shape, policy)
    assert least_s(timing, batch, moment.kv_tokens) <= found.iteration_s * (1 + 1e-9)


@pytest.mark.parametrize(("batch", "length"), [(32, 512), (128, 2048), (64, 4096)])
def test_the_best_mapping_is_near_it(batch: int, length: int) -> None:
    chosen, shape = board("h2m2"), model("llama2-70b")
    moment = uniform(batch, length, chosen)
    found = plan(chosen, shape, "oracle", moment, lm_head=True)
    least = least_s(BoardTiming(chosen, shape, "greedy"), batch, moment.kv_tokens)
    assert least >= 0.85 * found.iteration_s


def test_boards_in_step_take_as_long_as_one() -> None:
    timing = BoardTiming(board("h2m2"), model("llama3-8b"), "greedy", host_fixed=1e-3, host_per_request=1e-5)
    alone = least_s(timing, 20, 30_000)
    assert least_s(timing, 20, 30_000, copies=3) == pytest.approx(alone, rel=1e-12)
    behind = replace(timing, host_async=True)
    assert alone - least_s(behind, 20, 30_000) == pytest.approx(1e-3 + 20 * 1e-5)


def test_of_other_devices_than_a_board_s_nothing_is_known() -> None:
    timing = BoardTiming(board("h2m2"), model("llama3-8b"), "8-hbm")
    spec = Spec(32, timing, tokens_per_pool=1, max_requests=1)
    assert tables_of_boards(spec, timing, 4) is None
