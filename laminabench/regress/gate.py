"""All cases of a call: what each is held against, the verdicts, and the goldens that an update keeps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from laminabench.errors import UserError
from laminabench.regress.case_file import Case, CaseFile
from laminabench.regress.causes import inputs_differ
from laminabench.regress.golden import Obtained, golden_path, goldens_in, read_golden, write_golden
from laminabench.regress.verdict import Verdict, judge, stale

Goldens = Mapping[str, Obtained | None]


def goldens_of(folder: Path, cases: Sequence[Case], *, update: bool) -> Goldens:
    """The goldens by case; an update takes one that cannot be read for none, and writes it anew."""
    found: dict[str, Obtained | None] = {}
    for case in cases:
        try:
            found[case.name] = read_golden(folder, case.name)
        except UserError:
            if not update:
                raise
            found[case.name] = None
    return found


def verdicts_on(
    file: CaseFile, cases: Sequence[Case], goldens: Goldens, found: Mapping[str, tuple[Obtained, float]]
) -> list[Verdict]:
    """A verdict on each case in the file's order; where all are there, on goldens without one too."""
    verdicts = [judge(case, goldens[case.name], *found[case.name]) for case in cases]
    if len(cases) == len(file.cases):
        known = {case.name for case in cases}
        verdicts += [stale(name) for name in goldens_in(file.goldens) if name not in known]
    return verdicts


def keep(
    file: CaseFile,
    verdicts: Sequence[Verdict],
    goldens: Goldens,
    found: Mapping[str, tuple[Obtained, float]],
) -> list[str]:
    """Make the goldens what was found; the names of those that were written or removed.

    One whose numbers and inputs are the same stays as it is, with the version that it was made by.
    """
    changed = []
    for verdict in verdicts:
        if verdict.status == "stale":
            golden_path(file.goldens, verdict.case).unlink()
            changed.append(verdict.case)
            continue
        golden, now = goldens[verdict.case], found[verdict.case][0]
        if verdict.status != "same" or golden is None or _differ(golden, now):
            write_golden(file.goldens, verdict.case, now)
            changed.append(verdict.case)
    return changed


def _differ(golden: Obtained, now: Obtained) -> bool:
    """Whether what moved nowhere is nevertheless of something else than it was."""
    return golden.metrics.keys() != now.metrics.keys() or inputs_differ(golden.facts, now.facts)
