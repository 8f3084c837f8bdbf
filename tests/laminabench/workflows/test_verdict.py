"""The price that decides most between two systems."""

from __future__ import annotations

import pytest

from laminabench.workflows.verdict import nearest_even

LAMINA = (8000.0, {"h100": (2, 11.06), "h20": (4, 4.63)})
VLLM = (8200.0, {"h100": (4, 11.06)})


def test_costs_are_equal_at_that_price_and_no_nearer_one() -> None:
    even = nearest_even(LAMINA, VLLM)
    assert even is not None
    assert even.device == "h100"
    bills = (2 * even.usd_each_per_hour + 4 * 4.63, 4 * even.usd_each_per_hour)
    assert bills[0] / LAMINA[0] == pytest.approx(bills[1] / VLLM[0])
    of_h20 = (44.24 * 8000 / 8200 - 22.12) / 4
    assert abs(even.change) < abs(of_h20 / 4.63 - 1)
    assert nearest_even(VLLM, LAMINA) == pytest.approx(even)


def test_a_price_that_both_pay_changes_nothing() -> None:
    assert nearest_even((1.0, {"h100": (4, 11.0)}), (2.0, {"h100": (4, 11.0)})) is None
