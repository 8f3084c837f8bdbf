"""`laminabench traces fetch`."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import click

from laminabench.cli.ending import DONE, end_of, say
from laminabench.cli.output import Output, reporting
from laminabench.errors import CheckFailedError, UserError
from laminabench.present.terminal import literal
from laminabench.traces import catalogue
from laminabench.traces.catalogue import sha256_of
from laminabench.traces.fetch import fetch

if TYPE_CHECKING:
    from rich.console import Console


@click.command("fetch")
@click.argument("names", nargs=-1, metavar="NAME...")
@click.option("--all", "everything", is_flag=True, help="Every trace of the catalogue (several GB).")
@click.option(
    "--from",
    "base",
    metavar="URL_OR_DIR",
    help="A mirror or a folder holding the files by their upstream names.",
)
@reporting
def fetch_traces(names: tuple[str, ...], everything: bool, base: str | None, out: Output) -> int:
    """Download traces: resumes a cut download, checks the sha256, puts the file in place whole.

    What fails does not keep the others from being fetched.
    """
    if everything == bool(names):
        raise click.UsageError("name the traces to fetch, or say --all")
    entries = [catalogue.find(name) for name in (catalogue.entries() if everything else names)]
    worst = DONE
    rows: list[dict[str, object]] = []
    for entry in entries:
        try:
            rows.append(_fetched(entry, base, out))
        except (UserError, CheckFailedError, OSError) as error:
            if os.environ.get("LAMINABENCH_DEBUG"):
                raise
            end = end_of(error)
            say(end.sentence)
            rows.append({"name": entry.name, "error": str(error), "code": end.error_code})
            worst = max(worst, end.exit_code)

    def render(console: Console) -> None:
        for row in rows:
            if "path" in row:
                name, path, license_ = (literal(row[key]) for key in ("name", "path", "license"))
                console.print(f"{name}  {path}  [dim]{license_}[/dim]", soft_wrap=True)

    out.result({"fetched": rows}, render)
    return worst


def _fetched(entry: catalogue.Entry, base: str | None, out: Output) -> dict[str, object]:
    with out.progress(entry.name) as progress:
        path = fetch(entry, base=base, progress=progress)
    digest = sha256_of(path)
    checked = entry.file.sha256 is not None
    if not checked:
        out.note(f"{entry.name}: the publisher gives no checksum; this copy's sha256 is {digest}")
    return {
        "name": entry.name,
        "path": str(path),
        "bytes": path.stat().st_size,
        "sha256": digest,
        "sha256_checked": checked,
        "license": entry.license,
    }
