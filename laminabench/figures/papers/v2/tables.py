"""The current paper's tables: devices, notation, models, traces and deployments, beside the catalogue's."""

from __future__ import annotations

from collections.abc import Callable

import pandas as pd
from matplotlib.figure import Figure

from laminabench.catalog.deployment import parse_deployment
from laminabench.catalog.find_model import model
from laminabench.catalog.hardware import GB, Device, device
from laminabench.catalog.layout import NODE_DEVICES
from laminabench.figures.claims import Basis, Claim, Section
from laminabench.figures.ground import TRACES, Ground
from laminabench.figures.paper import Made
from laminabench.figures.papers.v2.analysis import BATCHES, NETWORK_CONTEXTS
from laminabench.render.style import table_picture
from laminabench.systems.modelled.lamina import replica_count
from laminabench.systems.registry import system

DEVICES = ("h100", "h20", "tpu-v6e")


def _usd(each: Device) -> float:
    assert each.price_usd_per_hour is not None
    return each.price_usd_per_hour


# What, its unit, as printed for each device, and the catalogue's.
_TABLE_1: tuple[tuple[str, str, tuple[float | None, ...], Callable[[Device], float | None]], ...] = (
    ("BF16 rate", "TFLOP/s", (989, 148, 918), lambda each: each.flops_for("bf16") / 1e12),
    ("memory", "GB", (80, 96, 32), lambda each: each.memory_bytes / GB),
    ("memory bandwidth", "TB/s", (3.35, 4.0, 1.64), lambda each: each.bandwidth_bytes_per_s / 1e12),
    ("power rating", "W", (700, 400, None), lambda each: each.power_w),
    ("inter-chip bandwidth", "GB/s", (450, 450, 448), lambda each: each.interchip_bytes_per_s / GB),
    ("network bandwidth", "Gbit/s", (400, 400, 200), lambda each: each.nic_bytes_per_s * 8 / GB),
    ("price", "$/h", (11.06, 4.63, 2.70), _usd),
)


def table1(ground: Ground) -> Made:
    """The catalogue's values, and what each buys for a dollar."""
    found = {name: device(name) for name in DEVICES}
    rows = [
        *((what, unit, *map(ours, found.values())) for what, unit, _, ours in _TABLE_1),
        ("BF16 rate for its price", "TFLOP/s per $/h", *map(_flops_per_usd, found.values())),
        ("bandwidth for its price", "GB/s per $/h", *map(_bandwidth_per_usd, found.values())),
    ]
    entered = Section(
        "table 1", "catalogue: entered from this table", "bookkeeping", ("paper's own numbers",)
    )
    cells = [
        entered(f"{what} of {name}", printed, ours(found[name]), unit, entered=True)
        for what, unit, row, ours in _TABLE_1
        for name, printed in zip(DEVICES, row, strict=True)
        if printed is not None
    ]
    how = "The catalogue's values, entered from the paper's table; the last two rows are computed from them."
    return Made(pd.DataFrame(rows, columns=["", "unit", *DEVICES]), [*cells, *_ratios(*found.values())], how)


def _ratios(h100: Device, h20: Device, tpu: Device) -> list[Claim]:
    """What the text says of the table's devices beside each other."""
    says = Section(
        "section 1.1",
        "computed: from the catalogue's values, which are the table's",
        "bookkeeping",
        ("paper's own numbers",),
    )
    cheaper = '"significantly cheaper"'
    rate = 100 * h20.flops_for("bf16") / h100.flops_for("bf16")
    rate_per_usd = _flops_per_usd(tpu) / _flops_per_usd(h100)
    bandwidth_per_usd = _bandwidth_per_usd(h20) / _bandwidth_per_usd(h100)
    bandwidth_per_w = _bandwidth_per_w(h20) / _bandwidth_per_w(h100)
    return [
        says("BF16 rate of H20 over H100's", 15.0, rate, "%", where="section 2.2.2"),
        says(
            "network bandwidth over inter-chip bandwidth, of H100",
            10.0,
            100 * h100.nic_bytes_per_s / h100.interchip_bytes_per_s,
            "%",
            where="section 1.2",
            remark='50 GB/s over 450 GB/s are 11 %; the paper says "~10%".',
        ),
        says("BF16 rate a dollar of TPU v6e over H100's", cheaper, f"{rate_per_usd:.2f} times"),
        says("memory bandwidth a dollar of H20 over H100's", cheaper, f"{bandwidth_per_usd:.2f} times"),
        says("memory bandwidth a watt of H20 over H100's", cheaper, f"{bandwidth_per_w:.2f} times"),
        says(
            "TPU v6e or H20 have both, rate and bandwidth, for less than H100",
            '"but not both"',
            _both(h100, h20, tpu),
            remark="At the table's own prices TPU v6e buys more of both; H20 buys more bandwidth only.",
        ),
    ]


