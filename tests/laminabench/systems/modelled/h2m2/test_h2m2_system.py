"""H2M2 as a system: what boards are built of, what fits on them, what is refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from laminabench.catalog.cost_file import load_costs
from laminabench.catalog.deployment import parse_deployment
from laminabench.catalog.find_model import model
from laminabench.catalog.network import parse_network
from laminabench.sim.simulate import Offered, simulate
from laminabench.sim.spec import Fleet
from laminabench.sim.timeline import lanes_of
from laminabench.systems.modelled.h2m2.boards import board
from laminabench.systems.modelled.h2m2.mapping import footprint, plan, uniform
from laminabench.systems.modelled.h2m2.timing import POLICIES, BoardTiming
from laminabench.systems.modelled.setup import Modelled, Setup
from laminabench.systems.registry import papers_setup, system
from laminabench.traces.table import Trace, TraceMeta
from laminabench.util.errors import UserError


def a_setup(deployment: str = "1xh2m2", model_name: str = "gpt3-175b", **more: Any) -> Setup:
    return Setup(
        model(model_name),
        parse_deployment(deployment),
        load_costs("vllm-0.14"),
        parse_network("fhbn"),
        **more,
    )


def build(deployment: str = "1xh2m2", model_name: str = "gpt3-175b", **more: Any) -> Modelled:
    return system("h2m2").build(a_setup(deployment, model_name, **more))


def a_trace(rows: int) -> Trace:
    """Prompts of some hundred tokens, answers of a few."""
    rng = np.random.default_rng(7)
    prompt, output = rng.integers(1, 900, rows), rng.integers(1, 12, rows)
    return Trace(np.zeros(rows), prompt.astype(np.int32), output.astype(np.int32), TraceMeta("short"))


def timing_of(modelled: Modelled) -> BoardTiming:
    assert isinstance(modelled.spec.timing, BoardTiming)
    return modelled.spec.timing


@pytest.mark.parametrize("name", ["gpt3-175b", "chinchilla-70b", "llama2-70b", "llama3-70b", "opt-175b"])
def test_one_board_is_the_default_and_serves_the_large_models(name: str) -> None:
    setup = papers_setup("h2m2", model(name), load_costs("vllm-0.14"))
    assert str(setup.deployment) == "1xh2m2"
    modelled = system("h2m2").build(setup)
    outcome = simulate(a_trace(30), modelled.spec, Offered())
    assert not np.isnan(outcome.requests["finished_s"]).any()


def test_kv_memory_is_whole_columns_of_what_weights_leave() -> None:
    facts = build().facts
    # A page of 2 MiB has K and V of 8,192 tokens of one head; a column has one for each layer and head.
    assert facts["kv_column_tokens"] == 8192
    weights = sum(footprint(model("gpt3-175b"), 0, lm_head=True).values())
    assert facts["weight_bytes_per_board"] == weights
    column = 96 * 96 * 2**21
    # Beside the weights, less than one column and a reserve of some pages a layer are lost on both sides.
    columns = (608e9 - weights) / column
    assert columns - 2 < facts["kv_capacity_tokens"] / 8192 <= columns
    assert facts["weights_and_kv"] == "int8"


@pytest.mark.parametrize(("mapping", "room_gb"), [("lpddr", 512), ("hierarchical", 608), ("8-hbm", 768)])
def test_policies_that_do_not_map_have_their_own_memories(mapping: str, room_gb: int) -> None:
    facts = build(mapping=mapping).facts
    left = room_gb * 1e9 - facts["weight_bytes_per_board"]
    assert facts["kv_capacity_tokens"] == int(left / (2 * 96 * 12288))
    assert facts["kv_column_tokens"] == 1


def test_greedy_counts_tlb_misses_and_the_oracle_does_not() -> None:
    assert build().facts["mapping"] == "greedy"
    translated = {name: timing_of(build(mapping=name)).translated for name in POLICIES}
    assert [name for name, on in translated.items() if not on] == ["oracle"]


def test_flexgens_shares_are_solved_for_memory_that_is_full() -> None:
    modelled = build(mapping="flexgen", max_num_seqs=32, kv_tokens=65536)
    timing, row = timing_of(modelled), mapping_row(modelled)
    weights, kv = timing.shares
    room, _ = timing.kv_room()
    full = footprint(model("gpt3-175b"), room // 32 * 32, lm_head=True)
    in_hbm = weights * (full["qkv"] + full["fc"]) + kv * full["attention"]
    assert in_hbm == pytest.approx(96e9)
    assert row["coefficients"] | {"weights_share": weights, "kv_share": kv} == row["coefficients"]
    assert row["kind"] == "assumed"


def mapping_row(modelled: Modelled) -> dict[str, Any]:
    (row,) = (each for each in modelled.coefficients if each["term"] == "mapping")
    return row


@pytest.mark.parametrize("mapping", POLICIES)
def test_every_number_says_where_it_is_from(mapping: str) -> None:
    modelled = build(mapping=mapping)
    assert all(row["source"] and row["coefficients"] for row in modelled.coefficients)
    kinds = {row["term"]: row["kind"] for row in modelled.coefficients}
    assert kinds["hbm_capacity_gb"] == "paper"
    assert kinds["dram_efficiency"] == "fitted"
    assert kinds["launch_us"] == "assumed"
    assert {"mapping", "host", "recompute"} <= kinds.keys()
    assert mapping_row(modelled)["coefficients"]["policy"] == mapping


def test_the_host_is_the_cost_sets_and_the_rest_the_boards() -> None:
    spec = build(max_num_seqs=16, kv_tokens=20000).spec
    host = load_costs("vllm-0.14").host
    trace = a_trace(40)
    outcome = simulate(trace, spec, Offered())
    size = outcome.iterations["size"]
    assert outcome.iterations["host_s"] == pytest.approx(host.per_step_s + host.per_request_s * size)
    behind = build(max_num_seqs=16, kv_tokens=20000, host_async=True).spec
    assert simulate(trace, behind, Offered()).iterations["host_s"][1:].max() == 0
    assert simulate(trace, behind, Offered()).end_s < outcome.end_s


def test_a_preempted_token_costs_a_prefill_at_the_peak_of_both_chips() -> None:
    seconds = timing_of(build()).recompute_per_token
    shape = model("gpt3-175b")
    multiplications = shape.weights().matrices + shape.vocab * shape.hidden
    assert seconds == pytest.approx(multiplications / (2 * 4 * 128 * 128 * 1e9) * (128 + 2048) / 2048)
    other = replace(board("h2m2"), weight_load="behind", clock_hz=2e9)
    from_h2m2 = type(system("h2m2"))._build.__globals__["_recompute_seconds"]
    assert from_h2m2(shape, other) == pytest.approx(seconds * 2048 / (128 + 2048) / 2)


def test_several_boards_are_copies_with_lanes_of_their_own() -> None:
    one, three = build(max_num_seqs=4), build("3xh2m2", max_num_seqs=4)
    assert three.facts["kv_capacity_tokens"] == 3 * one.facts["kv_capacity_tokens"]
    assert (three.spec.tokens_per_pool, three.spec.copies) == (one.spec.tokens_per_pool, 3)
    trace = a_trace(12)
    outcome = simulate(trace, three.spec, Offered(), record_s=(0.0, 1.0))
    assert outcome.requests["batch"].tolist() == [0, 1, 2] * 4
    assert outcome.memory is not None
    assert len(outcome.memory["moved_bytes"]) == len(outcome.iterations["batch"])
    assert lanes_of(outcome, Fleet((three.spec,))).names == ("h2m2 0", "h2m2 1", "h2m2 2")
    alone = simulate(trace, one.spec, Offered(), record_s=(0.0, 1.0))
    assert lanes_of(alone, Fleet((one.spec,))).names == ("1xh2m2",)


def test_a_model_in_another_format_is_served_in_int8() -> None:
    shape = model("llama3-70b")
    assert shape.dtype == "bf16"
    wide, narrow = (
        system("h2m2").build(replace(a_setup(), model=each)).facts
        for each in (shape, replace(shape, dtype="int8", kv_dtype="int8"))
    )
    assert wide == narrow


def test_the_first_iteration_is_the_policys_for_those_prompts() -> None:
    modelled = build(max_num_seqs=8, mapping="lpddr")
    timing = timing_of(modelled)
    trace = a_trace(1)
    outcome = simulate(trace, modelled.spec, Offered())
    moment = uniform(1, int(trace.prompt_tokens[0]) + 1, timing.board)
    expected = plan(timing.board, timing.model, "lpddr", moment, lm_head=True).iteration_s
    assert outcome.iterations["duration_s"][0] - outcome.iterations["host_s"][0] == pytest.approx(expected)


def test_what_cannot_be() -> None:
    for name, deployment, more, code in (
        ("h2m2", "4xh100", {}, "deployment-not-for-system"),
        ("h2m2", "1xh2m2+2xh20", {}, "deployment-not-for-system"),
        ("h2m2", "1xh2m2", {"board": "hbmcap-les"}, "catalogue-unknown-name"),
        ("h2m2", "2xh2m2", {"kv_tokens": 10**7}, "kv-tokens-too-many"),
        ("vllm", "1xh2m2", {}, "deployment-not-for-system"),
        ("lamina", "1xh100+1xh2m2", {}, "deployment-not-for-system"),
        ("lamina-v1", "1xh2m2+3xrtx-3090", {}, "deployment-not-for-system"),
    ):
        with pytest.raises(UserError, match=code):
            system(name).build(a_setup(deployment, **more))


@pytest.mark.parametrize("mapping", ["greedy", "lpddr"])
def test_a_model_too_large_is_named_with_its_weights_and_the_board(tmp_path: Path, mapping: str) -> None:
    tiny = tmp_path / "tiny.toml"
    tiny.write_text("hbm_capacity_gb = 20\nlpddr_capacity_gb = 100\n")
    with pytest.raises(UserError) as error:
        build(board=str(tiny), mapping=mapping)
    assert "gpt3-175b does not fit on board tiny: its 174.6 GB of INT8 weights" in str(error.value)
    assert "20 GB HBM + 100 GB LPDDR" in str(error.value)
