"""Energy from power ratings: an upper bound, and nothing where a device has no rating."""

from __future__ import annotations

import pytest

from laminabench.analysis.rates import energy
from laminabench.catalog.deployment import parse_deployment


def test_a_deployment_is_rated_for_the_sum_of_its_devices() -> None:
    deployment = parse_deployment("2xh100+4xh20")
    assert deployment.power_w == 2 * 700 + 4 * 400
    assert deployment.describe()["power_w"] == deployment.power_w
    assert parse_deployment("4xtpu-v6e").power_w is None
    assert parse_deployment("2xh100+4xtpu-v6e").power_w is None


@pytest.mark.parametrize(
    ("throughput", "power_w", "joules"), [(1500.0, 3000.0, 2.0), (0.0, 3000.0, None), (None, 3000.0, None)]
)
def test_joules_a_token(throughput: float | None, power_w: float, joules: float | None) -> None:
    found = energy(throughput, power_w)
    assert (found.rated_w, found.joules_per_token) == (power_w, joules)
    assert str(found.bound).startswith("upper")


def test_no_rating_no_energy() -> None:
    assert energy(1500.0, None).joules_per_token is None
