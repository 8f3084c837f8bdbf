"""`laminabench traces import`."""

from __future__ import annotations

from pathlib import Path

import click

from laminabench.cli.output import Output, reporting
from laminabench.traces import catalogue
from laminabench.traces.describe import describe
from laminabench.traces.formats import FORMATS, load_file
from laminabench.traces.formats.source import plain_name
from laminabench.traces.store import save


def columns_of(_: click.Context, __: click.Parameter, value: str | None) -> dict[str, str] | None:
    """Callback of --columns: "arrival=t,prompt=in,output=out"."""
    if value is None:
        return None
    pairs = [pair.partition("=") for pair in value.split(",")]
    if not all(key and equals and column for key, equals, column in pairs):
        raise click.BadParameter(f"'{value}' is not of the form arrival=COLUMN,prompt=COLUMN,output=COLUMN")
    return {key.strip(): column.strip() for key, _, column in pairs}


@click.command("import")
@click.argument("file", type=click.Path(path_type=Path))
@click.option(
    "--format", "format_", type=click.Choice(["auto", *FORMATS]), default="auto", help="How it is written."
)
@click.option(
    "--columns",
    metavar="arrival=..,prompt=..,output=..",
    callback=columns_of,
    help="Which column holds what (csv, jsonl, parquet).",
)
@click.option(
    "--time-unit", type=click.Choice(["s", "ms", "us", "ns"]), default="s", help="Unit of numeric arrivals."
)
@click.option(
    "--tokenizer", type=click.Path(path_type=Path), help="tokenizer.json for raw ShareGPT conversations."
)
@click.option("--name", help="What to call it; the file's name without .csv, .gz and the like by default.")
@click.option("--skip-bad", is_flag=True, help="Leave malformed rows out, count and report them.")
@reporting
def import_trace(
    file: Path,
    format_: str,
    columns: dict[str, str] | None,
    time_unit: str,
    tokenizer: Path | None,
    name: str | None,
    skip_bad: bool,
    out: Output,
) -> None:
    """Read FILE, check every row, and keep it under a name that --trace and `traces info` understand."""
    name = name or plain_name(file)
    target = catalogue.imported_path(name)
    if target is None:
        raise click.UsageError(
            f"'{name}' cannot be a trace's name; use --name with letters, digits, '.', '_' and '-'"
        )
    if name in catalogue.entries():
        raise click.UsageError(f"'{name}' is a trace of the catalogue; choose another --name")
    trace = load_file(
        file,
        format=format_,
        columns=columns,
        name=name,
        time_unit=time_unit,
        skip_bad=skip_bad,
        tokenizer=tokenizer,
    )
    if target.exists():
        out.note(f"replacing the earlier import of '{name}'")
    save(trace, target)
    for sentence in trace.meta.notes:
        out.note(sentence)
    facts = {**describe(trace), "path": str(target)}
    out.result(
        facts,
        lambda console: console.print(
            f"imported {len(trace):,} requests as [bold]{name}[/bold]; see `laminabench traces info {name}`"
        ),
    )
