"""The flags of `laminabench replay` that are not the trace's."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from laminabench.cli.hardware import price_options
from laminabench.cli.ranges import CountOr, NumberRange
from laminabench.cli.replay_backend import NOT_MODELLED
from laminabench.cli.replay_endpoint_options import OPTIONS as ENDPOINT_OPTIONS
from laminabench.cli.traces.options import COUNT, window
from laminabench.sim.spec import POLICIES
from laminabench.systems.registry import MODULES

SYSTEMS = (*MODULES, *NOT_MODELLED)
_FILE = click.Path(dir_okay=False, path_type=Path)
_FOLDER = click.Path(file_okay=False, path_type=Path)


def _choice(*names: str) -> click.Choice[str]:
    return click.Choice(names)


_OPTIONS = (
    click.option("--trace", help="Catalogue name, imported name or file; needed but to resume."),
    click.option(
        "--system",
        "system_name",
        type=_choice(*SYSTEMS),
        default="lamina",
        show_default=True,
        help="What to replay against.",
    ),
    click.option(
        "--deployment",
        help="4xh100, or model+attention workers: 2xh100+4xh20; v2 Table 5's or 1xcpu+1xcpu.",
    ),
    click.option(
        "--model",
        "model_name",
        help="Name, config.json or folder; llama3-70b, or live llama-mini.",
    ),
    click.option(
        "--backend",
        type=_choice("modelled", "live"),
        default="modelled",
        show_default=True,
        help="Hardware one need not have, or the engine on this machine.",
    ),
    click.option(
        "--mode",
        type=_choice("saturate", "open", "closed"),
        default="saturate",
        show_default=True,
        help="Queue never empty, the trace's own arrivals, or fixed concurrency.",
    ),
    click.option("--concurrency", type=COUNT, help="With --mode closed: requests in the system at once."),
    click.option(
        "--slo-tbt-ms",
        type=NumberRange(0, 1e9, min_open=True),
        default=100.0,
        show_default=True,
        help="Time between tokens that counts as good.",
    ),
    click.option(
        "--policy",
        default="fifo",
        show_default=True,
        help="Who goes first: fifo, sjf, deadline, module:Class.",
    ),
    click.option(
        "--batches", type=CountOr("auto"), help="lamina: how many take turns, 1 is serial; 2. Live: or auto."
    ),
    click.option(
        "--pipelining", type=_choice("serial", "rotational", "fixed"), help="lamina: how they take turns."
    ),
    click.option(
        "--pipeline-parallel",
        type=click.IntRange(1, 64),
        default=1,
        show_default=True,
        help="lamina: stages the model workers' layers are split in.",
    ),
    click.option(
        "--partition", type=_choice("heads", "requests"), help="lamina: what attention workers share out."
    ),
    click.option(
        "--overlap/--no-overlap",
        default=True,
        show_default=True,
        help="lamina: send q before k and v exist; live not unless asked for.",
    ),
    click.option(
        "--stream-chunks",
        type=click.IntRange(1, 64),
        help="Mini-batches of a transfer: v1 4, lamina 1.",
    ),
    click.option("--stream-along", type=_choice("requests", "heads"), help="What a mini-batch is a part of."),
    click.option(
        "--kv-overcommit",
        type=NumberRange(1, 100),
        default=1.0,
        show_default=True,
        help="lamina: KV beyond device memory, paged to the host.",
    ),
    click.option(
        "--host-async", is_flag=True, help="The host prepares an iteration while the one before it runs."
    ),
    click.option(
        "--admission",
        type=_choice("reserve", "grow"),
        default="reserve",
        show_default=True,
        help="KV for the final length at once, or as it grows, with preemption.",
    ),
    click.option(
        "--prefix-sharing", is_flag=True, help="Store prompt prefixes that the trace marks as equal once."
    ),
    click.option("--kv-tokens", type=COUNT, help="KV memory, of all workers together; else what fits."),
    click.option("--max-num-seqs", type=click.IntRange(1, 1 << 20), help="Most running at once; live 256."),
    click.option(
        "--block-size", type=click.IntRange(1, 4096), help="KV tokens in a block: vllm 16, lamina 1."
    ),
    click.option(
        "--gpu-memory-utilization",
        metavar="X",
        type=NumberRange(0.1, 1.0),
        default=0.9,
        show_default=True,
        help="Share of a device's memory in use.",
    ),
    click.option("--mapping", type=_choice(*POLICIES), help="h2m2: who says what is on which side; greedy."),
    click.option("--board", metavar="NAME|FILE", help="h2m2: another board than the device's."),
    click.option(
        "--costs", "costs_name", default="vllm-0.14", show_default=True, help="Cost set, or a TOML file."
    ),
    click.option(
        "--network",
        "network_name",
        help="fhbn, nccl, shm, ..., or 40us,42GB/s; the paper's by default. Live: auto, shm, gloo, verbs, "
        "mlx5.",
    ),
    click.option(
        "--tensor-parallel",
        type=click.IntRange(1, 64),
        help="Live vllm: workers that share the model; a CPU's cores are one's threads, GPUs a worker each.",
    ),
    click.option("--max-model-len", type=COUNT, help="Live vllm: longest request; else the trace's longest."),
    click.option(
        "--enforce-eager", is_flag=True, help="Live vllm: compile nothing; starts sooner, runs slower."
    ),
    click.option(
        "--runner-timeout",
        metavar="SECONDS",
        type=NumberRange(0, 1e6, min_open=True),
        help="Live vllm: it hangs if nothing is heard from it for so long; 300.",
    ),
    click.option("--oversubscribe", is_flag=True, help="Live: more workers than cores may share them."),
    click.option(
        "--prefill",
        type=CountOr("off", "model"),
        default="off",
        show_default=True,
        help="Live: prompts made up (off), computed by the model workers (model), or by N others.",
    ),
    click.option(
        "--chaos",
        multiple=True,
        metavar="WHO[=HOW]@WHEN",
        help="Live, repeatable: kill a worker, as attention:1@t=3s, random@tokens=500, random*50.",
    ),
    click.option(
        "--dtype", type=_choice("bf16", "fp16", "fp32"), help="Live: of weights and KV; else the model's."
    ),
    click.option(
        "--ray", metavar="ADDRESS", help="Live: workers as actors of this Ray cluster, auto or host:port."
    ),
    *ENDPOINT_OPTIONS,
    click.option(
        "--resume",
        metavar="RUN",
        type=click.Path(path_type=Path),
        help="Go on with an interrupted live replay, from its journal.",
    ),
    price_options,
    click.option(
        "--out", "directory", type=_FOLDER, help="Where the Run goes; runs/NAME-AND-TIME by default."
    ),
    click.option("--no-out", is_flag=True, help="Print only, keep no Run."),
    click.option("--plot", type=_FILE, help="Draw TBT and tokens/s over time: .png, .svg or .pdf."),
    click.option("--timeline", type=_FILE, help="Perfetto trace of one window: .json or .json.gz."),
    click.option(
        "--timeline-window",
        metavar="A:B",
        callback=window,
        help="Which seconds; two iterations from the middle by default.",
    ),
)


def replay_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command the flags of a replay."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command
