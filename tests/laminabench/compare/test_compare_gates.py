"""Gates: what they say of ratios, exact and measured."""

from __future__ import annotations

import pytest

from laminabench.analysis.estimate import Estimate
from laminabench.analysis.metrics_table import COMPARED, SUMMARISED
from laminabench.compare.sides import Side, SideBySide, failures, parse_gate, side_by_side
from laminabench.errors import UserError


def side(name: str, throughput: Estimate, usd_per_hour: float | None = 10.0) -> Side:
    estimates = {metric.name: Estimate(None) for metric in SUMMARISED}
    estimates |= {"throughput": throughput, "usd_per_hour": Estimate(usd_per_hour)}
    return Side(name, name, "4xh100", "llama3-70b", "live", estimates)


def of(*sides: Side, base: int = 0) -> SideBySide:
    return side_by_side(sides, base, 100.0)


def failed(text: str, compared: SideBySide, *, strict: bool = False) -> list[str]:
    return failures([parse_gate(text)], compared, strict=strict)


def test_an_exact_ratio_beyond_the_limit_fails() -> None:
    compared = of(side("old", Estimate(100.0)), side("new", Estimate(94.0)))
    assert failed("throughput<0.95", compared) == [
        "throughput<0.95: new has 0.94 times the throughput of old"
    ]
    assert failed("throughput<0.94", compared) == []
    assert failed("throughput > 0.93", compared) != []
    assert failed("THROUGHPUT>.94", compared) == []
    # What is judged to the last digit is told to more than the limit has.
    (line,) = failed("throughput<0.9400001", of(side("old", Estimate(1e6)), side("new", Estimate(939_996.0))))
    assert line == "throughput<0.9400001: new has 0.939996 times the throughput of old"


def test_a_measured_ratio_fails_when_all_of_its_interval_is_beyond() -> None:
    unsure = of(side("old", Estimate(100.0)), side("new", Estimate(94.0, 0.02, 7)))
    assert failed("throughput<0.95", unsure) == []
    assert failed("throughput<0.95", unsure, strict=True) != []
    sure = of(side("old", Estimate(100.0)), side("new", Estimate(94.0, 0.001, 7)))
    (line,) = failed("throughput<0.95", sure)
    assert "(0.9378 to 0.9422)" in line
    assert failed("throughput>0.9", unsure) == []
    assert failed("throughput>0.9", sure) != []


def test_the_base_passes_and_every_other_side_is_judged() -> None:
    compared = of(side("a", Estimate(50.0)), side("b", Estimate(100.0)), side("c", Estimate(60.0)), base=1)
    assert [line.split()[1] for line in failed("throughput<0.95", compared)] == ["a", "c"]


def test_what_cannot_be_judged_fails() -> None:
    compared = of(side("old", Estimate(100.0)), side("new", Estimate(100.0)))
    (line,) = failed("tbt_p99>1.1", compared)
    assert "there is no tbt_p99 of new and old to compare" in line


def test_throughput_at_equal_cost_is_in_proportion_to_the_price() -> None:
    compared = of(side("old", Estimate(100.0), 10.0), side("new", Estimate(90.0, 0.01, 7), 5.0))
    ratio = compared.ratio("throughput_at_equal_cost", 1)
    assert ratio.value == pytest.approx(1.8)
    assert ratio.error == pytest.approx(0.01)
    unknown = of(side("old", Estimate(100.0), None), side("new", Estimate(90.0), 5.0))
    assert unknown.ratio("throughput_at_equal_cost", 1).value is None


@pytest.mark.parametrize("text", ["throughput", "throughput<", "throughput<=0.9", "<0.9", "throughput<x", ""])
def test_what_is_no_gate_is_refused_with_the_metrics(text: str) -> None:
    with pytest.raises(UserError, match="gate-syntax"):
        parse_gate(text)


def test_an_unknown_metric_is_refused_with_the_known_ones() -> None:
    with pytest.raises(UserError, match="gate-metric-unknown"):
        parse_gate("speed<1")


def test_an_interval_of_a_share_ends_at_1() -> None:
    near = Estimate(0.99, 0.1, 7)
    interval = COMPARED["token_attainment"].interval(near)
    assert interval is not None
    assert interval.high == 1.0
    assert interval.low < 0.99
