"""What a paper says, beside what comes out here."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

Value = float | tuple[float, float] | str | None
# What a paper states may be a number or a limit: "above 70 %" is not missed by 82 %.
Relation = Literal["is", "at least", "at most"]
# Bookkeeping are configs, lengths, prices and ratios of a paper's own numbers: a model cannot get them wrong.
# Performance is how fast, how efficient, or how much of the machine or the network something takes.
About = Literal["bookkeeping", "performance"]
Basis = Literal[
    "paper's own numbers",
    "data sheet",
    "shape",  # of the model: what follows from its config
    "trace",
    "measured kernels",
    "published network",
    "measured here",
    "assumption",
    "fit",
]
# What a modelled decode step rests on without a network and a host, with them, and a replay of many.
KERNELS: tuple[Basis, ...] = ("measured kernels", "data sheet", "shape")
STEP: tuple[Basis, ...] = (*KERNELS, "published network", "assumption")
SERVED: tuple[Basis, ...] = (*STEP, "trace")

# Further off than this needs a sentence that says why.
TO_EXPLAIN = 0.10
# Further off than this the sentence needs an experiment.
TO_TEST = 0.25


@dataclass(frozen=True, slots=True)
class Claim:
    """One statement of a paper; `ours` is None where nothing can be computed or measured for it."""

    what: str
    where: str  # of the paper: "section 6.1", "table 5"
    published: Value
    ours: Value
    how: str  # modelled with which coefficients, computed from what, measured where
    about: About
    rests_on: tuple[Basis, ...]  # ours
    unit: str = ""
    relation: Relation = "is"
    remark: str = ""  # a plain sentence where it does not come out
    entered: bool = False  # ours is the paper's own value, and so confirms nothing
    fitted: bool = False  # a parameter was chosen for this very value, which so confirms nothing either
    experiment: str = ""  # what was varied to test the remark, and what came out

    @property
    def compared(self) -> bool:
        """Whether ours can be wrong."""
        return self.holds is not None and not self.entered and not self.fitted

    @property
    def far_off(self) -> bool:
        """Whether the remark has to be tested."""
        return self.compared and not self.holds and abs(self.deviation or 0) > TO_TEST

    @property
    def deviation(self) -> float | None:
        """Relative; of a range the larger of its two ends', of a limit that of the end that comes nearest;
        None where there is nothing to compare.
        """
        return max((mine / theirs - 1 for mine, theirs in self._pairs()), key=abs, default=None)

    @property
    def holds(self) -> bool | None:
        """Of a limit: whether ours keeps it. Of a number: whether it is as near as needs no explanation."""
        ours, published = _ends(self.ours), _ends(self.published)
        if not ours or not published:
            return None
        if self.relation == "at least":
            return min(ours) >= min(published)
        if self.relation == "at most":
            return max(ours) <= max(published)
        deviation = self.deviation
        return None if deviation is None else abs(deviation) <= TO_EXPLAIN

    def row(self) -> tuple[str, ...]:
        """A line of PAPER.md."""
        relation = "" if self.relation == "is" else f"{self.relation} "
        published, ours = _text(self.published, self.unit), _text(self.ours, self.unit)
        tested = f"Tested: {self.experiment}" if self.experiment else ""
        return (
            self.what,
            self.where,
            relation + published,
            ours,
            self._verdict(),
            ", ".join(self.rests_on),
            self.how,
            f"{self.remark} {tested}".strip(),
        )

    def _pairs(self) -> list[tuple[float, float]]:
        """Ours and theirs, end by end; a number beside a range is beside both its ends."""
        ours, published = _ends(self.ours), _ends(self.published)
        if not ours or not published or 0 in published:
            return []
        if self.relation != "is":
            worst = min if self.relation == "at least" else max
            return [(worst(ours), worst(published))]
        both = max(len(ours), len(published))
        return list(zip(ours * (both // len(ours)), published * (both // len(published)), strict=True))

    def _verdict(self) -> str:
        return self._difference() + (" (fitted)" if self.fitted else "")

    def _difference(self) -> str:
        if self.relation != "is" and self.holds is not None:
            return "holds" if self.holds else "does not hold"
        pairs = self._pairs()
        if self.entered or not pairs:
            return "entered" if self.entered else "-"
        if all(abs(mine - theirs) <= abs(theirs) * 5e-4 for mine, theirs in pairs):
            return "exact"
        # Per cent of per cent would be read wrongly.
        if self.unit == "%":
            return ", ".join(f"{mine - theirs:+.1f}" for mine, theirs in pairs) + " points"
        return ", ".join(f"{mine / theirs - 1:+.1%}" for mine, theirs in pairs)


@dataclass(frozen=True, slots=True)
class Section:
    """Makes claims of one part of a paper, of which ours are all obtained alike unless told."""

    where: str
    how: str
    about: About
    rests_on: tuple[Basis, ...]

    def __call__(
        self,
        what: str,
        published: Value,
        ours: Value | Iterable[float],
        unit: str = "",
        relation: Relation = "is",
        *,
        where: str = "",
        how: str = "",
        about: About | None = None,
        rests_on: tuple[Basis, ...] = (),
        remark: str = "",
        entered: bool = False,
        fitted: bool = False,
        experiment: str = "",
    ) -> Claim:
        """Of several of `ours` the claim has the lowest and the highest."""
        if isinstance(ours, Iterable) and not isinstance(ours, str):
            each = list(ours)
            ours = float(min(each)), float(max(each))
        return Claim(
            what,
            where or self.where,
            published,
            ours,
            how or self.how,
            about or self.about,
            rests_on or self.rests_on,
            unit,
            relation,
            remark,
            entered,
            fitted,
            experiment,
        )


def _ends(value: Value) -> tuple[float, ...]:
    if value is None or isinstance(value, str):
        return ()
    return value if isinstance(value, tuple) else (value,)


def _text(value: Value, unit: str) -> str:
    if value is None:
        return "-"
    if isinstance(value, str):
        return value
    # A range whose ends read the same is one number.
    numbers = " to ".join(dict.fromkeys(_number(end, unit) for end in _ends(value)))
    return f"{numbers} {unit}".strip()


def _number(value: float, unit: str) -> str:
    if unit == "%":
        return f"{value:.2g}" if abs(value) < 1 else f"{value:.1f}"
    # Papers print tenths of a token: "1,154.7" may not be shown as "1,155".
    return f"{value:,.1f}".removesuffix(".0") if abs(value) >= 1000 else f"{value:.4g}"
