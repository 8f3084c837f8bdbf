"""`laminabench export`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from laminabench.cli.options import PATH, option
from laminabench.cli.output import Output, reporting
from laminabench.render.terminal import literal

if TYPE_CHECKING:
    from rich.console import Console

TOOLS = ("aiperf", "vllm-bench", "guidellm")


@click.command()
@click.argument("directory", metavar="RUN", type=PATH)
@option("--to tool", click.Choice(TOOLS), "Tool whose format to write.", required=True)
@option("-o --out --output target", PATH, "Output file, for aiperf a folder; default: named after the Run.")
@reporting
def export(directory: Path, tool: str, target: Path | None, out: Output) -> None:
    """Export a Run as another load generator's result, for dashboards and plots that read those.

    \b
    laminabench export runs/mine --to vllm-bench -o mine.json
    laminabench export runs/mine --to aiperf -o artifacts/mine
    """
    from laminabench.interchange.exporting import exported, notes_of, target_of, write
    from laminabench.interchange.tools import TOOLS as KNOWN
    from laminabench.runs.read import read_run
    from laminabench.runs.replace import require_writable

    run = read_run(directory)
    place = target_of(run, tool, target)
    require_writable(place)
    files, calls = exported(run, tool)
    size_bytes = write(files, place, folder=KNOWN[tool].folder)
    notes = notes_of(run, tool)
    if target is not None and place != target:
        notes = [f"a modelled Run says so in its file's name: {place}", *notes]
    for sentence in notes:
        out.note(sentence)
    result = {
        "output": str(place),
        "tool": tool,
        "bytes": size_bytes,
        "backend": run.manifest.backend,
        "requests": len(calls),
        "completed": int(calls.done.sum()),
        "tokens": int(calls.output_tokens.sum()),
        "notes": notes,
    }

    def render(console: Console) -> None:
        console.print(
            f"{literal(place)}: {len(calls):,} requests, {run.manifest.backend}, as {tool} writes them; "
            f"{size_bytes / 1e6:.1f} MB",
            soft_wrap=True,
        )

    out.result(result, render)
