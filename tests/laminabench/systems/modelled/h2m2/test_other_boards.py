"""What boards cost that are other hardware than the catalogue's device: what the user says, or nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from laminabench.catalog.cost_file import load_costs
from laminabench.catalog.deployment import parse_deployment
from laminabench.catalog.find_model import model
from laminabench.catalog.hardware import load_devices, priced, rated
from laminabench.catalog.network import parse_network
from laminabench.systems.modelled.h2m2 import at_own_price, other_board
from laminabench.systems.modelled.h2m2.boards import NAMES, board
from laminabench.systems.modelled.setup import Setup


def a_setup(deployment: str = "2xh2m2", **more: Any) -> Setup:
    devices = more.pop("devices", load_devices())
    return Setup(
        model("llama3-70b"),
        parse_deployment(deployment, devices),
        load_costs("vllm-0.14"),
        parse_network("fhbn"),
        **more,
    )


@pytest.mark.parametrize("mapping", [None, "greedy", "oracle", "naive", "flexgen", "a-major"])
def test_a_mapping_of_the_same_board_costs_what_the_board_does(mapping: str | None) -> None:
    setup = a_setup(mapping=mapping)
    assert other_board(setup) is None
    assert at_own_price(setup) is setup


@pytest.mark.parametrize(
    ("mapping", "what"),
    [
        ("lpddr", "both chips at LPDDR and no HBM"),
        ("hierarchical", "both chips at HBM"),
        ("8-hbm", "8 HBM devices and no LPDDR"),
    ],
)
def test_mappings_with_other_memories_are_not_charged_as_h2m2(mapping: str, what: str) -> None:
    setup = a_setup(mapping=mapping)
    assert other_board(setup) == what
    deployment = at_own_price(setup).deployment
    assert (deployment.usd_per_hour, deployment.power_w, str(deployment)) == (None, None, "2xh2m2")
    # What is not charged is not excused either.
    assert deployment.price_note == ""


@pytest.mark.parametrize("name", NAMES[1:])
def test_table_4s_boards_are_other_hardware(name: str) -> None:
    setup = a_setup(board=name)
    assert other_board(setup) == board(name).title
    assert at_own_price(setup).deployment.usd_per_hour is None


def test_what_the_user_says_holds_for_any_board() -> None:
    devices = rated(priced(load_devices(), {"h2m2": 4.0}), {"h2m2": 300.0})
    deployment = at_own_price(a_setup(devices=devices, board="hbmcap-less")).deployment
    assert (deployment.usd_per_hour, deployment.power_w) == (8.0, 600.0)
    half = at_own_price(a_setup(devices=priced(load_devices(), {"h2m2": 4.0}), mapping="8-hbm")).deployment
    assert (half.usd_per_hour, half.power_w) == (8.0, None)


@pytest.mark.parametrize(
    ("text", "same"),
    [
        ('dram_efficiency = 1.0\nweight_load = "behind"\npage_mib = 1', True),
        ('base = "hbmcap-more"\nhbm_capacity_gb = 96', True),
        ("lpddr_chips = 2", False),
        ("clock_ghz = 1.1", False),
    ],
)
def test_assumptions_cost_nothing_and_hardware_does(tmp_path: Path, text: str, same: bool) -> None:
    own = tmp_path / "mine.toml"
    own.write_text(text)
    assert (other_board(a_setup(board=str(own))) is None) == same


def test_gpus_keep_their_price() -> None:
    setup = a_setup("4xh100")
    assert at_own_price(setup) is setup
