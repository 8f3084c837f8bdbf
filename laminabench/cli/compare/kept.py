"""What `laminabench compare` leaves behind: a folder of Runs, and a page about them."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from laminabench.runs.replace import require_writable
from laminabench.util.errors import UserError

if TYPE_CHECKING:
    from laminabench.cli.compare.answers import Answer
    from laminabench.cli.output import Output


def require_new(directory: Path) -> None:
    """A UserError unless Runs of this comparison would be alone in there."""
    if directory.exists() and any(directory.iterdir()):
        raise UserError(
            "output-exists",
            f"{directory} is not empty, and Runs of another day are no part of this comparison",
        )
    require_writable(directory / "1")


def require_page(target: Path) -> None:
    """A UserError where the page could not be made: before anything is replayed for it."""
    from laminabench.render.report import plotly_script

    require_writable(target)
    plotly_script()


def keep(
    answer: Answer, directory: Path | None, page: Path | None, slo_tbt_ms: float | None, out: Output
) -> None:
    """The Runs in their folder, and the page; without a folder nothing but the page has them."""
    if page is None:
        assert directory is not None
        answer.runs(directory)
    else:
        with tempfile.TemporaryDirectory() as temporary:
            write_report(answer, answer.runs(directory or Path(temporary)), page, slo_tbt_ms)
        out.note(f"wrote {page}: open it in a browser")
    if directory is not None:
        out.note(f"Runs are kept in {directory}")


def write_report(answer: Answer, paths: list[Path], target: Path, slo_tbt_ms: float | None) -> None:
    """The tables of the answer, then what `laminabench report` shows of the Runs."""
    from laminabench.render.report import Lead, report, write_page
    from laminabench.render.shown import shown
    from laminabench.runs.read import read_run

    runs = shown([read_run(path) for path in paths], slo_tbt_ms)
    lead = Lead(answer.verdicts, answer.sheets, answer.notes)
    write_page(report(runs, answer.title, None, lead), target)
