"""The result of a comparison: side by side, with ratios to a base."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from laminabench.analysis.estimate import Estimate
from laminabench.analysis.metrics_table import COMPARED, Metric
from laminabench.analysis.verdict import Verdict
from laminabench.api import html
from laminabench.api.frames import pandas
from laminabench.api.html import Picture
from laminabench.render.html import sentences
from laminabench.render.model import Sheet
from laminabench.render.sheets.planned import curves_sheet
from laminabench.runs.manifest import NUMBERS
from laminabench.runs.read import Run as Table
from laminabench.util.atomic import replacing
from laminabench.util.errors import UserError
from laminabench.util.json import Json
from laminabench.util.suggest import nearest
from laminabench.workflows.compare.curves import Curve
from laminabench.workflows.compare.sides import Gate, SideBySide, failures

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

# Rows of a table that a notebook shows; `table` has all.
_MOST_ROWS = 40
# What a line has of the metrics.
_IN_SHORT = ("throughput", "goodput", "tbt_p50", "tbt_p99", "usd_per_million_tokens")


@dataclass(frozen=True)
class Comparison:
    """A comparison with ratios to a base: with intervals where measured, exact where modelled."""

    title: str
    verdict: Verdict | None
    """The cheapest of systems on one trace within the limits, and how sure that is; None for others."""
    verdicts: tuple[str, ...]
    """The answer in a few sentences; empty for Runs."""
    includes: str
    """The scope of the numbers; empty for Runs."""
    notes: tuple[str, ...]
    """What a reader of the numbers has to know."""
    sides: tuple[SideBySide, ...] = field(repr=False)
    """One of Runs; of systems one for each model, trace and cost set or era."""
    _cells: tuple[tuple[str, str, str], ...]
    _where: tuple[str, ...]  # of each of `sides`, for the end of a sentence
    _sheets: tuple[Sheet, ...]
    _figure: Callable[[], Figure]
    _runs: Callable[[], list[Table]]
    _described: dict[str, Json] = field(repr=False)  # for --json
    _curves: Sequence[tuple[str, Curve]] = ()  # with their names

    @property
    def table(self) -> pd.DataFrame:
        """A row for each metric of each side: its value and its ratio to the base, with their intervals."""
        rows = [
            {
                **dict(zip(("model", "trace", "costs"), cell, strict=True)),
                "side": side.label,
                "deployment": side.deployment,
                "metric": row.metric.name,
                "unit": row.metric.unit,
                **_value(row.metric, row.values[place]),
                **_ratio(row.ratios[place]),
                "measured": side.backend == "live",
            }
            for cell, compared in zip(self._cells, self.sides, strict=True)
            for row in compared.rows()
            for place, side in enumerate(compared.sides)
        ]
        frame: pd.DataFrame = pandas().DataFrame(rows)
        return frame

    @property
    def ratios(self) -> pd.DataFrame:
        """Ratios to the base, a row for each side and a column for each metric."""
        places = ["model", "trace", "costs", "side"]
        frame: pd.DataFrame = self.table.pivot_table(
            index=places, columns="metric", values="ratio", sort=False, observed=True
        )
        return frame

    def ratio(self, metric: str, side: str | None = None) -> Estimate:
        """Return one ratio to the base: its `value`, and its `interval` where it was measured.

        Args:
            metric: As `table` and the gates of `laminabench compare` call it, such as `throughput`.
            side: By its label; without it the first that is not the base.
        """
        if metric not in COMPARED:
            raise UserError("gate-metric-unknown", f"no metric '{metric}'; {nearest(metric, COMPARED)}")
        if len(self.sides) > 1:
            raise UserError(
                "compare-several",
                f"there are {len(self.sides)} comparisons, by model, trace and costs, each with a ratio of "
                "its own: take them from .ratios",
            )
        compared = self.sides[0]
        labels = [each.label for each in compared.sides]
        if side is None:
            return compared.ratio(metric, 1 if compared.base == 0 else 0)
        if side not in labels:
            raise UserError("compare-side-unknown", f"no side '{side}'; {nearest(side, labels)}")
        return compared.ratio(metric, labels.index(side))

    @property
    def answer(self) -> tuple[str, ...]:
        """The verdict's sentences, and what the numbers include."""
        return tuple(filter(None, (*self.verdicts, *self.includes.splitlines())))

    def plot(self) -> Picture:
        """Cost against time between tokens, as `laminabench compare --plot`: bars of Runs and of grids."""
        return Picture(self._figure)

    def report(self, path: str | os.PathLike[str]) -> Path:
        """Write one HTML page that needs no network: the answer, then its Runs side by side.

        Of systems on several models or traces it has the tables only.
        """
        target = Path(path)
        if self._runs():
            self.write_report(target, self.title)
        else:
            with replacing(target) as temporary:
                temporary.write_text(html.page(self.title, self._repr_html_()), encoding="utf-8")
        return target

    def write_report(self, target: Path, title: str | None, slo_tbt_ms: float | None = None) -> None:
        """Write the page of a comparison that has Runs; without a title it has their names."""
        from laminabench.render.report import Lead, report, write_page
        from laminabench.render.sections import curves
        from laminabench.render.shown import shown

        runs = shown(self._runs(), slo_tbt_ms)
        picture = curves(self._curves, runs[0].slo.tbt_ms) if self._curves else None
        lead = Lead(self.answer, self._sheets, self.notes, len(self._cells) > 1)
        write_page(report(runs, title, None, lead, picture), target)

    def runs(self) -> list[Table]:
        """Return the Runs that are compared."""
        return self._runs()

    def describe(self) -> dict[str, Json]:
        """Return the facts of `laminabench compare --json`."""
        return self._described

    def sheets(self) -> tuple[Sheet, ...]:
        """Return the tables."""
        return self._sheets

    def curves(self) -> Iterator[Sheet]:
        """Yield the table of cost against time between tokens, if there are curves."""
        if self._curves:
            yield curves_sheet(self._curves)

    def failures(self, gates: list[Gate], *, strict: bool) -> list[str]:
        """Return a line for every gate that fails."""
        return [
            line
            for where, compared in zip(self._where, self.sides, strict=True)
            for line in failures(gates, compared, strict=strict, where=where)
        ]

    def __repr__(self) -> str:
        short = () if self.verdict else self._in_short()
        return "\n".join((self.title, *self.verdicts, *short))

    def _in_short(self) -> Iterator[str]:
        """Yield a line for each side that is not the base."""
        for cell, compared in zip(self._cells, self.sides, strict=True):
            where = f"{', '.join(filter(None, cell))}: " if len(self.sides) > 1 else ""
            for place, side in enumerate(compared.sides):
                if place != compared.base:
                    ratios = ((name, compared.ratio(name, place)) for name in _IN_SHORT)
                    texts = (f"{name} {_times(ratio)}" for name, ratio in ratios if ratio.value)
                    yield f"{where}{side.label}: {', '.join(texts)}"

    def _repr_html_(self) -> str:
        backends = dict.fromkeys(side.backend for compared in self.sides for side in compared.sides)
        badges = (NUMBERS[each] for each in backends)
        sheets = (html.sheet(each, most=_MOST_ROWS) for each in self._sheets)
        verdicts = sentences(self.answer, "verdicts")
        return html.block(self.title, verdicts, *sheets, sentences(self.notes), badges=badges)


def _times(ratio: Estimate) -> str:
    sure = f" ({ratio.interval.low:.3f} to {ratio.interval.high:.3f})" if ratio.interval else ""
    return f"x {ratio.value:.3f}{sure}"


def _value(metric: Metric, estimate: Estimate) -> dict[str, float | None]:
    low, high = metric.interval(estimate) or (None, None)
    return {"value": estimate.value, "low": low, "high": high}


def _ratio(estimate: Estimate) -> dict[str, float | None]:
    low, high = estimate.interval or (None, None)
    return {"ratio": estimate.value, "ratio_low": low, "ratio_high": high}
