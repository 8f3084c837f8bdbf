"""H2M2's tables 1, 2 and 4, what its text says of the setup, and the board that we have."""

from __future__ import annotations

import pandas as pd

from laminabench.catalog.find_model import model
from laminabench.catalog.hardware import GB
from laminabench.figures.claims import Claim, Section
from laminabench.figures.ground import Ground
from laminabench.figures.paper import Made
from laminabench.figures.papers.h2m2.dynamic import CHECKPOINTS
from laminabench.figures.papers.h2m2.ground import CASES, GPT3, GRID, how, original
from laminabench.systems.modelled.h2m2.boards import MIB, NAMES, Board, BoardMemory, board
from laminabench.systems.modelled.h2m2.mapping import BATCH, ITERATIONS

_ENTERED = Section("table 1", "entered from the paper", "bookkeeping", ("paper's own numbers",))
_COMPUTED = Section("section 5.1", "computed from shapes", "bookkeeping", ("shape",))
TB = 1e12


def _made(claims: list[Claim]) -> Made:
    """A line for every claim: there is nothing to draw but the numbers."""
    rows = [(each.what, each.where, *each.row()[2:4]) for each in claims]
    frame = pd.DataFrame(rows, columns=["what", "where", "published", "ours"])
    _, _, open_ones = how().partition("; ")
    words = "Entered from the paper, or computed from its numbers and models' shapes"
    return Made(frame, claims, f"{words}. What it leaves open of the board is {open_ones}.")


def table1(ground: Ground) -> Made:
    """The two memories and what is between them; and the models, batches and points of the text."""
    here = original()

    def of_memory(name: str, memory: BoardMemory, capacity: float, where: str) -> list[Claim]:
        return [
            _ENTERED(f"capacity of {name}", capacity, memory.capacity_bytes / GB, "GB", entered=True),
            _ENTERED(
                f"bandwidth of {name}",
                3.0 if memory is here.hbm else 544.0,
                memory.bandwidth_bytes_per_s / (TB if memory is here.hbm else GB),
                "TB/s" if memory is here.hbm else "GB/s",
                where=where,
                entered=True,
            ),
        ]

    return _made(
        [
            *of_memory("HBM3", here.hbm, 96.0, "table 1, section 4.1"),
            *of_memory("LPDDR5X", here.lpddr, 512.0, "table 1, section 4.1"),
            _ENTERED(
                "bandwidth of the interconnect", 960.0, here.link_bytes_per_s / GB, "GB/s", entered=True
            ),
            *_of_models(),
            *_of_the_text(here),
        ]
    )


def _of_models() -> list[Claim]:
    billions = {"gpt3-175b": 175.0, "chinchilla-70b": 70.0, "llama2-70b": 70.0}
    batches = (32.0, 64.0, 128.0)
    gpt3 = model(GPT3.model)
    again = _COMPUTED(
        f"bytes from one use of {GPT3.words}'s weights to the next in FP16",
        350.0,
        2 * gpt3.parameters / GB,
        "GB",
        where="section 2.2.1",
    )
    return [
        *(
            _COMPUTED(
                f"parameters of {case.words}",
                billions[case.model],
                model(case.model).parameters / 1e9,
                "billion",
            )
            for case in CASES
        ),
        *(
            _ENTERED(f"batch of {case.words}", batch, float(case.batch), where="section 5.1", entered=True)
            for case, batch in zip(CASES, batches, strict=True)
        ),
        _ENTERED("batch of figure 14", 32.0, float(GPT3.batch), where="section 5.2.2", entered=True),
        _ENTERED("batch of figure 15", 128.0, float(CASES[-1].batch), where="section 5.2.3", entered=True),
        _ENTERED("batch of figure 18", 32.0, float(GPT3.batch), where="section 5.5", entered=True),
        again,
    ]