def _flops_per_usd(each: Device) -> float:
    return each.flops_for("bf16") / 1e12 / _usd(each)


def _bandwidth_per_usd(each: Device) -> float:
    return each.bandwidth_bytes_per_s / GB / _usd(each)


def _bandwidth_per_w(each: Device) -> float:
    assert each.power_w is not None
    return each.bandwidth_bytes_per_s / GB / each.power_w


def _both(reference: Device, *others: Device) -> str:
    """Who buys more of rate and of bandwidth than the reference for a dollar."""
    better = [
        each.name
        for each in others
        if _flops_per_usd(each) > _flops_per_usd(reference)
        and _bandwidth_per_usd(each) > _bandwidth_per_usd(reference)
    ]
    return f"{', '.join(better)} has both" if better else "neither has both"


def table2(ground: Ground) -> Made:
    """The letters of the paper's formulas, with its values of LLaMA3-70B beside those of the catalogue."""
    shape = model("llama3-70b")
    numbers = (
        ("N", "parameters of the model", 70e9, shape.parameters),
        ("d", "hidden dimension", 8192, shape.hidden),
        ("L", "layers", 80, shape.layers),
        ("G", "group size of GQA", 8, shape.group),
        ("e", "bytes per element", 2, shape.dtype_bytes),
    )
    batches, contexts = (f"{each[0]:,} to {each[-1]:,}" for each in (BATCHES, NETWORK_CONTEXTS))
    rows = [
        *((letter, words, f"{printed:,.0f}", f"{ours:,.0f}") for letter, words, printed, ours in numbers),
        ("B", "batch size", "1 to 1,024", f"{batches} in figure 2"),
        ("l", "sequence length", "128 to 32,768", f"{contexts} in figure 4"),
    ]
    says = Section("table 2", "computed: the catalogue's shape of the model", "bookkeeping", ("shape",))
    return Made(
        pd.DataFrame(rows, columns=["letter", "stands for", "published", "ours"]),
        [
            *(
                says(f"{letter}, {words}", float(printed), float(ours))
                for letter, words, printed, ours in numbers
            ),
            says(
                "B, batch sizes",
                (1.0, 1024.0),
                (BATCHES[0], BATCHES[-1]),
                how="those of figure 2 here",
                rests_on=("paper's own numbers",),
                entered=True,
            ),
            says(
                "l, sequence lengths",
                (128.0, 32768.0),
                None,
                how="none",
                remark="Figures 3 and 4 have lengths of their own, here as in the paper.",
            ),
        ],
        "Computed: the catalogue's shape of LLaMA3-70B; B and l are what the figures here go over.",
    )


# GB of parameters, layers, hidden dimension, group size, as printed.
TABLE_3 = {
    "llama-33b": (64.7, 60, 6656, 1),
    "llama-65b": (130.1, 80, 8192, 1),
    "llama3-70b": (137.5, 80, 8192, 8),
}
_LETTERS = {"L": "layers\nL", "d": "hidden\nd", "G": "group\nG"}


def table3(ground: Ground) -> Made:
    """The models: the paper's values beside those that follow from the shapes."""
    rows: list[tuple[object, ...]] = []
    claims: list[Claim] = []
    says = Section("table 3", "catalogue: the model's config", "bookkeeping", ("shape",))
    counting = "computed: the catalogue's shape; layers, norms and one vocabulary table of 32,000 rows"
    for name, (published_gb, *published) in TABLE_3.items():
        shape = model(name)
        ours = (shape.layers, shape.hidden, shape.group)
        counted, whole = shape.table3_bytes / GB, shape.weight_bytes / GB
        rows.append((name, published_gb, counted, whole, *ours))
        claims.append(says(f"parameters of {name}", published_gb, counted, "GB", how=counting))
        claims += [
            says(f"{letter} of {name}", float(printed), float(mine))
            for letter, printed, mine in zip(_LETTERS, published, ours, strict=True)
        ]
    counts = ["published GB", "ours, counted\nas there, GB", "with all\ntables, GB"]
    return Made(
        pd.DataFrame(rows, columns=["model", *counts, *_LETTERS.values()]),
        claims,
        "Computed from the catalogue's shapes. The paper counts one vocabulary table of 32,000 rows; "
        "every model has two, and LLaMA3's have 128,256.",
        _with_tenths,
    )


def _with_tenths(frame: pd.DataFrame) -> Figure:
    return table_picture(frame.map(lambda value: f"{value:.1f}" if isinstance(value, float) else value))


# Requests, mean prompt tokens, mean output tokens, as printed.
TABLE_4 = {
    "azure-conv": (19366, 1154.7, 211.1),
    "azure-code": (8819, 2047.8, 27.9),
    "kimi-conv": (12031, 12035.1, 342.6),
    "kimi-ta": (23608, 8560.0, 182.1),
}
_COUNTED = {"requests": "requests", "mean prompt tokens": "prompt", "mean output tokens": "output"}


