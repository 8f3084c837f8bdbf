"""The verdict of a comparison: the cheapest system within the limits, by how much, and how sure that is."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from laminabench.util.json import Json

TBT = "TBT p99"  # the limit that every verdict has


@dataclass(frozen=True, slots=True, kw_only=True)
class Contender:
    """One system on a deployment, as modelled."""

    system: str
    deployment: str
    usd_per_million_tokens: float
    tokens_per_s: float
    tbt_ms: float  # p50
    percentiles_ms: Mapping[str, float]  # by the names of the limits: {"TBT p99": 38.0}
    error: float | None  # of modelled times, a share, by the accuracy board; None if not known

    def __str__(self) -> str:
        return f"{self.system} on {self.deployment}"

    @property
    def usd(self) -> str:
        usd = self.usd_per_million_tokens
        return f"${usd:.2f}" if usd >= 0.1 else f"${usd:.3g}"

    @property
    def numbers(self) -> str:
        return (
            f"{self.usd} a million tokens at {self.tokens_per_s:,.0f} tokens/s and {self.tbt_ms:.1f} ms a "
            f"token (p99 {self.percentiles_ms[TBT]:.1f})"
        )

    def margin_over(self, other: Contender) -> float:
        """Return how many more tokens a dollar buys, as a share; infinite where these cost nothing."""
        own, its = self.usd_per_million_tokens, other.usd_per_million_tokens
        return its / own - 1 if own else math.inf if its else 0.0

    def interval_over(self, other: Contender) -> tuple[float, float] | None:
        """Return the margin's ends within both errors, as if these were independent; None if one is unknown.

        The error is the root of the sum of the errors' squares.
        """
        if self.error is None or other.error is None:
            return None
        ratio, error = 1 + self.margin_over(other), math.hypot(self.error, other.error)
        return ratio / (1 + error) - 1, ratio * (1 + error) - 1

    def over(self, limits_ms: Mapping[str, float], scale: float = 1.0) -> list[str]:
        """Return the limits that it misses, where all its times are longer by a factor."""
        return [name for name, limit in limits_ms.items() if self.percentiles_ms[name] * scale > limit]

    def missed(self, limits_ms: Mapping[str, float]) -> str:
        """Return its times that are over the limits, in words."""
        over = {name: self.percentiles_ms[name] for name in self.over(limits_ms)}
        # A time that rounds to its limit gets more digits.
        digits = {name: 1 if round(ms, 1) > limits_ms[name] else 3 for name, ms in over.items()}
        return " and ".join(f"{name} of {ms:.{digits[name]}f} ms" for name, ms in over.items())


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The cheapest system within the limits and the next one, and whether the model can distinguish them."""

    subject: str  # what is served: "azure-conv with llama3-70b"
    limits_ms: Mapping[str, float]
    cheapest: Contender | None  # None where nothing is within the limits
    runner_up: Contender | None  # over the limits where no other is within; without a winner the nearest
    between: tuple[Contender, ...] = ()  # other systems within the limits that cost less than the runner-up
    depends: str = ""  # a sentence on what decides most

    @property
    def margin(self) -> float | None:
        """Tokens a dollar of the cheapest over the runner-up's, less one."""
        best, other = self.cheapest, self.runner_up
        return best.margin_over(other) if best and other else None

    @property
    def interval(self) -> tuple[float, float] | None:
        """The margin's ends within the model's error; None if that is not known."""
        best, other = self.cheapest, self.runner_up
        return best.interval_over(other) if best and other else None

    @property
    def clear(self) -> bool:
        """Whether the difference is larger than the model's error, and so is the distance to the limits."""
        best = self.cheapest
        if best is None or best.error is None or best.over(self.limits_ms, 1 + best.error):
            return False
        return self._significant

    @property
    def sentences(self) -> tuple[str, ...]:
        """Two or three sentences to be read aloud."""
        return tuple(self._sentences())

    def describe(self) -> dict[str, Json]:
        """Return the verdict for --json."""
        best, other = self.cheapest, self.runner_up
        low, high = self.interval or (None, None)
        return {
            "cheapest": best.system if best else None,
            "deployment": best.deployment if best else None,
            "usd_per_million_tokens": best.usd_per_million_tokens if best else None,
            "tokens_per_s": best.tokens_per_s if best else None,
            "tbt_ms": {"p50": best.tbt_ms, "p99": best.percentiles_ms[TBT]} if best else None,
            "runner_up": other.system if other else None,
            "runner_up_deployment": other.deployment if other else None,
            "margin": self.margin,
            "low": low,
            "high": high,
            "clear": self.clear,
            "errors": {each.system: each.error for each in (best, other) if each},
            "between": [{"system": each.system, "deployment": each.deployment} for each in self.between],
            "limits_ms": dict(self.limits_ms),
            "depends": self.depends or None,
            "sentences": list(self.sentences),
        }

    @property
    def _significant(self) -> bool:
        """Whether the model distinguishes them: by cost, or as one is over the limits whatever its error."""
        other = self.runner_up
        if other is None or self.interval is None:
            return other is None
        assert other.error is not None
        return self.interval[0] > 0 or bool(other.over(self.limits_ms, 1 / (1 + other.error)))

    @property
    def _too_close(self) -> bool:
        """Whether the error is known and larger than the difference."""
        return self.interval is not None and not self._significant

    def _sentences(self) -> Iterator[str]:
        best, other = self.cheapest, self.runner_up
        within = " and ".join(f"a {name} of {limit:g} ms" for name, limit in self.limits_ms.items())
        if best is None:
            nearest = f"; the nearest is {other} with a {other.missed(self.limits_ms)}" if other else ""
            yield f"Nothing serves {self.subject} within {within}{nearest}."
            return
        where = f"for {self.subject} within {within}"
        if other and self._too_close:
            yield f"Too close to call {where}: {best} costs {best.numbers}; {other} {other.numbers}."
        else:
            unknown = "By the model alone " if other and self.interval is None else ""
            yield f"{unknown}{best} is the cheapest {where}: {best.numbers}."
        if other is not None:
            yield self._difference(best, other)
        if self.between:
            names = " and ".join(f"{each} ({each.usd})" for each in self.between)
            yield f"Between them {'is' if len(self.between) == 1 else 'are'} {names}."
        if best.error is not None and best.over(self.limits_ms, 1 + best.error):
            yield f"{best.system} is within the limit, but not by more than its error."
        if self.depends:
            yield self.depends

    def _difference(self, best: Contender, other: Contender) -> str:
        """Return the sentence about the runner-up."""
        text = f"By the model {best.system} makes" if self._too_close else "It makes"
        than = "" if self._too_close else f" than {other} ({other.usd})"
        over = other.missed(self.limits_ms)
        missed = f"; {other.system} is over the limit with a {over}" if over else ""
        return f"{text} {more(best.margin_over(other))}{than}{missed}; {_error_of(best, other)}."


