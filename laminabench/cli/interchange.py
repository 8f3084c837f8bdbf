"""`laminabench import` and `laminabench export`: results of other load generators."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from laminabench.cli.flags import price_options
from laminabench.cli.options import FOLDER, PATH, NumberRange, option
from laminabench.cli.output import Output, reporting
from laminabench.render.terminal import literal
from laminabench.util.errors import UserError, require_text

if TYPE_CHECKING:
    from rich.console import Console

    from laminabench.catalog.deployment import Deployment

TOOLS = ("aiperf", "vllm-bench", "guidellm")


@click.command("import")
@click.argument("files", metavar="FILE...", nargs=-1, required=True, type=PATH)
@option("--from tool", click.Choice(TOOLS), "Tool that wrote the files; default: by their contents.")
@option("-o --out folder", FOLDER, "Folder of the Run, or of several; default: runs/NAME-AND-TIME.")
@option("--model", None, "Model that answered, if the file does not name it or uses another name.")
@option("--deployment", None, "The hardware behind the server, for its price: 4xh100.")
@price_options
@option(
    "--slo-tbt-ms",
    NumberRange(min=0, min_open=True, max=1e9),
    "Limit of the time between tokens.",
    100.0,
)
@option(
    "--slo-ttft-ms",
    NumberRange(min=0, min_open=True, max=1e9),
    "Limit of the time to the first token.",
)
@reporting
def import_(
    files: tuple[Path, ...],
    tool: str | None,
    folder: Path | None,
    model: str | None,
    deployment: str | None,
    slo_tbt_ms: float,
    slo_ttft_ms: float | None,
    out: Output,
    price: tuple[str, ...],
    power: tuple[str, ...],
    price_basis: str | None,
) -> None:
    """Import results of aiperf, vllm bench serve or guidellm as Runs, for compare, report and the rest.

    \b
    laminabench import result.json --deployment 4xh100
    laminabench import artifacts/mine benchmarks.json --out runs/theirs
    """
    from laminabench.interchange.importing import Given, imported
    from laminabench.interchange.tools import read
    from laminabench.render.sheets.interchange import described, render
    from laminabench.runs.write import check_replaceable

    given = Given(model, _hardware(deployment, price, price_basis, power), slo_tbt_ms, slo_ttft_ms)
    for path in (*files, *(() if folder is None else (folder,))):
        require_text(str(path))
    made = []
    with out.progress("reading", unit="files") as progress:
        for done, path in enumerate(files):
            progress(done, len(files))
            made += [imported(benchmark, path, given) for benchmark in read(path, tool)]
    places: list[Path] = []
    for each in made:
        places.append(_place(folder, each.trace.meta.name, several=len(made) > 1, taken=places))
    for place in places:
        check_replaceable(place)
    results = list(zip(made, places, strict=True))
    for each, place in results:
        each.write(place)
        for sentence in each.notes:
            out.note(sentence)
    out.result({"runs": [described(*each) for each in results]}, lambda console: render(console, results))


def _hardware(
    deployment: str | None, price: tuple[str, ...], price_basis: str | None, power: tuple[str, ...]
) -> Deployment | None:
    from laminabench.catalog.deployment import parse_deployment
    from laminabench.catalog.hardware import priced_devices

    if deployment is None:
        if price or price_basis or power:
            raise UserError(
                "import-flag-needed",
                "--price, --power and --price-basis are of a --deployment; give that too",
            )
        return None
    return parse_deployment(deployment, priced_devices(price, price_basis, power))


def _place(folder: Path | None, name: str, *, several: bool, taken: list[Path]) -> Path:
    """Return a Run's folder, which must not exist yet."""
    from laminabench.workflows.replay.run import free_directory

    if folder is not None and not several:
        return folder
    place = free_directory(f"{name}-imported") if folder is None else folder / name
    number = 2
    first = place
    while place in taken:
        place = first.with_name(f"{first.name}-{number}")
        number += 1
    return place


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
