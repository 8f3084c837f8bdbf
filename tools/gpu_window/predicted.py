"""Predictions of the modelled cluster for the engine's runs on a GPU, compared with the measurements.

Modelled from the kernels that were measured here each by itself, and from the catalogue's entry for such a
card. Nothing of either is fitted to the runs.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from gpu_window import KERNELS
from laminabench.bench.frame import Report, Row, Table, ms_text
from laminabench.catalog.cost_file import load_costs, usual_costs
from laminabench.catalog.costs import CostSet
from laminabench.catalog.deployment import Deployment, Workers
from laminabench.catalog.find_model import model
from laminabench.catalog.hardware import Device, load_devices
from laminabench.catalog.models import ModelShape
from laminabench.catalog.network import parse_network
from laminabench.sim.simulate import Offered, simulate
from laminabench.systems.live.gpus import is_called
from laminabench.systems.modelled.setup import Setup
from laminabench.systems.registry import system
from laminabench.traces.table import Trace, TraceMeta
from laminabench.util.errors import UserError

OUTPUT = 9  # tokens of each request that is modelled: the median of them is at the load's context
GRAPHS = "cudagraph"  # the runs whose launches take no time, of which kernels know nothing either


@dataclass(frozen=True)
class Source:
    """Costs of a device, and where they are from."""

    label: str
    costs: CostSet
    device: Device


def run(folder: Path) -> Report:
    """Compare runs by graphs in engine.json: one GPU has model and attention, in one process.

    The host's time is taken to be hidden.
    """
    results = _read(folder / "engine.json")
    shape = model(str(results["model"]))
    runs = [row for row in results["rows"] if row.get("backend") == GRAPHS and "iteration_s" in row]
    card = str(_read(folder / "gpu.json")["device"])
    rows: list[Row] = []
    missing: list[str] = []
    for source in _sources(folder, card, shape):
        if isinstance(source, str):
            missing.append(source)
            continue
        rows += [_row(source, shape, row) for row in runs]
    facts = {
        "benchmark": "gpu-predicted",
        "device": card,
        "model": shape.name,
        "missing": missing,
        "rows": rows,
    }
    titles = ("<modelled from", "context", "batch", "measured", "modelled", "modelled / measured")
    head = f"{shape.name} on one {card}: modelled iterations and measured ones"
    return Report(facts, [head, Table(titles, [row.cells for row in rows]), *missing])


def _read(path: Path) -> Mapping[str, Any]:
    try:
        document: Mapping[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        why = f"{path} cannot be read ({type(error).__name__}), and the runs that are predicted are in it"
        raise UserError("bench-gpu-no-runs", f"{why}; measure the step engine first") from error
    return document


def _sources(folder: Path, card: str, shape: ModelShape) -> Iterator[Source | str]:
    """Yield cost sources, or a sentence for each that is missing."""
    if (folder / KERNELS).is_file():
        costs = load_costs(str(folder / KERNELS))
        [own] = costs.devices.values()
        yield Source("kernels measured here", costs, own)
    else:
        yield f"no kernels were measured here: {folder / KERNELS} is not there"
    name = catalogue_name(card)
    if name is None:
        yield f"the catalogue has no {card}"
        return
    known = usual_costs(shape, frozenset({name}))
    yield Source(f"catalogue: {name}, {known}", load_costs(known), load_devices()[name])


def catalogue_name(card: str) -> str | None:
    """Return the catalogue's name of a card by the driver's: memory and board as far as both name them."""
    words = card.lower().replace("-", " ").split()

    def similarity(name: str) -> int:
        matches = [any(word.startswith(part) for word in words) for part in name.split("-")]
        return 2 * sum(matches) - len(matches)

    called = [name for name in load_devices() if is_called(card, name)]
    return max(called, key=similarity, default=None)


def _row(source: Source, shape: ModelShape, run: Mapping[str, Any]) -> Row:
    batch, context, measured_s = run["batch"], run["context"], run["iteration_s"]["median"]
    facts = {"source": source.label, "context": context, "batch": batch, "measured_s": measured_s}
    load = source.label, f"{context:,}", f"{batch}", ms_text(measured_s)
    try:
        modelled_s = iteration_s(source, shape, batch, context)
    except UserError as error:
        return Row(facts | {"skipped": str(error)}, (*load, "-", str(error)))
    ratio = modelled_s / measured_s
    facts |= {"modelled_s": modelled_s, "modelled_over_measured": ratio}
    return Row(facts, (*load, ms_text(modelled_s), f"{ratio:.2f}"))


def iteration_s(source: Source, shape: ModelShape, batch: int, context: int) -> float:
    """Compute one decode iteration of the modelled cluster."""
    vllm = system("vllm")  # the system that has all on one kind of device
    setup = Setup(
        shape,
        Deployment(Workers(source.device, 1)),
        source.costs,
        parse_network(vllm.NETWORK),
        host_async=True,
        max_num_seqs=batch,
        block_size=1,  # as the engine's slots
    )
    prompts = np.full(batch, max(1, context - OUTPUT // 2), np.int32)
    trace = Trace(np.zeros(batch), prompts, np.full_like(prompts, OUTPUT), TraceMeta("equal requests"))
    made = simulate(trace, vllm.build(setup).spec, Offered()).iterations
    together = made["size"] == batch
    if not together.any():
        raise UserError("bench-gpu-no-room", f"so many tokens do not fit on a modelled {source.device.name}")
    return float(np.median(made["duration_s"][together]))
