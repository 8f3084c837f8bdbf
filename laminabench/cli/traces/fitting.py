"""`laminabench traces fit`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click
from msgspec.structs import asdict

from laminabench.cli.output import Output, reporting
from laminabench.cli.ranges import positive
from laminabench.cli.traces.options import REQUESTS, target_option
from laminabench.errors import UserError
from laminabench.present.terminal import literal
from laminabench.traces.fit import fit, moment_match
from laminabench.traces.profile import write_profile
from laminabench.traces.resolve import real_trace

if TYPE_CHECKING:
    from rich.console import Console

    from laminabench.traces.profile import Profile

# What a fitted profile is held to; tests hold the committed ones to it.
BOUNDS = {
    "ks_prompt": "0.02",
    "ks_output": "0.02",
    "mean_error_prompt": "0.01",
    "mean_error_output": "0.01",
    "spearman_synthetic": "the real one ± 0.03",
    "minute_dispersion": "about 1 (Poisson noise)",
    "prefix_share_synthetic": "the real one ± 0.02",
}


@click.command("fit")
@click.argument("trace")
@target_option("NAME.toml; its stem names the profile.")
@click.option("--note", default="", help="Kept in the profile and shown wherever it is used.")
@click.option(
    "--mean-prompt", metavar="X", callback=positive, help="Moment-match: rescale prompts to this mean."
)
@click.option(
    "--mean-output", metavar="X", callback=positive, help="Moment-match: rescale outputs to this mean."
)
@click.option("--requests", type=REQUESTS, help="Moment-match: how many requests the other trace has.")
@click.option("--offline", is_flag=True, help="Never download; fit only what is here.")
@reporting
def fit_profile(
    trace: str,
    target: Path,
    note: str,
    mean_prompt: float | None,
    mean_output: float | None,
    requests: int | None,
    offline: bool,
    out: Output,
) -> None:
    """Fit an offline profile to TRACE (a file or a name) and print how close what it generates comes.

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
        table, why_not = real_trace(trace, offline=offline, notice=out.note, progress=progress)
    if table is None:
        raise UserError(
            "profile-no-real-trace",
            f"{trace} is not here ({why_not}), and a profile is fitted to the real trace only",
        )
    if table.meta.source == "profile":
        raise UserError(
            "profile-of-a-profile",
            f"{trace} was itself generated from a profile; fit the real trace, or copy the profile",
        )
    profile = fit(table, target.stem, note)
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
    errors = (
        {}
        if profile.errors is None
        else {key: value for key, value in asdict(profile.errors).items() if value is not None}
    )
    facts = {
        "name": profile.name,
        "method": profile.method,
        "path": str(target),
        "bytes": target.stat().st_size,
        "requests": profile.requests,
        "errors": errors,
    }
    out.result(facts, lambda console: _render(console, profile, target, errors))


def _render(console: Console, profile: Profile, target: Path, errors: dict[str, float]) -> None:
    console.print(
        f"wrote {literal(target)} ({profile.method}, {target.stat().st_size:,} bytes)", soft_wrap=True
    )
    for key, value in errors.items():
        bound = f"   held to {BOUNDS[key]}" if key in BOUNDS else ""
        console.print(f"  {key.replace('_', ' '):28}{value:>12,.4f}{bound}")
