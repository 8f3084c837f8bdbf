"""Steps of the GPU window: what each reports, its time limit, and what measures it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from gpu_window import KERNELS
from laminabench.bench.frame import QUIET, Report, Table, Watcher
from laminabench.util.errors import UserError
from laminabench.util.suggest import nearest

SHARE = 0.7  # of a step's time, after which it starts nothing more, so that its results are written
TESTS = (
    "lamina/attention/test_attention_cuda.py",
    "lamina/fhbn/test_device_on_gpu.py",
    "lamina/convert/test_fuse_kernels.py",
    "lamina/serve/test_graphs.py::test_on_a_gpu_tokens_are_those_without_graphs",
    "lamina/cluster/test_workers_on_gpu.py",
)


@dataclass(frozen=True)
class Step:
    """Description of a step, the seconds that it may take, and the word for its end."""

    purpose: str
    limit_s: float
    quick_s: float
    done: str = "measured"

    def seconds(self, *, quick: bool) -> float:
        return self.quick_s if quick else self.limit_s


# In all ten minutes, or five.
STEPS: Mapping[str, Step] = {
    "card": Step("what the card copies and multiplies", 25, 20),
    "tests": Step("the tests that need a GPU", 90, 60),
    "attention": Step("decode attention compared with copying and other kernels", 90, 50),
    "engine": Step("the engine in one process, an 8B model's shape, decoding alone", 80, 35),
    "vllm": Step("the same engine and vLLM, in alternating rounds", 120, 40),
    "workers": Step("attention separate from the model, on the GPU and on CPU cores", 75, 45),
    "fhbn": Step("messages of a GPU's stream, compared with NCCL and with going through the host", 45, 15),
    "kernels": Step(f"a table of the kernels, {KERNELS}, as by `laminabench calibrate`", 60, 25),
    "predicted": Step("what the modelled cluster says of the engine's runs", 15, 10, "modelled"),
}


def card_here() -> str:
    """Return the driver's name of the GPU; a UserError where there is none."""
    import torch

    from laminabench.calibrate.gpu_timing import require_gpu

    require_gpu()
    return torch.cuda.get_device_name()


def folder_of(card: str) -> Path:
    """Return the folder of its results."""
    from laminabench.calibrate.gpu_timing import slug

    return Path("results") / slug(card)


def measure(name: str, *, quick: bool, folder: Path | None = None, watcher: Watcher = QUIET) -> Report:
    """Run one step in this process; what others left is in the folder."""
    if name not in STEPS:
        raise UserError("bench-gpu-step", f"there is no step '{name}'; {nearest(name, STEPS)}")
    if name == "tests":
        files = " ".join(f"tests/{name}" for name in TESTS)
        raise UserError("bench-gpu-tests", f"the tests run by themselves: pytest {files}")
    if name == "predicted":
        from gpu_window import predicted

        return predicted.run(folder or folder_of(card_here()))
    from laminabench.calibrate.gpu_timing import require_gpu

    require_gpu()
    return _MEASURED[name](Options(quick, STEPS[name].seconds(quick=quick) * SHARE, folder, watcher))


@dataclass(frozen=True)
class Options:
    """Options of a step."""

    quick: bool
    seconds: float
    folder: Path | None
    watcher: Watcher

    @property
    def rounds(self) -> int:
        return 5 if self.quick else 15


# Each with what it needs, which is loaded when it is measured.


def _card(options: Options) -> Report:
    from gpu_window import card

    return card.run(options.rounds, options.watcher)


def _attention(options: Options) -> Report:
    from gpu_window import attention

    if options.quick:
        return attention.run((20, 64), (4096, 8192), options.rounds, options.seconds, options.watcher)
    return attention.run(rounds=options.rounds, seconds=options.seconds, watcher=options.watcher)


def _engine(options: Options) -> Report:
    from gpu_window import engine
    from laminabench.calibrate.gpu_timing import copy_bandwidth

    batches = (1, 16, 64) if options.quick else engine.BATCHES
    return engine.run(copy_bandwidth(), batches=batches, seconds=options.seconds, watcher=options.watcher)


def _vllm(options: Options) -> Report:
    from gpu_window import vllm

    if options.quick:
        return vllm.run(
            batches=(1, 16, 64), contexts=(1024,), rounds=3, seconds=options.seconds, watcher=options.watcher
        )
    return vllm.run(seconds=options.seconds, watcher=options.watcher)


def _workers(options: Options) -> Report:
    from gpu_window import workers

    return workers.run(seconds=options.seconds, watcher=options.watcher)


def _fhbn(options: Options) -> Report:
    from laminabench.bench.fhbn import cuda, nccl_comparison

    if options.quick:
        return cuda.run(sizes=(0, *nccl_comparison.SIZES), rounds=options.rounds, watcher=options.watcher)
    return cuda.run(rounds=options.rounds, watcher=options.watcher)


def _kernels(options: Options) -> Report:
    from gpu_window.engine import MODEL
    from laminabench.calibrate.cuda import calibrate_gpu
    from laminabench.catalog.cost_file import write_costs

    calibrated = calibrate_gpu(MODEL, None, options.seconds, options.watcher.progress)

    def write() -> Iterator[str]:
        if options.folder is not None:
            target = options.folder / KERNELS
            write_costs(calibrated.costs, target, "Measured by `make gpu`.")
            yield f"wrote {target}"

    terms = cast("list[Mapping[str, Any]]", calibrated.facts["terms"])
    cells = [(row["term"], str(row["points"]), f"{row['spread_percent']:.1f}") for row in terms]
    facts = {"benchmark": "gpu-kernels", **calibrated.facts, "rows": terms}
    return Report(facts, [Table(("<term", "points", "spread %"), cells)], write)


_MEASURED: Mapping[str, Callable[[Options], Report]] = {
    "card": _card,
    "attention": _attention,
    "engine": _engine,
    "vllm": _vllm,
    "workers": _workers,
    "fhbn": _fhbn,
    "kernels": _kernels,
}
