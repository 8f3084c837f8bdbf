"""H2M2's tables 1, 2 and 4, what its text says of the setup, and the board that we have."""

from __future__ import annotations

from laminabench.catalog.find_model import model
from laminabench.catalog.hardware import GB
from laminabench.papers.context import Context
from laminabench.papers.h2m2.dynamic import CHECKPOINTS
from laminabench.papers.h2m2.speeds import CASES, GPT3, GRID, how, original
from laminabench.papers.paper import Result
from laminabench.systems.modelled.h2m2.boards import MIB, NAMES, Board, board
from laminabench.systems.modelled.h2m2.mapping import BATCH, ITERATIONS

TB = 1e12


def _open() -> str:
    """Return what the paper leaves open of the board."""
    return how().partition("; ")[2]


def table1(context: Context) -> Result:
    """Return the two memories and what is between them; and the models, batches and points of the text."""
    here, gpt3 = original(), model(GPT3.model)
    batch, length = GRID[0]
    values = {
        "open": _open(),
        "hbm": {"gb": here.hbm.capacity_bytes / GB, "tb_per_s": here.hbm.bandwidth_bytes_per_s / TB},
        "lpddr": {"gb": here.lpddr.capacity_bytes / GB, "gb_per_s": here.lpddr.bandwidth_bytes_per_s / GB},
        "link": here.link_bytes_per_s / GB,
        "billions": {case.words: model(case.model).parameters / 1e9 for case in CASES},
        "batches": {case.words: float(case.batch) for case in CASES},
        "again_gb": 2 * gpt3.parameters / GB,
        "point": {"batch": float(batch), "length": float(length)},
        "heads": float(gpt3.heads),
        "cores": float(here.cores),
        "tlb": float(here.tlb_entries),
        "page": here.page_bytes / MIB,
        "chips": float(here.hbm.chips + here.lpddr.chips),
        "scenario": {"batch": float(BATCH), "iterations": float(ITERATIONS)},
        "checkpoints": ", ".join(map(str, CHECKPOINTS)),
        "others": float(len(NAMES) - 1),
        "devices": float(here.hbm_devices),
        "devices_gb": here.hbm_devices * here.hbm.capacity_bytes / GB,
        "itself": 1.0,
    }
    return Result(None, values)


def table2(context: Context) -> Result:
    """Return a chip's units and latencies."""
    here = original()
    values = {
        "open": _open(),
        "mv_rows": float(here.mv_rows),
        "mv_width": float(here.mv_width),
        "mm_size": float(here.mm_size),
        "vector_width": float(here.vector_width),
        "clock": here.clock_hz / 1e9,
        "scratchpad": here.spm_bytes / MIB,
        "scratchpads": 2.0,
        "hbm_ns": here.hbm.latency_s * 1e9,
        "lpddr_ns": here.lpddr.latency_s * 1e9,
        "tlb_ns": here.tlb_miss_s * 1e9,
    }
    return Result(None, values)


def table4(context: Context) -> Result:
    """Return the eight boards, each with one number changed, and how many times the original's that is."""
    changed = {name: _changed(name, board(name)) for name in NAMES if name != "h2m2"}
    times = {name: value / _changed(name, original()) for name, value in changed.items()}
    return Result(None, {"open": _open(), "changed": changed, "times": times})


def _changed(name: str, on: Board) -> float:
    """Return the number that this board of table 4 has of its own."""
    memory = on.hbm if name.startswith("hbm") else on.lpddr
    if "chip" in name:
        return float(memory.chips)
    if "cap" in name:
        return memory.capacity_bytes / GB
    return memory.bandwidth_bytes_per_s / (TB if name.startswith("hbm") else GB)
