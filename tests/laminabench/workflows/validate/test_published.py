"""Published numbers beside what is modelled of the same."""

from __future__ import annotations

import pytest

from laminabench.workflows.validate.published import Row, mean_error, missed, rows


def test_every_row_is_predicted_or_says_why_not() -> None:
    result = rows()
    assert len(result) == 6
    assert {row.model for row in result if row.predicted_ms is None} == {"mixtral-8x7b"}
    assert all("coefficients of experts" in row.why_not for row in result if row.predicted_ms is None)
    assert all(row.costs == "vidur-2024" for row in result)


def test_another_set_gives_other_numbers() -> None:
    ours, theirs = rows("vllm-0.14"), rows("vidur-2024")
    assert all(
        one.predicted_ms != other.predicted_ms
        for one, other in zip(ours, theirs, strict=True)
        if one.predicted_ms
    )


def test_mixtures_are_predicted_with_a_set_that_has_their_experts() -> None:
    assert all(row.predicted_ms for row in rows("vllm-0.24"))


def test_errors_and_targets() -> None:
    results = [
        Row("a", "b", "c", 100.0, 112.0),
        Row("d", "b", "c", 100.0, 98.0),
        Row("e", "b", "c", 1.0, None, "no"),
    ]
    assert [row.error for row in results[:2]] == pytest.approx([12, -2])
    assert mean_error(results) == pytest.approx(7)
    assert missed(results) == ["a on b", "mean"]