def more(margin: float) -> str:
    """Return a margin in words."""
    if math.isinf(margin):
        return "tokens for nothing"
    return f"{abs(margin):.1%} {'more' if margin >= 0 else 'fewer'} tokens for the same money"


def _error_of(best: Contender, other: Contender) -> str:
    interval = best.interval_over(other)
    if interval is None:
        unknown = " and ".join(each.system for each in (best, other) if each.error is None)
        return f"the model's error for {unknown} is not known, as fewer than 3 loads were measured"
    errors = f"{best.system} {best.error:.1%}, {other.system} {other.error:.1%}"
    return f"the model's error ({errors}) allows {interval[0]:+.1%} to {interval[1]:+.1%}"


def verdict(
    contenders: Sequence[Contender],
    limits_ms: Mapping[str, float],
    *,
    subject: str,
    baseline: str = "",
) -> Verdict:
    """Judge which contender is the cheapest within the limits, and by how much.

    The difference is to the system that people run today, `baseline`, if that is another one and within
    the limits, else to the next.
    """
    ordered = sorted(contenders, key=lambda each: (bool(each.over(limits_ms)), each.usd_per_million_tokens))
    if not ordered or ordered[0].over(limits_ms):
        nearest = min(contenders, key=lambda each: each.percentiles_ms[TBT], default=None)
        return Verdict(subject=subject, limits_ms=limits_ms, cheapest=None, runner_up=nearest)
    best, *others = ordered
    rivals = [each for each in others if not each.over(limits_ms)] or others
    other = next((each for each in rivals if baseline == each.system != best.system), None)
    other = other or next(iter(rivals), None)
    depends = ""
    if other and other.usd_per_million_tokens < best.usd_per_million_tokens:
        depends = f"The limit decides: with a {other.missed(limits_ms)} allowed {other.system} is cheaper."
    return Verdict(
        subject=subject,
        limits_ms=limits_ms,
        cheapest=best,
        runner_up=other,
        between=tuple(rivals[: rivals.index(other)]) if other else (),
        depends=depends,
    )