def table4(ground: Ground) -> Made:
    """The traces at hand, beside what the paper counts in them."""
    rows: list[tuple[object, ...]] = []
    claims: list[Claim] = []
    for name in TRACES:
        trace = ground.trace(name)
        real = trace.meta.source == "file"
        ours = (len(trace), float(trace.prompt_tokens.mean()), float(trace.output_tokens.mean()))
        how = "computed: from the real trace" if real else "generated from the fitted profile"
        # Its profile was never fitted to a file.
        entered = not real and name == "kimi-ta"
        if entered:
            how = "generated from a profile that has this table's means"
        basis: Basis = "trace" if real else "paper's own numbers" if entered else "fit"
        says = Section("table 4", how, "bookkeeping", (basis,))
        remark = "" if ground.num_requests is None else f"Of its first {len(trace):,} requests only."
        both = zip(TABLE_4[name], ours, strict=True)
        rows.append((name, *(value for pair in both for value in pair), "real" if real else "profile"))
        claims += [
            says(f"{what} of {name}", float(printed), float(mine), remark=remark, entered=entered)
            for what, printed, mine in zip(_COUNTED, TABLE_4[name], ours, strict=True)
        ]
    columns = [f"{words}\n{whose}" for words in _COUNTED.values() for whose in ("published", "ours")]
    return Made(
        pd.DataFrame(rows, columns=["trace", *columns, "ours\nis"]),
        claims,
        f"Computed: {ground.source_of(*TRACES)}. Prompt and output tokens are means.",
        _with_thousands,
    )


def _with_thousands(frame: pd.DataFrame) -> Figure:
    def text(value: object) -> object:
        return (
            f"{value:,.1f}" if isinstance(value, float) else f"{value:,}" if isinstance(value, int) else value
        )

    return table_picture(frame.map(text))


_PUBLISHED_USD = {
    ("llama-33b", "lamina"): 20.32,
    ("llama-33b", "vllm"): 22.12,
    ("llama-65b", "lamina"): 40.64,
    ("llama-65b", "vllm"): 44.24,
    ("llama3-70b", "lamina"): 40.64,
    ("llama3-70b", "vllm"): 44.24,
}


def table5(ground: Ground) -> Made:
    """The catalogue's prices of the deployments of about equal cost."""
    says = Section(
        "table 5", "computed: counts times table 1's prices", "bookkeeping", ("paper's own numbers",)
    )
    rows, claims = [], []
    for (name, who), published in _PUBLISHED_USD.items():
        deployment = parse_deployment(system(who).default_deployment(model(name)))
        usd = deployment.usd_per_hour
        rows.append((name, who, str(deployment), published, usd))
        parts = deployment.parts
        dop = ", ".join(str(part.count) for part in parts)
        what = f"DOP ({dop})" if len(parts) > 1 else f"{dop} H100"
        claims.append(says(f"price of {what} ({name}, {who})", published, usd, "$/h"))
    frame = pd.DataFrame(rows, columns=["model", "system", "deployment", "published $/h", "ours $/h"])
    words = "Computed: prices of the catalogue, which are the paper's own."
    return Made(frame, [*claims, *_testbed()], words)


def _testbed() -> list[Claim]:
    """What sections 4 to 6 say of the system and the machines that these are."""
    says = Section(
        "section 6", "catalogue: entered from this section", "bookkeeping", ("paper's own numbers",)
    )
    nic, bits = device("h100").nic_bytes_per_s * 8 / GB, 8.0 * model("llama3-70b").dtype_bytes
    lines = "Of the paper's source, which is not public; this project is another."
    alone = max(batches for batches in range(2, 9) if replica_count("rotational", batches) == 1)
    return [
        says("GPUs a node", 8.0, float(NODE_DEVICES), entered=True),
        says("network between nodes", 400.0, nic, "Gbit/s", entered=True),
        says(
            "numbers of weights and KV, FP16",
            16.0,
            bits,
            "bits",
            rests_on=("shape",),
            how="catalogue: the model's config",
        ),
        says(
            "batches in rotation with which no context moves between model workers",
            2.0,
            float(alone),
            where="section 4.3",
            how="computed: model replicas of the schedule",
            rests_on=("paper's own numbers",),
        ),
        says(
            "latency of a slice and its attention with more batches in rotation, over that with 2",
            '"reduced"',
            ", ".join(f"{_rotated(batches) / _rotated(2):.2f} with {batches}" for batches in (3, 4, 5)),
            where="section 4.3",
            how="computed: attention takes a slice's time over n - 1, for which its devices are chosen",
        ),
        says("lines of Lamina's source", 6000.0, None, where="section 5", how="none", remark=lines),
    ]


def _rotated(batches: int) -> float:
    """What a slice and its attention take one after the other, in times of a slice."""
    return 1 + 1 / replica_count("rotational", batches)