def _of_the_text(here: Board) -> list[Claim]:
    batch, length = GRID[0]
    return [
        _ENTERED(
            "batch of the first point of figure 6", 16.0, float(batch), where="section 3.1", entered=True
        ),
        _ENTERED("its length", 512.0, float(length), "tokens", where="section 3.1", entered=True),
        _COMPUTED("heads of GPT3-175B", 96.0, float(model(GPT3.model).heads), where="section 3.2"),
        _ENTERED("cores of a chip", 4.0, float(here.cores), where="section 4.1", entered=True),
        _ENTERED(
            "TLB entries of a chip", 2048.0, float(here.tlb_entries), where="section 4.2.1", entered=True
        ),
        _ENTERED("page", 2.0, here.page_bytes / MIB, "MiB", where="section 4.2.1", entered=True),
        _ENTERED(
            "batch that fragmentation is of", 32.0, float(GPT3.batch), where="section 4.2.1", entered=True
        ),
        _ENTERED(
            "accelerator chips of every system",
            2.0,
            float(here.hbm.chips + here.lpddr.chips),
            where="section 5.1",
            entered=True,
        ),
        _ENTERED("batch while requests come and go", 32.0, float(BATCH), where="section 5.3", entered=True),
        _ENTERED("iterations of it", 128.0, float(ITERATIONS), where="section 5.3", entered=True),
        _ENTERED(
            "iterations at which the size of its KV is drawn",
            "5: the 1, 32, 64, 96 and 128",
            ", ".join(map(str, CHECKPOINTS)),
            where="section 5.3",
            entered=True,
        ),
        _ENTERED(
            "boards beside the original",
            8.0,
            float(len(NAMES) - 1),
            where="section 5.4",
            how="counted: table 4",
        ),
        _ENTERED("HBM devices of 8-HBM", 8.0, float(here.hbm_devices), where="section 5.5", entered=True),
        _ENTERED(
            "their capacity",
            768.0,
            here.hbm_devices * here.hbm.capacity_bytes / GB,
            "GB",
            where="section 5.5",
            how="computed: devices of table 1",
        ),
        _ENTERED(
            "A100 on which communication was profiled",
            8.0,
            None,
            where="section 5.5",
            how="none",
            remark="What was measured on them is not printed: hbm_barrier_us is fitted in its place.",
        ),
        _ENTERED(
            "energy of LPDDR-only that others' is relative to",
            1.0,
            1.0,
            "times",
            where="section 5.5",
            entered=True,
        ),
    ]


def table2(ground: Ground) -> Made:
    """A chip's units and latencies."""
    here, says = original(), Section("table 2", _ENTERED.how, _ENTERED.about, _ENTERED.rests_on)
    numbers = {
        "dot products that an MV unit takes at once": (32.0, here.mv_rows, ""),
        "elements of each": (128.0, here.mv_width, ""),
        "rows and columns of an MM unit's systolic array": (128.0, here.mm_size, ""),
        "elements a cycle of vector unit, adder tree and look-up table": (128.0, here.vector_width, ""),
        "core frequency": (1.0, here.clock_hz / 1e9, "GHz"),
        "one scratchpad of a core": (16.0, here.spm_bytes / MIB, "MiB"),
        "scratchpads of a core: while one is computed on, the other is filled": (2.0, 2, ""),
        "access latency of HBM": (32.0, here.hbm.latency_s * 1e9, "ns"),
        "access latency of LPDDR": (45.0, here.lpddr.latency_s * 1e9, "ns"),
        "latency of a TLB miss": (300.0, here.tlb_miss_s * 1e9, "ns"),
    }
    return _made(
        [
            says(what, published, float(ours), unit, entered=True)
            for what, (published, ours, unit) in numbers.items()
        ]
    )


_TABLE_4 = {
    "hbmcap-less": (48.0, "GB", 0.5),
    "hbmcap-more": (192.0, "GB", 2.0),
    "hbmbw-less": (2.25, "TB/s", 0.75),
    "hbmbw-more": (4.0, "TB/s", 1.3),
    "lpddrbw-less": (408.0, "GB/s", 0.75),
    "lpddrbw-more": (680.0, "GB/s", 1.25),
    "hbmchip-more": (2.0, "chips", 2.0),
    "lpddrchip-more": (2.0, "chips", 2.0),
}


def table4(ground: Ground) -> Made:
    """The eight boards, each with one number changed, and how many times the original's that is."""
    says = Section("table 4", _ENTERED.how, _ENTERED.about, _ENTERED.rests_on)
    claims = []
    for name, (published, unit, times) in _TABLE_4.items():
        ours, first = _changed(name, board(name), unit), _changed(name, original(), unit)
        claims.append(says(name, published, ours, unit, entered=True))
        claims.append(
            says(f"{name} over the original", times, ours / first, "times", how="computed: from table 1")
        )
    return _made(claims)


def _changed(name: str, on: Board, unit: str) -> float:
    """The number that this board of table 4 has of its own."""
    memory = on.hbm if name.startswith("hbm") else on.lpddr
    if unit == "chips":
        return float(memory.chips)
    if unit == "GB":
        return memory.capacity_bytes / GB
    return memory.bandwidth_bytes_per_s / (TB if unit == "TB/s" else GB)
