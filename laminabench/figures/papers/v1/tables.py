"""v1's tables of the catalogue: what memory costs (table 1) and the models that it measures (table 4)."""

from __future__ import annotations

from functools import partial

import pandas as pd

from laminabench.catalog.find_model import model
from laminabench.catalog.hardware import GB, device
from laminabench.figures.claims import Claim, Section
from laminabench.figures.ground import Ground
from laminabench.figures.paper import Made
from laminabench.render.style import COLUMN, table_picture

# Price, GB, GB/s, $/GB and $/(GB/s) as printed.
TABLE_1 = {
    "a100-80g": (17500, 80, 1935, 219, 9.04),
    "h100": (36500, 80, 3350, 456, 10.90),
    "rtx-3090": (1600, 24, 936.2, 67, 1.71),
    "rx-7900-xtx": (1000, 24, 960, 42, 1.04),
    "arc-a770": (350, 16, 560, 22, 0.63),
}
_ENTERPRISE = ("a100-80g", "h100")
_ENTERED = "catalogue: entered from this table"
_COLUMNS = ("accelerator", "price, $", "memory, GB", "bandwidth, GB/s", "$/GB", "$/(GB/s)")
_PER_UNIT = _COLUMNS[4:]


def table1(ground: Ground) -> Made:
    """The catalogue's devices, whose prices and memory are the paper's."""
    rows = []
    for name in TABLE_1:
        each = device(name)
        assert each.purchase is not None
        memory, bandwidth = each.memory_bytes / GB, each.bandwidth_bytes_per_s / GB
        usd = each.purchase.usd
        rows.append((name, usd, memory, bandwidth, usd / memory, usd / bandwidth))
    frame = pd.DataFrame(rows, columns=_COLUMNS)
    says = Section(
        "table 1",
        "computed: the catalogue's purchase price over memory and bandwidth",
        "bookkeeping",
        ("paper's own numbers",),
    )
    claims = []
    for place, column in enumerate(_COLUMNS[1:]):
        for name, printed, ours in zip(TABLE_1, TABLE_1.values(), frame[column], strict=True):
            # The last two columns follow from the others.
            if column in _PER_UNIT:
                claims.append(says(f"{column} of {name}", printed[place], float(ours), column))
            else:
                what, unit = column.split(", ")
                cell = says(
                    f"{what} of {name}", printed[place], float(ours), unit, how=_ENTERED, entered=True
                )
                claims.append(cell)
    for column in _PER_UNIT:
        place = _COLUMNS.index(column) - 1
        frame[f"published {column}"] = [printed[place] for printed in TABLE_1.values()]
    alphas = _alphas(frame)
    claims += [
        says(
            "memory and bandwidth a dollar of consumer cards over the enterprise ones', any pair",
            3.0,
            min(alphas),
            "times",
            "at least",
            where="section 1",
        ),
        says(
            "alpha: how much more of both, memory and bandwidth, the same money buys, lowest and highest "
            "pair",
            (3.27, 17.3),
            alphas,
            where="section 4.1",
            how=f"{says.how}; the paper divides the rounded numbers of its table",
        ),
    ]
    words = "Computed: purchase prices and memory of the catalogue, which are v1's own."
    return Made(frame, claims, words)


def _alphas(frame: pd.DataFrame) -> list[float]:
    """Of each enterprise and consumer card: what both memory and bandwidth are at least cheaper by."""
    high = frame["accelerator"].isin(_ENTERPRISE)
    dear, cheap = (frame[rows][list(_PER_UNIT)].to_numpy() for rows in (high, ~high))
    return [float(min(each / other)) for each in dear for other in cheap]


def table4(ground: Ground) -> Made:
    """The models: GB of weights, layers and hidden size, beside the catalogue's shapes."""
    rows: list[tuple[object, ...]] = []
    claims: list[Claim] = []
    says = Section("table 4", "catalogue: the model's config", "bookkeeping", ("shape",))
    counting = "computed: bf16, the layers and one vocabulary table of 32,000 rows"
    for name, published_gb, layers, hidden in (("llama-13b", 25.7, 40, 5120), ("llama-33b", 64.6, 60, 6656)):
        shape = model(name)
        counted = shape.table3_bytes / GB
        rows.append((name, published_gb, counted, shape.layers, shape.hidden))
        claims += [
            says(f"weights of {name}", published_gb, counted, "GB", how=counting),
            says(f"layers of {name}", float(layers), float(shape.layers)),
            says(f"hidden size of {name}", float(hidden), float(shape.hidden)),
        ]
    claims += [*_notation(), *_testbed()]
    return Made(
        pd.DataFrame(rows, columns=["model", "published\nGB", "ours\nGB", "layers", "hidden\nsize"]),
        claims,
        "Computed: the catalogue's shapes in bf16, one vocabulary table counted.",
        partial(table_picture, width=COLUMN),
    )


def _notation() -> list[Claim]:
    """Table 2: LLaMA-13B's sizes, and the ranges that section 3 goes through."""
    shape = model("llama-13b")
    says = Section("table 2", "catalogue: the model's config", "bookkeeping", ("shape",))
    ranges = (("batch sizes", (1, 512)), ("context lengths", (128, 4096)))
    return [
        says("N, parameters of llama-13b", 13.0, shape.parameters / 1e9, "billion"),
        says("d, dimension of embeddings", 5120, shape.hidden),
        says("L, layers", 40, shape.layers),
        says("e, bytes per element", 2, shape.dtype_bytes),
        *(
            says(
                f"{what} that the analysis goes through",
                ends,
                None,
                how="none",
                remark="A choice, no result.",
            )
            for what, ends in ranges
        ),
    ]


def _testbed() -> list[Claim]:
    """Section 6: what was served on what."""
    card = device("a100-40g")
    says = Section("section 6", "catalogue: data sheet", "bookkeeping", ("data sheet",))
    return [
        says("memory of the testbed's A100-40G", 40, card.memory_bytes / GB, "GB"),
        says(
            "NIC of each of its GPUs",
            200,
            8 * card.nic_bytes_per_s / GB,
            "Gbit/s",
            how=_ENTERED.replace("table", "section"),
            rests_on=("paper's own numbers",),
            entered=True,
        ),
        says(
            "models served",
            "LLaMA-13B and LLaMA-65B",
            "LLaMA-13B and LLaMA-33B",
            how="those of table 4 and of figures 12 to 14",
            rests_on=("paper's own numbers",),
            remark="The section's text says 65B; the paper's table 4, figures and results are of 33B.",
        ),
    ]
