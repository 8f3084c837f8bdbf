"""`laminabench calibrate`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from laminabench.cli.options import FILE, POSITIVE, option
from laminabench.cli.output import Output, reporting
from laminabench.render.terminal import literal, table
from laminabench.systems.registry import DEFAULT, LIVE, live_system
from laminabench.util.errors import UserError
from laminabench.util.json import JsonObject

if TYPE_CHECKING:
    from rich.console import Console

# The device's name for each measured system; a GPU keeps its own.
NAMES = {name: live_system(name).CALIBRATED or "" for name in LIVE if live_system(name).CALIBRATED}
GPU = "gpu"
MODEL, SECONDS = "llama-mini", 240.0
GPU_MODEL = "llama3.1-8b"


@click.command()
@option("-o --out --output target", FILE, "The cost set (.toml); default: NAME.toml here.")
@option(
    "--model",
    None,
    f"A model in bf16, with made-up weights: a name, or its config.json; by default {MODEL}, "
    f"of a GPU {GPU_MODEL}.",
)
@click.option(
    "--system", type=click.Choice([*NAMES, GPU]), default=DEFAULT, show_default=True, help="System measured."
)
@option("--deployment", None, "With vllm: its cores, such as 1xcpu; default: 2xcpu.")
@option("--ray", None, "With lamina: a Ray cluster, auto or host:port.", metavar="ADDRESS")
@click.option(
    "--device",
    type=click.Choice(["cpu", "cuda"]),
    default="cpu",
    show_default=True,
    help="Device to measure; cuda: the kernels of an NVIDIA GPU.",
)
@option("--name", None, "Name of the device; default: cpu-core, for vllm cpu-vllm, for a GPU measured-CARD.")
@option("--seconds", POSITIVE, "Approximate time to measure, but at least three rounds.", SECONDS)
@reporting
def calibrate(
    target: Path | None,
    model: str | None,
    system: str,
    deployment: str | None,
    ray: str | None,
    device: str,
    name: str | None,
    seconds: float,
    out: Output,
) -> None:
    """Measure a core, vLLM's cores or a GPU of this machine, and write a cost set with that device.

    \b
    laminabench calibrate -o here.toml
    laminabench calibrate --system vllm --deployment 1xcpu -o vllm.toml
    laminabench calibrate --device cuda -o gpu.toml

    Slices, matrix products and attention are the engine's, on one core; transfers are measured between two.
    `replay --costs SET --deployment 1xNAME+1xNAME` then models what `--backend live --deployment 1xcpu+1xcpu`
    does. With --system vllm, steps are measured, and `replay --system vllm --costs SET --deployment 1xNAME`
    models them. On a GPU, kernels are measured and host times are not. Leave the machine alone meanwhile.
    """
    from laminabench.runs.replace import require_writable

    takes = live_system(system).CALIBRATION_TAKES if system != GPU else frozenset()
    if deployment is not None and "deployment" not in takes:
        raise click.UsageError(
            "--deployment goes with --system vllm: of lamina one core is measured, and two"
        )
    if ray is not None and "ray" not in takes and system != GPU:
        raise click.UsageError("--ray goes with --system lamina: vLLM is one process here")
    if device == "cuda" and ("device" not in takes or ray is not None):
        raise click.UsageError("--device cuda measures the engine's kernels: leave out --system and --ray")
    kind = GPU if device == "cuda" else system
    target = target or Path(f"{name or NAMES.get(kind, GPU)}.toml")
    if target.suffix != ".toml":
        raise UserError("calibrate-suffix", f"-o {target}: --costs takes files that end in .toml; name one")
    require_writable(target)
    model = model or (GPU_MODEL if kind == GPU else MODEL)
    facts = {"set": str(target), **measured(target, out, kind, deployment, ray, model, name, seconds)}
    out.result(facts, lambda console: _print(console, facts))


def measured(
    target: Path,
    out: Output,
    kind: str = DEFAULT,
    deployment: str | None = None,
    ray: str | None = None,
    model: str = MODEL,
    name: str | None = None,
    seconds: float = SECONDS,
) -> JsonObject:
    """Measure, write the set, and return the facts."""
    from laminabench.catalog.cost_file import write_costs

    with out.progress("measuring", unit="seconds") as report:
        if kind == GPU:
            from laminabench.calibrate.cuda import calibrate_gpu

            calibrated = calibrate_gpu(model, name, seconds, report)
        elif "deployment" in live_system(kind).CALIBRATION_TAKES:
            from laminabench.calibrate.vllm import calibrate_vllm

            calibrated = calibrate_vllm(model, deployment, name or NAMES[kind], seconds, report)
        else:
            from laminabench.calibrate import calibrate as calibrate_engine

            calibrated = calibrate_engine(model, name or NAMES[kind], seconds, report, ray)
    write_costs(calibrated.costs, target, "Measured by `laminabench calibrate`.")
    out.note(f"wrote {target}")
    return calibrated.facts


def _print(console: Console, facts: Mapping[str, Any]) -> None:
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
    if server := facts["server"]:
        console.print(
            f"behind the HTTP API: {1000 * server['request_in_s']:.1f} ms in, "
            f"{1000 * server['request_serial_s']:.2f} ms for each request, "
            f"{1000 * server['out_s']:.1f} ms out",
            soft_wrap=True,
        )
    if host["kind"] == "assumed":
        console.print("without workers on two cores: host and network are as assumed", soft_wrap=True)
        return
    workers = network and (
        f"between workers: {network['rtt_s'] * 1e6:.0f} us there and back, then "
        f"{network['bandwidth_bytes_per_s'] / 1e9:.2f} GB/s; "
    )
    console.print(
        f"{workers or ''}between iterations {host['per_step_s'] * 1e6:.0f} us and "
        f"{host['per_request_s'] * 1e6:.1f} us a request",
        soft_wrap=True,
    )
