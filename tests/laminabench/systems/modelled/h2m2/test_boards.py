"""Boards: the catalogue's, variations of them, and those of a file."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from laminabench.systems.modelled.h2m2.boards import NAMES, PARAMETERS, Board, board, load_boards
from laminabench.util.errors import UserError

# The paper's table 4.
VARIANTS = {
    "hbmcap-less": ("hbm_capacity_gb", 48),
    "hbmcap-more": ("hbm_capacity_gb", 192),
    "hbmbw-less": ("hbm_bandwidth_gb_per_s", 2250),
    "hbmbw-more": ("hbm_bandwidth_gb_per_s", 4000),
    "lpddrbw-less": ("lpddr_bandwidth_gb_per_s", 408),
    "lpddrbw-more": ("lpddr_bandwidth_gb_per_s", 680),
    "hbmchip-more": ("hbm_chips", 2),
    "lpddrchip-more": ("lpddr_chips", 2),
}


def parameters(result: Board) -> dict[str, object]:
    return {key: value for key, value in result.describe().items() if key not in ("name", "title")}


def test_the_names_are_the_catalogues() -> None:
    assert tuple(load_boards()) == NAMES == ("h2m2", *VARIANTS)


@pytest.mark.parametrize(("name", "change"), VARIANTS.items())
def test_a_variant_changes_one_parameter(name: str, change: tuple[str, float]) -> None:
    original, variant = parameters(board("h2m2")), parameters(board(name))
    assert {key: value for key, value in variant.items() if value != original[key]} == dict([change])


def test_native_units_are_bytes_and_nanoseconds() -> None:
    native = board("h2m2").native()
    hbm = {"capacity_bytes": 96e9, "bytes_per_ns": 3000.0, "latency_ns": 32.0, "chips": 1}
    assert native["hbm"] == pytest.approx(hbm, rel=1e-12)
    assert native["lpddr"]["bytes_per_ns"] == 544
    assert native["link_bytes_per_ns"] == 960
    assert native["page_bytes"] == 2**21
    assert native["spm_bytes"] == 2**24
    times = [native[name] for name in ("cycle_ns", "launch_ns", "tlb_miss_ns", "hbm_barrier_ns")]
    assert times == pytest.approx([1, 1000, 300, 125_000], rel=1e-12)


def test_every_parameter_says_where_it_is_from() -> None:
    for result in load_boards().values():
        rows = result.assumptions()
        assert [row["name"] for row in rows] == list(PARAMETERS)
        assert {row["kind"] for row in rows} == {"paper", "fitted", "assumed"}
        assert all(row["source"] for row in rows)
    fitted = {row["name"] for row in board("h2m2").assumptions() if row["kind"] == "fitted"}
    assert fitted == {
        *("tlb_misses_at_once", "dram_efficiency", "weight_load", "reread_kv", "hierarchical_overlap"),
        *("flexgen_share", "hbm_barrier_us", "memory_power_ratio"),
    }


def test_a_varied_parameter_is_nobodys_number() -> None:
    varied = replace(board("h2m2"), dram_efficiency=0.9)
    rows = {row["name"]: row for row in varied.assumptions()}
    assert rows["dram_efficiency"]["value"] == 0.9
    assert rows["dram_efficiency"]["kind"] == "assumed"
    assert rows["dram_efficiency"]["source"].startswith("varied; 0.82 is fitted")
    assert rows["clock_ghz"]["kind"] == "paper"


def test_a_file_names_a_base_and_its_own_values(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text('base = "hbmcap-more"\nlpddr_chips = 2\ndram_efficiency = 1\nreread_kv = false\n')
    result = board(str(path))
    assert result.name == "mine"
    assert result.hbm.capacity_bytes == 192e9
    assert result.lpddr.chips == 2
    assert result.reread_kv is False
    row = next(row for row in result.assumptions() if row["name"] == "lpddr_chips")
    assert row["source"] == "given in mine.toml"
    assert row["kind"] == "assumed"


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("hbm_capacity = 3", "no parameter 'hbm_capacity'; did you mean hbm_capacity_gb"),
        ("hbm_capacity_gb = 0", "hbm_capacity_gb is 0 but must be a number from 0.001 to 1e+06"),
        ("hbm_latency_ns = -1", "must be a number from 0 to 1e+06"),
        ('cores = "four"', "cores is 'four' but must be a whole number from 1"),
        ("cores = 1.5", "must be a whole number from 1"),
        ("cores = true", "must be a whole number from 1"),
        ("dram_efficiency = 1.2", "must be a number from 0.001 to 1"),
        ("dram_efficiency = nan", "must be a number from 0.001 to 1"),
        ('weight_load = "beside"', 'must be "before" or "behind"'),
        ("dram_efficiency = 1e-300", "must be a number from 0.001 to 1"),
        ("hbm_capacity_gb = 1e9", "must be a number from 0.001 to 1e+06"),
        ("launch_us = inf", "must be a number from 0 to 1e+06"),
        ("page_mib = 1e-9", "must be a number from 0.001 to 1e+06"),
        ("page_mib = 0.001", "5.8e+08 pages are more than 33554432; take a larger page_mib"),
        ("reread_kv = 1", "must be true or false"),
        ('base = "h3m3"', "no board named 'h3m3'; did you mean h2m2"),
        ("base = 3", "written in quotes"),
        ("base", "not valid TOML"),
    ],
)
def test_a_wrong_file_gets_one_sentence(tmp_path: Path, text: str, sentence: str) -> None:
    path = tmp_path / "wrong.toml"
    path.write_text(text)
    with pytest.raises(UserError) as caught:
        board(str(path))
    assert sentence in str(caught.value)


def test_a_page_is_whole_bytes(tmp_path: Path) -> None:
    path = tmp_path / "odd.toml"
    path.write_text("page_mib = 1.3")
    assert board(str(path)).native()["page_bytes"] == int(1.3 * 2**20)


def test_a_wrong_name_gets_the_nearest() -> None:
    with pytest.raises(UserError, match="catalogue-unknown-name"):
        board("hbmcap-les")
    with pytest.raises(UserError, match="catalogue-file-unreadable"):
        board("nowhere.toml")
