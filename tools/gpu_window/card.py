"""Facts of a card, and the two rates that other numbers are compared with: copying and multiplying."""

from __future__ import annotations

import subprocess

import torch

from laminabench.bench.frame import QUIET, Report, Spread, Table, Watcher, in_turns, spread
from laminabench.calibrate.gpu_timing import copy_bandwidth, gpu_seconds
from laminabench.util.child_environment import child_environment

SIZE = 8192  # of a square product, which is large enough for the highest rate
SETTLED = ("driver_version", "clocks.sm", "clocks.max.sm", "clocks.mem", "power.limit", "temperature.gpu")
LISTED_S = 30.0


def run(rounds: int = 15, watcher: Watcher = QUIET) -> Report:
    """Measure copying a gibibyte, reads and writes counted, and a product of random bfloat16 matrices."""
    first, second = (torch.randn(SIZE, SIZE, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    actions = {"copy": copy_bandwidth, "product": lambda: 2 * SIZE**3 / gpu_seconds(lambda: first @ second)}
    in_turns(actions, 1)
    took = in_turns(actions, rounds, watcher.progress)
    return report(
        torch.cuda.get_device_name(),
        settings(),
        spread(took["copy"]),
        spread(took["product"]),
    )


def report(device: str, card: dict[str, str], copied: Spread, multiplied: Spread) -> Report:
    facts = {
        "benchmark": "gpu-card",
        "device": device,
        "card": card,
        "torch": torch.__version__,
        "copy_bandwidth_bytes_per_s": copied,
        "product_flops": multiplied,
    }
    rows = [
        ("copying 1 GiB, GB/s read and written", *copied.cells(lambda rate: f"{rate / 1e9:,.0f}")),
        (
            f"{SIZE} x {SIZE} x {SIZE} in bfloat16, TFLOP/s",
            *multiplied.cells(lambda rate: f"{rate / 1e12:,.0f}"),
        ),
    ]
    settings_text = "; ".join(f"{name} {value}" for name, value in card.items())
    return Report(facts, [f"{device}; {settings_text}", Table(("<what", "median", "min to max"), rows)])


def settings() -> dict[str, str]:
    """Return nvidia-smi's settings of the card in use."""
    query = ["nvidia-smi", f"--query-gpu={','.join(SETTLED)}", "--format=csv,noheader", "-i"]
    try:
        output = subprocess.run(
            [*query, str(torch.cuda.current_device())],
            env=child_environment(),
            capture_output=True,
            text=True,
            check=True,
            timeout=LISTED_S,
        ).stdout
    except (OSError, subprocess.SubprocessError):
        return {}
    return dict(zip(SETTLED, (part.strip() for part in output.strip().split(",")), strict=False))
