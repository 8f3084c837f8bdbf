"""`laminabench calibrate`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from laminabench.cli.options import FILE, POSITIVE, option
from laminabench.cli.output import Output, reporting
from laminabench.errors import UserError
from laminabench.present.terminal import literal, table

if TYPE_CHECKING:
    from rich.console import Console

MODEL, NAME, SECONDS = "llama-mini", "cpu-core", 240.0


@click.command()
@option("-o --output target", FILE, "Write the set here (.toml); by default NAME.toml in this folder.")
@option("--model", None, "A model in bf16, with made-up weights: a name, or its config.json.", MODEL)
@option("--name", None, "What the device is called in deployments.", NAME)
@option("--seconds", POSITIVE, "About how long to measure; three rounds in any case.", SECONDS)
@reporting
def calibrate(target: Path | None, model: str, name: str, seconds: float, out: Output) -> None:
    """Measure this machine: a cost set, with a device that is one of its cores.

    Slices, matrix products and attention are those of the engine on one core; what is between workers is
    measured with two. `replay --costs SET --deployment 1xNAME+1xNAME` then models what
    `--backend live --deployment 1xcpu+1xcpu` does. Leave the machine alone meanwhile.
    """
    from laminabench.runs.replace import require_writable

    target = target or Path(f"{name}.toml")
    if target.suffix != ".toml":
        raise UserError("calibrate-suffix", f"-o {target}: --costs takes files that end in .toml; name one")
    require_writable(target)
    facts = {"set": str(target), **measured(target, out, model, name, seconds)}
    out.result(facts, lambda console: _print(console, facts))


def measured(
    target: Path, out: Output, model: str = MODEL, name: str = NAME, seconds: float = SECONDS
) -> dict[str, Any]:
    """Measure, write the set, and say how it went."""
    from laminabench.bench.calibrate import calibrate as measure
    from laminabench.catalog.cost_file import write_costs

    with out.progress("measuring", unit="seconds") as told:
        found = measure(model, name, seconds, told)
    write_costs(found.costs, target, "Measured by `laminabench calibrate`.")
    out.note(f"wrote {target}")
    return found.facts


def _print(console: Console, facts: dict[str, Any]) -> None:
    device, host, network = facts["device"], facts["host"], facts["network"]
    rows = [
        (
            literal(row["term"]),
            str(row["points"]),
            str(row["repeats"]),
            f"{row['spread_percent']:.1f}",
            "[yellow]unstable[/yellow]" if row["unstable"] else "",
        )
        for row in facts["terms"]
    ]
    console.print(table(("term", ">points", ">repeats", ">spread %", ""), rows))
    stable = "stable" if facts["stable"] else "[yellow]unstable[/yellow]"
    console.print(
        f"the machine was {stable}: control work that never changes spread by "
        f"{facts['control_spread_percent']:.1f} % over {facts['rounds']} rounds in {facts['seconds']:.0f} s",
        soft_wrap=True,
    )
    console.print(
        f"{device['name']}: {device['tflops']['bf16'] * 1000:,.1f} GFLOP/s in bf16, "
        f"{device['bandwidth_gb_per_s']:.1f} GB/s",
        soft_wrap=True,
    )
    if network is None:
        console.print("one core is too few for workers: host and network are as assumed", soft_wrap=True)
        return
    console.print(
        f"between workers: {network['rtt_s'] * 1e6:.0f} us there and back, then "
        f"{network['bandwidth_bytes_per_s'] / 1e9:.2f} GB/s; between iterations "
        f"{host['per_step_s'] * 1e6:.0f} us and {host['per_request_s'] * 1e6:.1f} us a request",
        soft_wrap=True,
    )
