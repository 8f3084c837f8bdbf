"""`laminabench traces ...`: inspect, fetch and generate traces."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from msgspec.structs import asdict

from laminabench.cli.ending import DONE, end_of, print_error
from laminabench.cli.flags import changed, trace_options
from laminabench.cli.lazy import LazyGroup
from laminabench.cli.options import FILE, PATH, POSITIVE, SEED, option, target_option
from laminabench.cli.output import Output, reporting
from laminabench.render.terminal import literal, table
from laminabench.requests.replay import ReplayRequest
from laminabench.traces import catalogue
from laminabench.traces.catalogue import sha256_of
from laminabench.traces.describe import describe
from laminabench.traces.fetch import fetch as fetch_file
from laminabench.traces.fit import fit as fitted
from laminabench.traces.fit import moment_match
from laminabench.traces.formats import FORMATS, load_file
from laminabench.traces.formats.limits import Limits
from laminabench.traces.formats.source import plain_name
from laminabench.traces.plot import check_suffix as check_picture
from laminabench.traces.plot import plot_trace
from laminabench.traces.profile import named_profile, read_profile, write_profile
from laminabench.traces.resolve import data_file, real_trace, shared_trouble
from laminabench.traces.store import check_suffix, lost_in, save
from laminabench.traces.synth import synthesise
from laminabench.traces.table import MAX_REQUESTS, Trace
from laminabench.util.errors import CheckFailedError, UserError
from laminabench.util.paths import expanded
from laminabench.workflows.replay.run import load

if TYPE_CHECKING:
    from rich.console import Console

    from laminabench.traces.profile import Profile

SECTIONS = {
    "Look": {
        "list": "The traces known by name, and what is here of each.",
        "info": "Lengths, rate, burstiness and prefix reuse of a trace.",
    },
    "Get": {
        "fetch": "Download traces, resumable and checked.",
        "import": "Read a file of yours and keep it under a name.",
    },
    "Make": {
        "synth": "Draw requests from a fitted profile.",
        "export": "Write a trace, cut and rescaled, as parquet, CSV or JSON lines.",
        "fit": "Fit an offline profile to a trace.",
    },
}
EXAMPLES = (
    "laminabench traces info azure-conv --plot azure-conv.png",
    "laminabench traces fetch azure-conv kimi-conv",
    "laminabench traces import mine.csv --columns arrival=t,prompt=in,output=out",
    "laminabench traces synth azure-conv --requests 5000 -o five-thousand.parquet",
    "laminabench traces export kimi-conv --window 0:600 -o ten-minutes.jsonl",
    "laminabench traces fit mine.csv -o mine.toml",
)
# Limits of a fitted profile's errors; tests apply them to the committed ones.
BOUNDS = {
    "ks_prompt": "0.02",
    "ks_output": "0.02",
    "mean_error_prompt": "0.01",
    "mean_error_output": "0.01",
    "spearman_synthetic": "the real one ± 0.03",
    "minute_dispersion": "about 1 (Poisson noise)",
    "prefix_share_synthetic": "the real one ± 0.02",
}
_TRACE_FILE = "FILE.parquet, .csv or .jsonl."
# Applies to generated requests, not to those selected from a trace.
_REQUESTS = click.IntRange(1, MAX_REQUESTS)


@click.group(cls=LazyGroup, sections=SECTIONS, examples=EXAMPLES)
def traces() -> None:
    """List, fetch, inspect, fit and generate request traces."""


@traces.command("list")
@reporting
def list_traces(out: Output) -> None:
    """List the traces known by name, and which are stored here."""
    if trouble := shared_trouble():
        out.note(trouble)
    rows = [_row(entry) for entry in catalogue.entries().values()]
    imported = [
        {"name": name, "path": str(catalogue.imported_path(name))} for name in catalogue.imported_names()
    ]

    def render(console: Console) -> None:
        drawn = table(("trace", "here", "profile", ">requests", "licence", "what it is"))
        for row in rows:
            drawn.add_row(
                f"[bold]{literal(row['name'])}[/bold]",
                "file" if row["file"] else "-",
                str(row["profile"]),
                f"{row['requests']:,}",
                literal(row["license"]),
                literal(row["description"]),
            )
        for each in imported:
            name, path = literal(each["name"]), literal(each["path"])
            drawn.add_row(f"[bold]{name}[/bold]", "import", "-", "", "", path)
        console.print(drawn)

    out.result({"traces": rows, "imported": imported}, render)


def _row(entry: catalogue.Entry) -> dict[str, object]:
    profile = named_profile(entry.name)
    file = data_file(entry)
    same = {key: getattr(entry, key) for key in ("format", "license", "citation", "homepage")}
    return {
        "name": entry.name,
        "description": entry.description,
        "file": None if file is None else str(file),
        "profile": profile.method,
        "profile_note": profile.note,
        "requests": entry.published.requests if entry.published else profile.requests,
        **same,
        "url": entry.file.url,
        "sha256": entry.file.sha256,
    }


@traces.command()
@click.argument("trace")
@option("--plot", FILE, "Figure of the trace: .png, .svg or .pdf.")
@trace_options
@reporting
def info(trace: str, plot: Path | None, workload: ReplayRequest, out: Output) -> None:
    """Show lengths, rate, burstiness and prefix reuse of TRACE: a catalogue or imported name, or a file."""
    if plot is not None:
        check_picture(plot)
    loaded = load(changed(workload, {"trace": trace}), out)
    facts = describe(loaded)
    if plot is not None:
        plot_trace(loaded, plot)
        out.note(f"drew {plot}")
    out.result(facts, lambda console: _print_info(console, facts))


def _print_info(console: Console, facts: Mapping[str, Any]) -> None:
    sources = {"file": "the real trace", "profile": "generated from a profile, not the real trace"}
    name, origin = literal(facts["name"]), literal(facts["origin"])
    console.print(f"[bold]{name}[/bold]  {sources[facts['source']]}: {origin}", soft_wrap=True)
    sessions = "" if facts["sessions"] is None else f" in {facts['sessions']:,} sessions"
    console.print(f"requests      {facts['requests']:,}{sessions}")
    if facts["duration_s"] is None:
        console.print("arrivals      none recorded: an open replay needs --request-rate")
    else:
        rate = "" if facts["rate_per_s"] is None else f", {facts['rate_per_s']:.3g} requests/s"
        console.print(f"duration      {facts['duration_s']:,.1f} s{rate}")
    if facts["interarrival_cv"] is not None:
        console.print(f"burstiness    {facts['interarrival_cv']:.2f} inter-arrival CV (1 is Poisson)")
    if facts["prefix_share"] is not None:
        console.print(f"prefix share  {facts['prefix_share']:.1%} of prompt tokens repeat an earlier prefix")
    lengths = table(("tokens       ", *(f">{title}" for title in facts["prompt"])))
    for which in ("prompt", "output"):
        numbers = facts[which].items()
        cells = (f"{value:,.1f}" if name == "mean" else f"{value:,}" for name, value in numbers)
        lengths.add_row(which, *cells)
    console.print(lengths)
    if facts["citation"]:
        console.print(f"[dim]{literal(facts['license'])}; cite {literal(facts['citation'])}[/dim]")


@traces.command()
@click.argument("names", nargs=-1, metavar="NAME...")
@click.option("--all", "everything", is_flag=True, help="Every trace of the catalogue (several GB).")
@option(
    "--from base",
    None,
    "A mirror or a folder holding the files by their upstream names.",
    metavar="URL_OR_DIR",
)
@reporting
def fetch(names: tuple[str, ...], everything: bool, base: str | None, out: Output) -> int:
    """Download traces: resume interrupted downloads, check sha256, and replace files atomically.

    A failed download does not stop the others.
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
            print_error(end.sentence)
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
        path = fetch_file(entry, base=base, progress=progress)
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


