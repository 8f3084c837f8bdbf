"""`laminabench traces synth`."""

from __future__ import annotations

from pathlib import Path

import click

from laminabench.cli.output import Output, reporting
from laminabench.cli.traces.options import REQUESTS, TRACE_FILE, target_option
from laminabench.cli.traces.writing import write_trace
from laminabench.paths import expanded
from laminabench.traces.profile import named_profile, read_profile
from laminabench.traces.store import check_suffix
from laminabench.traces.synth import synthesise


@click.command()
@click.argument("name")
@click.option(
    "--requests",
    "--num-requests",
    "requests",
    type=REQUESTS,
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
    check_suffix(target)
    profile = read_profile(expanded(name)) if name.endswith(".toml") else named_profile(name)
    trace = synthesise(profile, requests, seed)
    made, *why = trace.meta.notes
    out.note(made)
    for sentence in why:
        out.detail(sentence)
    write_trace(trace, target, out, seed=seed)
