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
@option("--cases", FILE, "Which replays, and what of them.", "ci/regression.toml")
@click.option("--only", multiple=True, metavar="NAME", help="Repeatable: this case, and no other.")
@click.option("--update", is_flag=True, help="Keep what moved or is new; remove goldens without a case.")
@option("--junit", FILE, "Write the verdicts as JUnit XML.")
@option("--markdown", FILE, "Write what moved as a table for a pull request.")
@option("--jobs", COUNT, "Processes for what is modelled; one a core.")
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
    """Replay cases and hold them against their goldens; exit code 1 if something moved.

    \b
    laminabench check
    laminabench check --junit check.xml --markdown check.md
    laminabench check --update
    """
    from laminabench.render.sheets.check import headline, render, write_junit, write_markdown
    from laminabench.runs.replace import require_writable
    from laminabench.workflows.check.case_file import read_cases
    from laminabench.workflows.check.verdict import goldens_of, keep, verdicts_on

    began = time.perf_counter()
    file = read_cases(cases)
    chosen = file.only(only)
    goldens = goldens_of(file.goldens, chosen, update=update)
    for target in filter(None, (junit, markdown, file.goldens / "any" if update else None)):
        require_writable(target)
    found = _replayed(chosen, jobs, out)
    verdicts = verdicts_on(file, chosen, goldens, found)
    failed = any(verdict.failed for verdict in verdicts)
    # Only now, when all cases have been replayed: goldens are of one state of the code, or left alone.
    changed = keep(file, verdicts, goldens, found) if update else []
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
    """What each case came to now, and its seconds. What is measured has the machine to itself."""
    from laminabench.util.parallel import spread
    from laminabench.workflows.check.replayed import replayed

    found: dict[str, tuple[Obtained, float]] = {}
    modelled = [case for case in cases if not case.measured]
    done, total = itertools.count(1), sum(case.replays for case in cases)
    with out.progress("replaying", unit="replays") as progress:
        progress(0, total)
        for index, came_to in spread(replayed, modelled, None, jobs=jobs):
            found[modelled[index].name] = came_to
            progress(next(done), total)
        for case in cases:
            if case.measured:
                found[case.name] = replayed(None, case, lambda: progress(next(done), total))
    return found
