"""Benchmarks for developers: the GPU window, and our kernels against other libraries.

python tools/bench.py gpu --quick
python tools/bench.py products
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from laminabench.cli.bench import report_command
from laminabench.cli.main import run
from laminabench.cli.options import COUNT, PATH, option

if TYPE_CHECKING:
    from laminabench.bench.frame import Report, Watcher


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def bench() -> None:
    """Benchmarks for developers."""


@click.option("--quick", is_flag=True, help="Fewer sizes and rounds: at most five minutes instead of ten.")
@option("--only", None, "Measure one step in this process, and write nothing else.", metavar="STEP")
@option(
    "--out folder",
    PATH,
    "Folder for results; default results/ and the card's name. With --only, kernels writes its table there, "
    "and predicted reads there.",
)
def gpu(watcher: Watcher, quick: bool, only: str | None, folder: Path | None) -> Report:
    """Measure everything that needs an NVIDIA GPU, in ten minutes.

    Steps are card, tests, attention, engine, vllm, workers, fhbn, kernels and predicted, each a process of
    its own. A step that fails is reported and the others go on; files are written as results come: a JSON
    file for each step, kernels.toml, and report.md.
    """
    from gpu_window import all_steps, steps

    if only is not None:
        return steps.measure(only, quick=quick, folder=folder, watcher=watcher)
    return all_steps.run(folder, quick=quick, watcher=watcher)


@option("--batch", COUNT, "Rows multiplied at once; repeatable.", (1, 4, 16, 32, 64, 128, 512), multiple=True)
@option("--rounds", COUNT, "Rounds of the alternating run.", 9)
def products(watcher: Watcher, batch: tuple[int, ...], rounds: int) -> Report:
    """Measure our matrix products against torch's, in turns.

    Weights are those of the engine's benchmark and come from memory. With AVX-512 but no tiles (AMX), torch's
    are as good and are measured alone.
    """
    from products import run as run_products

    return run_products(batch, rounds, watcher)


for measure, unit in ((gpu, "steps"), (products, "sizes")):
    bench.add_command(report_command(measure, unit))

if __name__ == "__main__":
    run(command=bench)
