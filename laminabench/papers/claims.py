"""The papers' statements as data, each with the value that this project computes."""

from __future__ import annotations

import re
import string
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, cast

import msgspec

Value = int | float | tuple[float, float] | str | None
# A paper states a number or a limit: 82 % satisfies "above 70 %".
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
# A modelled decode step without a network and a host, with them, a replay of many steps, and H2M2's board.
_KERNELS: tuple[Basis, ...] = ("measured kernels", "data sheet", "shape")
_STEP: tuple[Basis, ...] = (*_KERNELS, "published network", "assumption")
_BASES: dict[str, tuple[Basis, ...]] = {
    "kernels": _KERNELS,
    "step": _STEP,
    "served": (*_STEP, "trace"),
    "board": ("paper's own numbers", "shape", "assumption", "fit"),
}
# An entry of `rests_on`: a basis, or several of them by one name.
Named = Basis | Literal["kernels", "step", "served", "board"]

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
        """Whether our value is compared with the paper's and so can be wrong."""
        return self.holds is not None and not self.entered and not self.fitted

    @property
    def far_off(self) -> bool:
        """Whether the deviation is so large that its remark has to be tested."""
        return self.compared and not self.holds and abs(self.deviation or 0) > TO_TEST

    @property
    def deviation(self) -> float | None:
        """The relative deviation: of a range its larger end's, of a limit the nearest end's.

        None where there is nothing to compare.
        """
        return max((ours / theirs - 1 for ours, theirs in self._pairs()), key=abs, default=None)

    @property
    def holds(self) -> bool | None:
        """Whether our value keeps a limit, or is so near to a number that it needs no explanation."""
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
        """Return a line of PAPER.md."""
        relation = "" if self.relation == "is" else f"{self.relation} "
        published, ours = _text(self.published, self.unit), _text(self.ours, self.unit)
        tested = f"Tested: {self.experiment}" if self.experiment else ""
        return (
            self.what,
            self.where,
            relation + published,
            ours,
            self._difference() + (" (fitted)" if self.fitted else ""),
            ", ".join(self.rests_on),
            self.how,
            f"{self.remark} {tested}".strip(),
        )

    def _pairs(self) -> list[tuple[float, float]]:
        """Pair ours with theirs, end by end; a number is compared with both ends of a range."""
        ours, published = _ends(self.ours), _ends(self.published)
        if not ours or not published or 0 in published:
            return []
        if self.relation != "is":
            worst = min if self.relation == "at least" else max
            return [(worst(ours), worst(published))]
        both = max(len(ours), len(published))
        return list(zip(ours * (both // len(ours)), published * (both // len(published)), strict=True))

    def _difference(self) -> str:
        if self.relation != "is" and self.holds is not None:
            return "holds" if self.holds else "does not hold"
        pairs = self._pairs()
        if self.entered or not pairs:
            return "entered" if self.entered else "-"
        if all(abs(ours - theirs) <= abs(theirs) * 5e-4 for ours, theirs in pairs):
            return "exact"
        # Per cent of per cent would be read wrongly.
        if self.unit == "%":
            return ", ".join(f"{ours - theirs:+.1f}" for ours, theirs in pairs) + " points"
        return ", ".join(f"{ours / theirs - 1:+.1%}" for ours, theirs in pairs)


class Statement(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A claim of a paper's TOML file; texts are templates over the values that a figure computes."""

    what: str
    published: int | float | str | tuple[float, float] | None = None
    ours: str = ""  # the name of a computed value, such as "gains[llama-13b]"
    words: str = ""  # ours as a sentence instead
    unit: str = ""
    relation: Relation = "is"
    where: str = ""  # this and the next three: the figure's by default
    how: str = ""
    about: About | None = None
    rests_on: tuple[Named, ...] = ()
    remark: str = ""
    experiment: str = ""
    entered: bool = False
    fitted: bool = False
    id: str = ""  # for whatever needs the published value
    each: tuple[Mapping[str, Any], ...] = ({},)  # a claim for each row: fields, and words for the templates
    case: str = ""  # the name of a computed value that chooses some of `cases`, which are other fields
    cases: Mapping[str, Mapping[str, Any]] = {}

    def __post_init__(self) -> None:
        for _ in (self.replaced(fields) for fields in (*self.each, *self.cases.values())):
            pass

    def replaced(self, fields: Mapping[str, Any]) -> Statement:
        """Return the statement with other fields; of `fields` the others are words."""
        known = {name: value for name, value in fields.items() if name in self.__struct_fields__}
        if not known:
            return self
        plain = {
            name: getattr(self, name) for name in self.__struct_fields__ if name not in ("each", "cases")
        }
        return msgspec.convert(plain | known, Statement)


class Texts(string.Formatter):
    """`str.format` where a series of numbers is written from its lowest to its highest."""

    def format_field(self, value: Any, format_spec: str) -> str:
        if isinstance(value, Iterable) and not isinstance(value, str):
            return span(value, format_spec)
        return str(super().format_field(value, format_spec))


def fill(template: str, values: Mapping[str, Any]) -> str:
    """Return a template's text with the computed values in it; a name's index may be one itself."""
    template = re.sub(r"\[\{(\w+)\}\]", lambda index: f"[{values[index[1]]}]", template)
    return Texts().vformat(template, (), values)


def look_up(name: str, values: Mapping[str, Any]) -> Any:
    """Return a computed value by its name, such as "gains[llama-13b]", itself a template."""
    value, _ = Texts().get_field(fill(name, values), (), values)
    return value


def span(values: Iterable[float], form: str = ".2f") -> str:
    """Return the lowest and the highest number as text, or one number if both read the same."""
    each = list(values)
    low, high = format(min(each), form), format(max(each), form)
    return low if low == high else f"{low} to {high}"


def sentence(words: str) -> str:
    """Return words with a capital first letter; the others stay, as names need theirs."""
    return words[:1].upper() + words[1:]


def compare(statement: Statement, values: Mapping[str, Any], defaults: Statement) -> Iterator[Claim]:
    """Yield the claims of a statement; what it leaves out is the defaults'."""
    for row in statement.each:
        known, chosen = {**values, **row}, statement.replaced(row)
        if statement.case:
            case = str(look_up(statement.case, known))
            chosen = chosen.replaced(statement.cases.get(case, {}))
        yield Claim(
            fill(chosen.what, known),
            chosen.where or defaults.where,
            chosen.published,
            _ours(chosen, known),
            fill(chosen.how or defaults.how, known),
            chosen.about or defaults.about or "performance",
            bases(chosen.rests_on or defaults.rests_on),
            chosen.unit,
            chosen.relation,
            fill(chosen.remark, known),
            chosen.entered,
            chosen.fitted,
            fill(chosen.experiment, known),
        )


def bases(names: Iterable[Named]) -> tuple[Basis, ...]:
    """Return each basis once, in the order named."""
    each = (basis for name in names for basis in _BASES.get(name, (cast("Basis", name),)))
    return tuple(dict.fromkeys(each))


def _ours(statement: Statement, values: Mapping[str, Any]) -> Value:
    """Return the computed value, of several the lowest and the highest; or a sentence."""
    if statement.words:
        return fill(statement.words, values)
    if not statement.ours:
        return None
    value = look_up(statement.ours, values)
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, Iterable):
        each = [float(number) for number in value]
        return min(each), max(each)
    return value if isinstance(value, int) else float(value)


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
