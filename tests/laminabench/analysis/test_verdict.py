"""The verdict: the cheapest system within the limit, and when the model cannot decide."""

from __future__ import annotations

from dataclasses import replace

import pytest

from laminabench.analysis.verdict import TBT, Contender, Verdict, verdict

LIMITS = {TBT: 100.0}


def contender(system: str, usd: float, p99_ms: float, error: float | None = 0.05) -> Contender:
    return Contender(
        system=system,
        deployment="4xh100",
        usd_per_million_tokens=usd,
        tokens_per_s=8000.0,
        tbt_ms=p99_ms * 0.9,
        percentiles_ms={TBT: p99_ms},
        error=error,
    )


def judged(*contenders: Contender) -> Verdict:
    return verdict(contenders, LIMITS, subject="azure-conv with llama3-70b", baseline="vllm")


def test_a_difference_beyond_the_error_is_clear() -> None:
    result = judged(contender("vllm", 1.5, 40), contender("lamina", 1.2, 80, 0.1))
    assert result.cheapest
    assert result.cheapest.system == "lamina"
    assert result.margin == pytest.approx(0.25)
    error = (0.05**2 + 0.1**2) ** 0.5
    assert result.interval == pytest.approx((1.25 / (1 + error) - 1, 1.25 * (1 + error) - 1))
    assert result.clear
    first, second, third = replace(result, depends="It depends on H20.").sentences
    assert first.startswith("lamina on 4xh100 is the cheapest for azure-conv with llama3-70b within")
    assert "25.0% more tokens for the same money than vllm on 4xh100 ($1.50)" in second
    assert third == "It depends on H20."


def test_a_difference_within_the_error_is_too_close() -> None:
    result = judged(contender("vllm", 1.5, 40), contender("lamina", 1.4, 60, 0.39))
    assert not result.clear
    assert result.interval is not None
    assert result.interval[0] < 0 < result.interval[1]
    assert result.sentences[0].startswith("Too close to call")
    assert "vllm 5.0%" in result.sentences[1]


@pytest.mark.parametrize(("p99_ms", "clear"), [(101, False), (150, True)])
def test_a_cheaper_one_over_the_limit_loses(p99_ms: float, clear: bool) -> None:
    result = judged(contender("vllm", 1.5, 40), contender("lamina", 1.4, p99_ms, 0.39))
    assert result.cheapest
    assert result.cheapest.system == "vllm"
    assert result.margin is not None
    assert result.margin < 0
    assert result.clear == clear
    assert "over the limit with a TBT p99" in result.sentences[1]
    assert (
        result.depends == f"The limit decides: with a TBT p99 of {p99_ms:.1f} ms allowed lamina is cheaper."
    )


def test_a_winner_near_the_limit_is_not_clear() -> None:
    result = judged(contender("vllm", 1.5, 98), contender("lamina", 3.0, 50))
    assert not result.clear
    assert any("within the limit, but not by more than its error" in each for each in result.sentences)


def test_an_unknown_error_is_never_clear() -> None:
    result = judged(contender("vllm", 1.5, 40), contender("h2m2", 0.5, 40, None))
    assert result.cheapest
    assert result.cheapest.system == "h2m2"
    assert (result.interval, result.clear) == (None, False)
    assert result.sentences[0].startswith("By the model alone h2m2 on ")
    assert "not known" in result.sentences[1]
    described = result.describe()
    assert (described["low"], described["high"]) == (None, None)
    assert described["errors"] == {"h2m2": None, "vllm": 0.05}


def test_the_difference_is_to_what_people_run() -> None:
    vllm, lamina = contender("vllm", 1.5, 40), contender("lamina", 1.1, 60)
    result = judged(vllm, contender("afd", 1.0, 60), lamina)
    assert result.cheapest
    assert (result.cheapest.system, result.runner_up, result.between) == ("afd", vllm, (lamina,))
    assert result.margin == pytest.approx(0.5)
    assert "Between them is lamina on 4xh100 ($1.10)." in result.sentences
    assert judged(contender("vllm", 1.5, 140), contender("afd", 1.0, 60), lamina).runner_up == lamina


def test_without_a_winner_the_nearest_is_named() -> None:
    result = judged(contender("vllm", 1.5, 140), contender("lamina", 1.4, 120))
    assert result.cheapest is None
    assert result.margin is None
    assert result.sentences == (
        "Nothing serves azure-conv with llama3-70b within a TBT p99 of 100 ms; the nearest is lamina on "
        "4xh100 with a TBT p99 of 120.0 ms.",
    )


def test_one_alone_has_no_margin() -> None:
    result = judged(contender("vllm", 1.5, 40))
    assert (result.runner_up, result.margin, result.clear) == (None, None, True)
    assert result.describe()["tbt_ms"] == {"p50": 36.0, "p99": 40}