def columns_of(_: click.Context, __: click.Parameter, value: str | None) -> dict[str, str] | None:
    """Parse --columns, "arrival=t,prompt=in,output=out"; a callback of click's."""
    if value is None:
        return None
    pairs = [pair.partition("=") for pair in value.split(",")]
    if not all(key and equals and column for key, equals, column in pairs):
        raise click.BadParameter(f"'{value}' is not of the form arrival=COLUMN,prompt=COLUMN,output=COLUMN")
    return {key.strip(): column.strip() for key, _, column in pairs}


@traces.command("import")
@click.argument("file", type=PATH)
@click.option("--format", type=click.Choice(["auto", *FORMATS]), default="auto", help="Format of FILE.")
@option(
    "--columns",
    None,
    "Columns by what they contain (csv, jsonl, parquet).",
    metavar="arrival=..,prompt=..,output=..",
    callback=columns_of,
)
@click.option(
    "--time-unit", type=click.Choice(["s", "ms", "us", "ns"]), default="s", help="Unit of numeric arrivals."
)
@option("--tokenizer", PATH, "tokenizer.json for raw ShareGPT conversations.")
@option("--name", None, "Name of the trace; default: the file's without .csv, .gz and the like.")
@click.option("--skip-bad", is_flag=True, help="Leave malformed rows out, count and report them.")
@option("--max-rows", _REQUESTS, "Limit of rows; lifts the limit of the compression ratio.")
@reporting
def import_trace(file: Path, name: str | None, max_rows: int | None, out: Output, **how: Any) -> None:
    """Read FILE, check every row, and store it under a name for --trace and `traces info`."""
    name = name or plain_name(file)
    target = catalogue.imported_path(name)
    if target is None:
        raise click.UsageError(
            f"'{name}' cannot be a trace's name; use --name with letters, digits, '.', '_' and '-'"
        )
    if name in catalogue.entries():
        raise click.UsageError(f"'{name}' is a trace of the catalogue; choose another --name")
    trace = load_file(file, name=name, limits=Limits(max_rows), **how)
    if target.exists():
        out.note(f"replacing the earlier import of '{name}'")
    save(trace, target)
    for sentence in trace.meta.notes:
        out.note(sentence)
    text = f"imported {len(trace):,} requests as [bold]{name}[/bold]; see `laminabench traces info {name}`"
    out.result({**describe(trace), "path": str(target)}, lambda console: console.print(text))


