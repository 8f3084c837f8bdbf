"""Network engines carry the papers' numbers, or say that they are assumed."""

from __future__ import annotations

import pytest

from laminabench.catalog.network import load_networks, parse_network
from laminabench.errors import UserError


def test_v2_measured_fhbn_and_nccl():
    fhbn, nccl = parse_network("fhbn"), parse_network("NCCL")
    assert (fhbn.rtt_s, fhbn.bandwidth_bytes_per_s) == (pytest.approx(33.0e-6), 45.7e9)
    assert (nccl.rtt_s, nccl.bandwidth_bytes_per_s) == (pytest.approx(66.6e-6), 35.5e9)
    assert fhbn.bandwidth_bytes_per_s / fhbn.line_rate_bytes_per_s == pytest.approx(0.914)
    assert 1 - fhbn.rtt_s / nccl.rtt_s == pytest.approx(0.505, abs=0.001)
    assert fhbn.kind == nccl.kind == "published"


def test_every_engine_says_where_its_numbers_are_from():
    kinds = {name: network.kind for name, network in load_networks().items()}
    assert kinds["gloo"] == kinds["nccl-no-gdr"] == "assumed"
    assert kinds["shm"] == "measured"
    assert set(kinds.values()) == {"published", "assumed", "measured"}
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
    found = parse_network(text)
    assert found.rtt_s == pytest.approx(rtt_s)
    assert found.on(1e9).bandwidth_bytes_per_s == pytest.approx(bytes_per_s)
    assert found.kind == "given"


@pytest.mark.parametrize("text", ["fhbm", "40us", "40us,0GB/s", "1.2.3us,4GB/s", "40us,42", ""])
def test_a_bad_network_is_refused(text):
    with pytest.raises(UserError, match=r"network-|catalogue-unknown-name"):
        parse_network(text)
