"""The catalogue's devices, prices and networks are the papers', to the cent, or say that they are assumed."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from laminabench.catalog.deployment import parse_deployment
from laminabench.catalog.hardware import (
    Amortisation,
    bought,
    device,
    load_devices,
    parse_power,
    parse_price,
    priced,
    rated,
)
from laminabench.catalog.network import load_networks, parse_network
from laminabench.util.errors import UserError

REQUIRED = [
    *("h100", "h200", "h800", "h20", "b200", "mi300x", "a100-40g", "a100-80g", "a100-80g-sxm", "l40s"),
    *("tpu-v6e", "rtx-3090", "rtx-4080", "rx-7900-xtx", "arc-a770"),
]


# bf16 TFLOP/s, memory GB, TB/s, W, inter-chip GB/s, network Gbit/s, $/hr, as printed.
V2_TABLE_1 = {
    "h100": (989, 80, 3.35, 700, 450, 400, 11.06),
    "h20": (148, 96, 4.0, 400, 450, 400, 4.63),
    "tpu-v6e": (918, 32, 1.64, None, 448, 200, 2.70),
}


def test_v2_table_1():
    for name, row in V2_TABLE_1.items():
        result = device(name)
        assert "v2 Table 1" in result.price.source
        assert row == (
            result.flops_for("bf16") / 1e12,
            result.memory_bytes / 1e9,
            result.bandwidth_bytes_per_s / 1e12,
            result.power_w,
            result.interchip_bytes_per_s / 1e9,
            result.nic_bytes_per_s * 8 / 1e9,
            result.price_usd_per_hour,
        )


def test_v2_table_5_prices_come_out_to_the_cent():
    prices = {"1xh100+2xh20": 20.32, "2xh100": 22.12, "2xh100+4xh20": 40.64, "4xh100": 44.24}
    for text, usd in prices.items():
        result = parse_deployment(text)
        assert (round(result.usd_per_hour, 2), result.price_note) == (usd, "")


# $, GB, GB/s, $/GB, $/(GB/s), as printed.
V1_TABLE_1 = {
    "a100-80g": (17500, 80, 1935, 219, 9.04),
    "h100": (36500, 80, 3350, 456, 10.90),
    "rtx-3090": (1600, 24, 936.2, 67, 1.71),
    "rx-7900-xtx": (1000, 24, 960, 42, 1.04),
    "arc-a770": (350, 16, 560, 22, 0.63),
}


def test_v1_table_1():
    for name, row in V1_TABLE_1.items():
        result = device(name)
        assert row == (
            result.purchase.usd,
            result.memory_bytes / 1e9,
            result.bandwidth_bytes_per_s / 1e9,
            # Rounded half up, as the table does: 0.625 is printed as 0.63.
            math.floor(result.purchase_usd_per_gb + 0.5),
            math.floor(100 * result.purchase_usd_per_gb_per_s + 0.5) / 100,
        )


def test_v1_alpha_is_the_worst_and_best_memory_cost_efficiency_against_the_a100_and_h100():
    dollars = {name: device(name).purchase_usd_per_gb for name in ("a100-80g", "rtx-3090")}
    assert round(219 / 67, 2) == 3.27  # as printed, from the rounded column
    assert round(dollars["a100-80g"] / dollars["rtx-3090"], 2) == 3.28
    bandwidth = device("h100").purchase_usd_per_gb_per_s / device("arc-a770").purchase_usd_per_gb_per_s
    assert 17.3 <= bandwidth < 17.5  # 10.90 / 0.63 = 17.3


def test_the_rtx_4080_has_31_percent_of_an_a100_as_v1_says():
    assert device("rtx-4080").flops_for("fp16") / device("a100-80g").flops_for("fp16") == pytest.approx(
        0.312, abs=0.001
    )


def test_every_device_is_whole_and_names_its_sources():
    for result in map(device, REQUIRED):
        assert result.flops_for("bfloat16") == result.flops_for("fp16") > 1e12
        links = (result.interchip_bytes_per_s, result.nic_bytes_per_s)
        assert min(result.memory_bytes, result.bandwidth_bytes_per_s, *links) > 1e9
        assert result.source
        assert result.price.usd > 0
        assert result.price.source
        assert result.price.date


def test_price_override_wins_and_says_so():
    devices = priced(load_devices(), dict([parse_price("H100=2.5")]))
    assert devices["h100"].price_usd_per_hour == 2.5
    assert devices["h100"].price.basis == "override"
    assert load_devices()["h100"].price_usd_per_hour == 11.06
    assert parse_deployment("2xh100+4xh20", devices).usd_per_hour == pytest.approx(2 * 2.5 + 4 * 4.63)


def test_power_override_wins_and_says_so():
    devices = rated(load_devices(), dict([parse_power("H100=650W")]))
    assert (devices["h100"].power_w, devices["h100"].power_basis) == (650, "override")
    assert parse_deployment("2xh100+4xh20", devices).power_w == 2 * 650 + 4 * 400
    assert (device("h100").power_w, device("h100").power_basis) == (700, "rated")


def test_a_board_is_what_its_paper_s_tables_add_up_to():
    result = device("h2m2")
    assert result.board == "h2m2"
    # Two chips of four cores of 128 x 128 multiply-adds at 1 GHz; 96 + 512 GB; 3,000 + 544 GB/s.
    assert result.flops_for("int8") == 2 * 4 * 128 * 128 * 2 * 1e9
    assert (result.memory_bytes, result.bandwidth_bytes_per_s) == (608e9, 3544e9)
    with pytest.raises(UserError, match="hardware-no-peak-rate"):
        result.flops_for("bf16")
    assert {each.board for each in load_devices().values() if each.name != "h2m2"} == {None}


def test_what_a_board_costs_and_draws_is_derived_as_it_says():
    result, h100, h20, rule = device("h2m2"), device("h100"), device("h20"), Amortisation()
    lpddr_w = result.power_w - h20.power_w
    rent_for_owning = h100.rent.usd / h100.purchase_price.usd
    lpddr = rule.usd_per_hour(512 * 4, lpddr_w) * rent_for_owning
    assert result.price_usd_per_hour == round(h20.price_usd_per_hour + lpddr, 2)
    for message in (f"${lpddr:.2f}", "$2,048", f"{rent_for_owning:.2f} times", f"${h20.price_usd_per_hour}"):
        assert message in result.price.source
    assert (result.price.basis, result.power_basis) == ("assumed", "assumed")
    assert "450 W is assumed" in result.notes


def test_an_assumed_rent_is_compared_with_rents_and_not_with_purchases():
    note = parse_deployment("1xh100+1xh2m2").price_note
    assert "assumed, as it is not published: $5.26 an hour and 450 W of h2m2" in note
    assert "different kinds" not in note
    devices = bought(load_devices(), Amortisation())
    assert "h2m2 by rent" in parse_deployment("1xh100+1xh2m2", devices).price_note
    stated = rated(priced(load_devices(), {"h2m2": 5.0}), {"h2m2": 400.0})
    assert parse_deployment("2xh2m2", stated).price_note == ""


def test_amortisation_is_the_rule_it_says():
    rule = Amortisation(years=2, usd_per_kwh=0.2, facility_factor=1.5)
    result = bought(load_devices(), rule)["rtx-3090"].price
    assert result.usd == pytest.approx(1600 / (2 * 8760) + 0.350 * 1.5 * 0.2)
    assert result.basis == "purchase"
    assert "straight line over 2 years" in result.source
    assert bought(load_devices(), rule)["h20"].price.basis == "rent"  # where there is no purchase price
    assert rule.usd_per_hour(17520, None) == 1.0


def test_rent_and_purchase_are_not_added_up_silently():
    assert "different kinds" in parse_deployment("1xh100+3xrtx-3090").price_note
    devices = priced(load_devices(), {"rtx-3090": 0.2})
    assert parse_deployment("1xh100+3xrtx-3090", devices).price_note == ""


@given(st.integers(1, 4096), st.integers(0, 4096), st.sampled_from(REQUIRED), st.sampled_from(REQUIRED))
def test_a_deployment_reads_back_as_written(a, b, model_device, attention_device):
    text = f"{a}x{model_device}" + (f"+{b}x{attention_device}" if b else "")
    result = parse_deployment(text.upper())
    assert str(result) == text
    assert result.dop == (a, b)


def test_a_core_of_this_machine_has_no_price_until_one_is_given():
    assert device("cpu").describe()["price"] is None
    # The price of one part is not the price of both.
    for text in ("1xcpu+1xcpu", "1xh100+1xcpu"):
        result = parse_deployment(text)
        assert result.usd_per_hour is None
        assert result.price_note == ""
        assert result.describe().devices[-1].price is None
    priced_devices = priced(load_devices(), {"cpu": 0.05})
    assert parse_deployment("1xcpu+2xcpu", priced_devices).usd_per_hour == pytest.approx(0.15)
    assert bought(load_devices(), Amortisation())["cpu"].price is None


def test_v2_measured_fhbn_and_nccl():
    fhbn, nccl = parse_network("fhbn"), parse_network("NCCL")
    assert (fhbn.rtt_s, fhbn.bandwidth_bytes_per_s) == (pytest.approx(33.0e-6), 45.7e9)
    assert (nccl.rtt_s, nccl.bandwidth_bytes_per_s) == (pytest.approx(66.6e-6), 35.5e9)
    assert fhbn.bandwidth_bytes_per_s / fhbn.line_rate_bytes_per_s == pytest.approx(0.914)
    assert 1 - fhbn.rtt_s / nccl.rtt_s == pytest.approx(0.505, abs=0.001)
    assert fhbn.kind == nccl.kind == "published"


def test_a_transfer_that_the_host_drives_is_section_4_1_s_steps_there_and_back():
    driven = parse_network("gdr-host")
    steps_us, launch_us = (60 + 70) / 2, 20
    assert driven.rtt_s == pytest.approx(2e-6 * (steps_us + launch_us))
    assert driven.bandwidth_bytes_per_s == parse_network("nccl").bandwidth_bytes_per_s


def test_every_engine_says_where_its_numbers_are_from():
    kinds = {name: network.kind for name, network in load_networks().items()}
    assert kinds["gloo"] == kinds["nccl-no-gdr"] == "assumed"
    assert kinds["shm"] == "measured"
    assert kinds["gdr-host"] == "derived"
    assert set(kinds.values()) == {"published", "derived", "assumed", "measured"}
    assert all(network.source for network in load_networks().values())


def test_a_slower_nic_scales_the_bandwidth_and_a_faster_one_does_not():
    fhbn = parse_network("fhbn")
    assert fhbn.on(25e9).bandwidth_bytes_per_s == pytest.approx(45.7e9 / 2)
    assert fhbn.on(100e9).bandwidth_bytes_per_s == 45.7e9
    assert fhbn.on(25e9).rtt_s == fhbn.rtt_s


@pytest.mark.parametrize(
    ("text", "rtt_s", "bytes_per_s"),
    [("40us,42GB/s", 40e-6, 42e9), ("0.1 ms, 400Gbps", 1e-4, 50e9), ("0us,200Gbit/s", 0, 25e9)],
)
def test_numbers_of_one_s_own(text, rtt_s, bytes_per_s):
    result = parse_network(text)
    assert result.rtt_s == pytest.approx(rtt_s)
    assert result.on(1e9).bandwidth_bytes_per_s == pytest.approx(bytes_per_s)
    assert result.kind == "given"


DEPLOYMENT = "deployment-(too-many-parts|unreadable|bad-count)"
NO_VALUES = ("h100", "h100=", "=3", "h100=cheap", "h100=-1", "h100=nan", "h100=inf", "h100=1e13")
NO_DEPLOYMENTS = ("", "2xh100+", "0xh100", "5000xh100", "h100+h20+h20", "2 h100", "-1xh100")
NO_NETWORKS = ("fhbm", "40us", "40us,0GB/s", "1.2.3us,4GB/s", "40us,42", "")


@pytest.mark.parametrize(
    ("parse", "text", "code"),
    [
        *((parse_price, text, "hardware-bad-option") for text in NO_VALUES),
        *((parse_power, text, "hardware-bad-option") for text in NO_VALUES),
        *((parse_deployment, text, DEPLOYMENT) for text in NO_DEPLOYMENTS),
        *((parse_network, text, "network-|catalogue-unknown-name") for text in NO_NETWORKS),
        (device, "h1000", "catalogue-unknown-name"),
        (parse_deployment, "1xh100+2xrtx3090", "catalogue-unknown-name"),
        (device("a100-40g").flops_for, "fp8", "hardware-no-peak-rate"),
    ],
)
def test_what_is_not_there_or_cannot_be_read_is_refused(parse, text, code):
    with pytest.raises(UserError, match=code):
        parse(text)
