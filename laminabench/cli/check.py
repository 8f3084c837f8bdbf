"""`laminabench check`."""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from laminabench.cli.options import COUNT, FILE, option
from laminabench.cli.output import Output, reporting
from laminabench.util.errors import CheckFailedError

if TYPE_CHECKING:
    from laminabench.workflows.check.case_file import Case
    from laminabench.workflows.check.golden import Obtained


@click.command()
@option("--cases", FILE, "Cases: replays, and the metrics to compare.", "ci/regression.toml")
@click.option("--only", multiple=True, metavar="NAME", help="The only case to check; repeatable.")
@click.option("--update", is_flag=True, help="Accept changed and new results; remove goldens without a case.")
@option("--junit", FILE, "File for the verdicts as JUnit XML.")
@option("--markdown", FILE, "File for a table of changes, for a pull request.")
@option("--jobs", COUNT, "Processes for modelled cases; default: one per core.")
@reporting
def check(
    cases: Path,
    only: tuple[str, ...],
    update: bool,
    junit: Path | None,
    markdown: Path | None,
    jobs: int | None,
    out: Output,
) -> None:
    """Replay cases and compare them with their goldens; exit code 1 if something moved.

    \b
    laminabench check
    laminabench check --junit check.xml --markdown check.md
    laminabench check --update
    """
    from laminabench.render.sheets.check import headline, render, write_junit, write_markdown
    from laminabench.runs.replace import require_writable
    from laminabench.workflows.check.case_file import read_cases
    from laminabench.workflows.check.verdict import goldens_of, verdicts_on, write_goldens

    began = time.perf_counter()
    file = read_cases(cases)
    chosen = file.only(only)
    goldens = goldens_of(file.goldens, chosen, update=update)
    for target in filter(None, (junit, markdown, file.goldens / "any" if update else None)):
        require_writable(target)
    obtained = _replayed(chosen, jobs, out)
    verdicts = verdicts_on(file, chosen, goldens, obtained)
    failed = any(verdict.failed for verdict in verdicts)
    # Update after all replays, so that all goldens are of one state of the code.
    changed = write_goldens(file, verdicts, goldens, obtained) if update else []
    if junit:
        write_junit(junit, verdicts)
    if markdown:
        write_markdown(markdown, verdicts)
    result = {
        "cases": [verdict.describe() for verdict in verdicts],
        "passed": not failed or update,
        "updated": changed,
        "goldens": str(file.goldens),
        "wall_s": time.perf_counter() - began,
    }
    out.result(result, lambda console: render(console, verdicts, changed, verbose=out.verbose))
    if failed and not update:
        raise CheckFailedError(
            "check-moved", f"{headline(verdicts)}; if that is meant, `laminabench check --update` keeps it"
        )


def _replayed(cases: Sequence[Case], jobs: int | None, out: Output) -> dict[str, tuple[Obtained, float]]:
    """Replay the cases, and return each result with its seconds; live cases run alone."""
    from laminabench.util.parallel import spread
    from laminabench.workflows.check.replayed import replayed

    obtained: dict[str, tuple[Obtained, float]] = {}
    modelled = [case for case in cases if not case.measured]
    done, total = itertools.count(1), sum(case.replays for case in cases)
    with out.progress("replaying", unit="replays") as progress:
        progress(0, total)
        for index, came_to in spread(replayed, modelled, None, jobs=jobs):
            obtained[modelled[index].name] = came_to
            progress(next(done), total)
        for case in cases:
            if case.measured:
                obtained[case.name] = replayed(None, case, lambda: progress(next(done), total))
    return obtained
