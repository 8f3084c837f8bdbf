"""`laminabench traces synth`."""

from __future__ import annotations

from pathlib import Path

import click

from laminabench.cli.output import Output, reporting
from laminabench.cli.traces.options import TRACE_FILE, target_option
from laminabench.traces import catalogue
from laminabench.traces.describe import describe
from laminabench.traces.profile_file import read_profile
from laminabench.traces.store import save
from laminabench.traces.synth import synthesise


@click.command()
@click.argument("name")
@click.option(
    "--requests",
    "--num-requests",
    "requests",
    type=click.IntRange(min=1),
    help="How many; as many as the real trace by default.",
)
@click.option(
    "--seed",
    type=click.IntRange(min=0),
    default=0,
    help="The same seed gives the same trace on every machine.",
)
@target_option(TRACE_FILE)
@reporting
def synth(name: str, requests: int | None, seed: int, target: Path, out: Output) -> None:
    """Draw requests from the profile NAME: a catalogue name, or a TOML file that `traces fit` wrote."""
    path = Path(name) if name.endswith(".toml") else catalogue.find(name).profile_path
    trace = synthesise(read_profile(path), requests, seed)
    save(trace, target)
    for sentence in trace.meta.notes:
        out.note(sentence)
    facts = {**describe(trace), "seed": seed, "path": str(target)}
    out.result(
        facts, lambda console: console.print(f"wrote {len(trace):,} requests to {target}", soft_wrap=True)
    )
