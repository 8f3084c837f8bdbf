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

    def over(self, limits_ms: Mapping[str, float], scale: float = 1.0) -> list[str]:
        """Return the limits that it misses, where all its times are longer by a factor."""
        return [name for name, limit in limits_ms.items() if self.percentiles_ms[name] * scale > limit]

    def missed(self, limits_ms: Mapping[str, float]) -> str:
        return " and ".join(f"{name} of {self.percentiles_ms[name]:.1f} ms" for name in self.over(limits_ms))


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The cheapest system within the limits and the next one, and whether the model can tell them apart."""

    subject: str  # what is served: "azure-conv with llama3-70b"
    limits_ms: Mapping[str, float]
    cheapest: Contender | None  # None where nothing is within the limits
    runner_up: Contender | None  # over the limits where no other is within; without a winner the nearest
    depends: str = ""  # a sentence on what decides most

    @property
    def margin(self) -> float | None:
        """Tokens a dollar of the cheapest over the runner-up's, less one."""
        if self.cheapest is None or self.runner_up is None:
            return None
        return self.runner_up.usd_per_million_tokens / self.cheapest.usd_per_million_tokens - 1

    @property
    def interval(self) -> tuple[float, float] | None:
        """The margin's ends within the combined error; None if either error is not known."""
        margin, error = self.margin, self._error
        if margin is None or error is None:
            return None
        return (1 + margin) / (1 + error) - 1, (1 + margin) * (1 + error) - 1

    @property
    def clear(self) -> bool:
        """Whether the difference is larger than the model's error, and so is the distance to the limits."""
        best = self.cheapest
        if best is None or best.error is None or best.over(self.limits_ms, 1 + best.error):
            return False
        return self._tells

    @property
    def sentences(self) -> tuple[str, ...]:
        """Two or three sentences to be read aloud."""
        return tuple(self._sentences())

    def describe(self) -> dict[str, Json]:
        """Return the verdict for --json."""
        best, other = self.cheapest, self.runner_up
        low, high = self.interval or (None, None)
        return {
            "cheapest": best and best.system,
            "deployment": best and best.deployment,
            "usd_per_million_tokens": best and best.usd_per_million_tokens,
            "tokens_per_s": best and best.tokens_per_s,
            "tbt_ms": best and {"p50": best.tbt_ms, "p99": best.percentiles_ms[TBT]},
            "runner_up": other and other.system,
            "runner_up_deployment": other and other.deployment,
            "margin": self.margin,
            "low": low,
            "high": high,
            "clear": self.clear,
            "error": self._error,
            "limits_ms": dict(self.limits_ms),
            "depends": self.depends or None,
            "sentences": list(self.sentences),
        }

    @property
    def _error(self) -> float | None:
        """Both errors as if they were independent: the root of the sum of their squares."""
        errors = [each and each.error for each in (self.cheapest, self.runner_up)]
        known = [each for each in errors if each is not None]
        return math.hypot(*known) if len(known) == len(errors) else None

    @property
    def _tells(self) -> bool:
        """Whether the model tells them apart: by cost, or as one is over the limits whatever its error."""
        other = self.runner_up
        if other is None or self.interval is None:
            return other is None
        assert other.error is not None
        return self.interval[0] > 0 or bool(other.over(self.limits_ms, 1 / (1 + other.error)))

    def _sentences(self) -> Iterator[str]:
        best, other = self.cheapest, self.runner_up
        within = " and ".join(f"a {name} of {limit:g} ms" for name, limit in self.limits_ms.items())
        if best is None:
            nearest = f"; the nearest is {other} with a {other.missed(self.limits_ms)}" if other else ""
            yield f"Nothing serves {self.subject} within {within}{nearest}."
            return
        where = f"for {self.subject} within {within}"
        if other is None or self._tells or self.interval is None:
            yield f"{best} is the cheapest {where}: {best.numbers}."
        else:
            yield f"Too close to call {where}: {best} costs {best.numbers}; {other} {other.numbers}."
        if other is not None:
            yield self._difference(best, other)
        if best.error is not None and best.over(self.limits_ms, 1 + best.error):
            yield f"{best.system} is within the limit, but not by more than its error."
        if self.depends:
            yield self.depends

    def _difference(self, best: Contender, other: Contender) -> str:
        """Return the sentence about the runner-up."""
        margin, interval = self.margin or 0.0, self.interval
        more = f"{abs(margin):.1%} {'more' if margin >= 0 else 'fewer'} tokens for the same money"
        text = f"By the model {best.system} makes {more}"
        if interval is None or self._tells:
            text = f"It makes {more} than {other} ({other.usd})"
        if other.over(self.limits_ms):
            text += f"; {other.system} is over the limit with a {other.missed(self.limits_ms)}"
        if interval is None:
            unknown = " and ".join(each.system for each in (best, other) if each.error is None)
            return f"{text}; how far off {unknown} is modelled is not known, as it was never measured."
        low, high = interval
        errors = f"{best.system} {best.error:.1%}, {other.system} {other.error:.1%}"
        return f"{text}; the model's error ({errors}) allows {low:+.1%} to {high:+.1%}."


def verdict(
    contenders: Sequence[Contender], limits_ms: Mapping[str, float], *, subject: str, depends: str = ""
) -> Verdict:
    """Judge which contender is the cheapest within the limits, and which is next.

    Where a cheaper one misses a limit that is what decides, whatever else is in `depends`.
    """
    ordered = sorted(contenders, key=lambda each: (bool(each.over(limits_ms)), each.usd_per_million_tokens))
    best, other = next(iter(ordered), None), next(iter(ordered[1:]), None)
    if best is None or best.over(limits_ms):
        nearest = min(contenders, key=lambda each: each.percentiles_ms[TBT], default=None)
        return Verdict(subject=subject, limits_ms=limits_ms, cheapest=None, runner_up=nearest)
    if other and other.usd_per_million_tokens < best.usd_per_million_tokens:
        depends = f"The limit decides: with a {other.missed(limits_ms)} allowed {other.system} is cheaper."
    return Verdict(subject=subject, limits_ms=limits_ms, cheapest=best, runner_up=other, depends=depends)
