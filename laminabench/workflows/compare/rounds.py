"""Runs side by side: those of one live thing are rounds of it, and taken together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from laminabench.analysis.estimate import of_rounds
from laminabench.analysis.metrics_table import SUMMARISED
from laminabench.util.errors import UserError
from laminabench.workflows.compare.recorded import Recorded, comparability_warnings, recorded
from laminabench.workflows.compare.sides import Side, SideBySide, side_by_side

_PARTIAL = " (PARTIAL)"


def compare_runs(
    paths: Sequence[Path],
    *,
    base: Path | None = None,
    slo_tbt_ms: float | None = None,
    slo_ttft_ms: float | None = None,
    group: bool = True,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> tuple[SideBySide, list[str]]:
    """Return the Runs side by side, and sentences on why they may not be comparable.

    The base is a Run of the side that ratios are to; the first one's, if None.
    """
    _require_distinct(paths)
    measured = []
    for path in paths:
        measured.append(recorded(path, slo_tbt_ms, slo_ttft_ms))
        progress(len(measured), len(paths))
    return compare_recorded(measured, base=base, group=group)


def compare_recorded(
    measured: list[Recorded], *, base: Path | None = None, group: bool = True
) -> tuple[SideBySide, list[str]]:
    """Compare Runs that have been read and summarised."""
    groups = _groups(measured, group=group)
    at = _base(groups, base or measured[0].path)
    limits = {each.summary.slo.tbt_ms for each in measured}
    one_limit = limits.pop() if len(limits) == 1 else None
    firsts = {each.summary.slo.ttft_ms or None for each in measured}
    one_first = firsts.pop() if len(firsts) == 1 else None
    entries = [_side(each, label) for each, label in zip(groups, _labels(groups), strict=True)]
    return side_by_side(entries, at, one_limit, one_first), comparability_warnings(measured, groups)


def _require_distinct(paths: Sequence[Path]) -> None:
    """Raise a UserError for a Run that is given twice: it would pass for two rounds that agree exactly."""
    folders: set[Path] = set()
    for path in paths:
        if path.resolve() in folders:
            raise UserError("compare-run-twice", f"{path} is given twice; a Run is compared with other Runs")
        folders.add(path.resolve())


def _groups(measured: list[Recorded], *, group: bool) -> list[list[Recorded]]:
    """Group rounds at the place of the first one. Modelled Runs are exact: each is a group by itself."""
    groups: dict[str, list[Recorded]] = {}
    for place, each in enumerate(measured):
        together = group and each.measured
        groups.setdefault(each.facts.what if together else str(place), []).append(each)
    return list(groups.values())


def _base(groups: list[list[Recorded]], base: Path) -> int:
    path = base.resolve()
    for place, group in enumerate(groups):
        if any(each.path.resolve() == path for each in group):
            return place
    raise UserError(
        "compare-base-unknown",
        f"--base {base} is none of the Runs that are compared; give it as one of them too",
    )


def _labels(groups: list[list[Recorded]]) -> list[str]:
    """Return system and deployment where these differ between groups, else the Run's name."""
    plain = [f"{group[0].facts.system} {group[0].facts.deployment}" for group in groups]
    return [
        (name if plain.count(name) == 1 else str(group[0].path)) + _PARTIAL * bool(group[0].facts.partial)
        for name, group in zip(plain, groups, strict=True)
    ]


def _side(group: list[Recorded], label: str) -> Side:
    first, estimates = group[0], group[0].estimates
    if len(group) > 1:
        estimates = {
            metric.name: first.estimates[metric.name]
            if metric.certainty == "fixed"
            else of_rounds([metric.of(each.summary) for each in group])
            for metric in SUMMARISED
        }
    return Side(
        label,
        first.facts.system,
        first.facts.deployment,
        first.facts.model,
        first.facts.backend,
        estimates,
        tuple(str(each.path) for each in group),
        first.facts.partial,
    )
