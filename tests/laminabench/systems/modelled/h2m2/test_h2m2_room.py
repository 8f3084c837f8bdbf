"""How much a board's paged memory holds, what it keeps free, and what fragmentation takes."""

from __future__ import annotations

from typing import Any

import pytest
from h2m2_reference import few_pages

from laminabench import _sim
from laminabench._sim import H2m2Memory
from laminabench.catalog.find_model import model
from laminabench.systems.modelled.h2m2.boards import board
from laminabench.systems.modelled.h2m2.timing import shape_of

PAPER = board("h2m2").native()
GPT3, CHINCHILLA, LLAMA = (shape_of(model(n)) for n in ("gpt3-175b", "chinchilla-70b", "llama2-70b"))


def weight_bytes(shape: dict[str, Any]) -> int:
    attention = (2 * shape["heads"] + 2 * shape["kv_heads"]) * shape["head_dim"]
    feed_forward = shape["ff_matrices"] * shape["intermediate"]
    return int(shape["hidden"] * (shape["layers"] * (attention + feed_forward) + shape["vocab"]))


def test_columns_and_waste_are_the_papers() -> None:
    for shape in (GPT3, CHINCHILLA, LLAMA):
        assert H2m2Memory.slots_of_column(PAPER, shape) == 2**21 // 256 == 8192
    # Equation 2 at batch 32, and half a page a tensor where KV is paged by request.
    assert _sim.h2m2_waste_of_activations(PAPER, GPT3, 32) == 156 * 2**20
    assert _sim.h2m2_waste_by_request(PAPER, GPT3, 32) == 32 * 96 * 2 * 2**20
    # Kept free: a page a layer for activations, three quarters of one each for boundaries in qkv and in fc.
    assert _sim.h2m2_reserve(PAPER, GPT3) == (96 + 72 + 72, 96 + 72 + 72 + 1)


def test_gpt3s_weights_fill_whole_pages_but_for_boundaries_between_heads() -> None:
    memory = H2m2Memory(PAPER, GPT3, 1)
    memory.apply(0, 0, 0)
    assert memory.occupancy()["wasted_bytes"] == 0
    assert memory.apply(1, 0, 0) == {"allocated": 0, "freed": 0, "to_hbm": 96 * 3, "to_lpddr": 0}
    # A head of qkv takes 2.25 pages of each layer: the third one is on both sides.
    assert memory.occupancy() == {
        "hbm_qkv": 96 * 3,
        "hbm_kv": 0,
        "hbm_fc": 0,
        "lpddr": 96 * (216 + 648 - 2),
        "wasted_bytes": 96 * 2**21,
    }
    assert memory.apply(0, 0, 0) == {"allocated": 0, "freed": 96, "to_hbm": 0, "to_lpddr": 96 * 2}


@pytest.mark.parametrize("shape", [GPT3, CHINCHILLA, LLAMA, LLAMA | {"vocab": 32000}])
def test_most_columns_is_what_there_are_mappings_for(shape: dict[str, Any]) -> None:
    native = PAPER
    most = H2m2Memory.most_columns(native, shape)
    column = shape["layers"] * shape["kv_heads"] * 2**21
    weights = weight_bytes(shape)
    total = native["hbm"]["capacity_bytes"] + native["lpddr"]["capacity_bytes"]
    assert most == (total - weights - sum(_sim.h2m2_reserve(native, shape)) * 2**21) // column
    H2m2Memory(native, shape, most)
    with pytest.raises(ValueError, match=f"room for {most} KV columns"):
        H2m2Memory(native, shape, most + 1)


def test_a_model_that_does_not_fit_has_no_columns() -> None:
    assert H2m2Memory.most_columns(few_pages(40000, 30000, 2**21), GPT3) == 0
    assert H2m2Memory.most_columns(few_pages(0, 10**6, 2**21), GPT3) == 0  # nowhere for HBM's activations


def test_no_more_columns_than_token_slots_can_be_numbered() -> None:
    shape = GPT3 | {"layers": 1, "hidden": 8, "heads": 1, "kv_heads": 1, "head_dim": 1, "intermediate": 8}
    native = few_pages(2100, 4000, 2**21)  # pages for 6000 columns of 2^20 tokens
    assert H2m2Memory.most_columns(native, shape) == (2**31 - 1) // 2**20
    H2m2Memory(native, shape, 2047)


def test_coarse_kv_heads_can_rule_out_a_number_of_columns_that_the_bytes_allow() -> None:
    # One KV head is on one side, whichever; the weights go to the other.
    shape = GPT3 | {"layers": 1, "hidden": 8, "heads": 1, "kv_heads": 1, "head_dim": 1, "intermediate": 8}
    reserve = _sim.h2m2_reserve(few_pages(100, 100, 64), shape)
    pages = 1 + 3  # 24 bytes of qkv, 136 of fc
    hbm, lpddr = (frames + 1 + pages + 4 for frames in reserve)
    assert H2m2Memory.most_columns(few_pages(hbm, lpddr, 64), shape) == pages + 4
    assert H2m2Memory.most_columns(few_pages(hbm + 4, lpddr - 4, 64), shape) == pages + 8


def test_wrong_mappings_and_models_are_refused() -> None:
    memory = H2m2Memory(PAPER, LLAMA, 2)
    for wrong, named in (((65, 0, 0), "qkv heads"), ((0, 9, 0), "KV groups"), ((0, 0, -1), "fc heads")):
        with pytest.raises(ValueError, match=named):
            memory.apply(*wrong)
    with pytest.raises(ValueError, match="81 fc layers in HBM but there are 80"):
        memory.apply(0, 0, 81, whole_layers=True)
    with pytest.raises(ValueError, match="heads that divide"):
        H2m2Memory.most_columns(PAPER, LLAMA | {"kv_heads": 7})
    with pytest.raises(ValueError, match="a page of 64 bytes cannot hold the KV of one token"):
        H2m2Memory.most_columns(few_pages(10**9, 10**9, 64), LLAMA)
    memory.check_integrity()
    assert memory.occupancy()["lpddr"] == 0