@traces.command()
@click.argument("name")
@option("--requests --num-requests requests", _REQUESTS, "Number of requests; default: the real trace's.")
@option("--seed", SEED, "Random seed; it gives the same trace on every machine.", 0)
@target_option(_TRACE_FILE)
@reporting
def synth(name: str, requests: int | None, seed: int, target: Path, out: Output) -> None:
    """Draw requests from the profile NAME: a catalogue name, or a TOML file that `traces fit` wrote."""
    check_suffix(target)
    profile = read_profile(expanded(name)) if name.endswith(".toml") else named_profile(name)
    trace = synthesise(profile, requests, seed)
    made, *why = trace.meta.notes
    out.note(made)
    for sentence in why:
        out.detail(sentence)
    _write(trace, target, out, seed=seed)


@traces.command()
@click.argument("trace")
@target_option(_TRACE_FILE)
@trace_options
@reporting
def export(trace: str, target: Path, workload: ReplayRequest, out: Output) -> None:
    """Write TRACE, cut and rescaled, to a file that laminabench and most tools can read."""
    check_suffix(target)
    _write(load(changed(workload, {"trace": trace}), out), target, out)


def _write(trace: Trace, target: Path, out: Output, **more: object) -> None:
    """Save a trace, note what the file cannot hold, and report; `more` joins the JSON object."""
    save(trace, target)
    if lost := lost_in(target, trace):
        out.note(lost)
    done = f"wrote {len(trace):,} requests to {literal(target)}"
    facts = {**describe(trace), **more, "path": str(target)}
    out.result(facts, lambda console: console.print(done, soft_wrap=True))


@traces.command("fit")
@click.argument("trace")
@target_option("NAME.toml; its stem names the profile.")
@click.option("--note", default="", help="Note in the profile, shown wherever it is used.")
@option("--mean-prompt", POSITIVE, "Moment-match: rescale prompts to this mean.")
@option("--mean-output", POSITIVE, "Moment-match: rescale outputs to this mean.")
@option("--requests", _REQUESTS, "Moment-match: number of requests of the other trace.")
@click.option("--offline", is_flag=True, help="Never download; fit only what is here.")
@option("--max-rows", _REQUESTS, "Limit of rows; lifts the limit of the compression ratio.")
@reporting
def fit_profile(
    trace: str,
    target: Path,
    note: str,
    mean_prompt: float | None,
    mean_output: float | None,
    requests: int | None,
    offline: bool,
    max_rows: int | None,
    out: Output,
) -> None:
    """Fit an offline profile to TRACE (a file or a name), and print how close it comes.

    With --mean-prompt and --mean-output the shape is TRACE's but the means are another trace's, of which no
    more is known; the profile then says that it is moment-matched.
    """
    if target.suffix != ".toml":
        raise click.UsageError(f"a profile is a .toml file, not {target.name}")
    if (mean_prompt is None) != (mean_output is None) or (requests is not None and mean_prompt is None):
        raise click.UsageError(
            "moment matching takes --mean-prompt and --mean-output together (and --requests)"
        )
    with out.progress(f"downloading {trace}") as progress:
        source, why_not = real_trace(
            trace, offline=offline, notice=out.note, progress=progress, limits=Limits(max_rows)
        )
    if source is None:
        raise UserError(
            "profile-no-real-trace",
            f"{trace} is not here ({why_not}), and a profile is fitted to the real trace only",
        )
    if source.meta.source == "profile":
        raise UserError(
            "profile-of-a-profile",
            f"{trace} was itself generated from a profile; fit the real trace, or copy the profile",
        )
    profile = fitted(source, target.stem, note)
    if mean_prompt is not None and mean_output is not None:
        profile = moment_match(
            profile,
            name=target.stem,
            requests=requests or profile.requests,
            mean_prompt=mean_prompt,
            mean_output=mean_output,
            note=note,
        )
    write_profile(profile, target)
    known = asdict(profile.errors) if profile.errors else {}
    errors = {key: value for key, value in known.items() if value is not None}
    facts = {
        "name": profile.name,
        "method": profile.method,
        "path": str(target),
        "bytes": target.stat().st_size,
        "requests": profile.requests,
        "errors": errors,
    }
    out.result(facts, lambda console: _print_fit(console, profile, target, errors))


def _print_fit(console: Console, profile: Profile, target: Path, errors: dict[str, float]) -> None:
    console.print(
        f"wrote {literal(target)} ({profile.method}, {target.stat().st_size:,} bytes)", soft_wrap=True
    )
    for key, value in errors.items():
        bound = f"   held to {BOUNDS[key]}" if key in BOUNDS else ""
        console.print(f"  {key.replace('_', ' '):28}{value:>12,.4f}{bound}")
