"""Conversion of measurements to a cost set: curves, grids, fitted formulas, a device and a network."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from msgspec.structs import replace

from laminabench.calibrate.rounds import UNSTABLE, Repeats, Seconds, mean_spread, straight
from laminabench.calibrate.terms import (
    SHORTER,
    SKEWED_REQUESTS,
    Decode,
    Model,
    Prompts,
)
from laminabench.catalog.cost_keys import DtypeKey, GemmKey, HeadsKey, OperatorKey
from laminabench.catalog.cost_terms import (
    ACTIVATION_BYTES,
    AttentionCost,
    ElementwiseCost,
    Float64,
    GemmCost,
    HostCost,
    Origin,
    PromptAttentionCost,
)
from laminabench.catalog.costs import CostSet
from laminabench.catalog.fitting import terms
from laminabench.catalog.fitting.formulas import Heads, decode_samples, prompt_samples
from laminabench.catalog.fitting.samples import Samples
from laminabench.catalog.fitting.terms import mape
from laminabench.catalog.hardware import Device
from laminabench.catalog.measured import AttentionGrids, Curve, Grid, Measured
from laminabench.catalog.models import Gemm, ModelShape
from laminabench.catalog.network import Network
from laminabench.catalog.server_host import ServerHost

DTYPE = "bf16"
NETWORK = "shm"
# Batches so small that fixed costs dominate.
SMALL = (1, 4)
LEAST_S = 1e-6


class Words(NamedTuple):
    """Descriptions of the sources of a cost set, for people."""

    system: str
    products: str
    operators: str
    sampler: str
    attention: str
    device: str
    memory: str = "Memory is the machine's by core, links are its memory."


ENGINE = Words(
    "the engine",
    "the engine's own products, a model's weights in order",
    "slices less their matrix products, dealt out to operators by width",
    "choosing tokens",
    "decode attention by the C++ kernel, with what a worker does for a layer; both at once are their sum",
    "the fastest matrix product, and reading memory, by this core alone",
)


@dataclass(frozen=True)
class Made:
    """Everything that a cost set is made of."""

    shape: ModelShape
    name: str  # of the device
    source: str  # the processor, the date, versions
    title: str
    words: Words
    memory_bytes: float
    bandwidth: float  # bytes/s that it reads
    repeats: Repeats
    between: Seconds  # of workers; empty without a second core
    host: HostCost  # used if `between` is empty
    linked: str = "workers"  # the name of workers in texts
    served: Seconds = field(default_factory=dict)  # of a server of the engine

    @property
    def heads(self) -> Heads:
        return self.shape.heads, self.shape.kv_heads, self.shape.head_dim

    def between_of(self, kind: str) -> Seconds:
        return {point: taken for point, taken in self.between.items() if point[0] == kind}

    def origin(self, what: str, points: Seconds, drift: float = 0.0) -> Origin:
        """Return the origin of measured points, during which the control drifted by this share."""
        spread = mean_spread(points)
        errors, unstable = {"spread": 100 * spread}, max(spread, drift) > UNSTABLE
        return Origin("measured", f"{self.source}: {what}", "", errors, len(points), unstable)


def device_of(made: Made) -> Device:
    """Return the device: its rates are the best observed, of which formulas take shares."""
    rates = [2.0 * n * k * rows / taken for (n, k, rows), taken in _products(made).items()]
    bandwidth = made.bandwidth
    return Device(
        name=made.name,
        title=made.title,
        flops={DTYPE: max(rates)},
        memory_bytes=made.memory_bytes,
        bandwidth_bytes_per_s=bandwidth,
        interchip_bytes_per_s=bandwidth,
        nic_bytes_per_s=bandwidth,
        power_w=None,
        source=f"{made.source}: {made.words.device}",
        notes=f"Not a data sheet: what was measured. {made.words.memory}",
    )


def cost_set(made: Made) -> CostSet:
    """Return the cost set of this machine."""
    on, grids = device_of(made), _attention(made)
    shape, name = made.shape, made.name
    return CostSet(
        name=name,
        title=f"{made.title}: {shape.name} on {made.words.system}, as `calibrate` measured it",
        gemm={DtypeKey(name, DTYPE): _fitted_gemm(made, on)},
        attention={name: _fitted_decode(made, on, grids.decode)},
        prompt_attention={name: _fitted_prompt(made, on, grids.prompt)},
        allreduce={},
        elementwise={name: _fitted_elementwise(made, on)},
        host=_host(made),
        borrowed={},
        measured=Measured(_gemms(made), _operators(made), {HeadsKey(name, *made.heads): grids}),
        devices={name: on},
        networks=_networks(made),
        server=_server(made),
    )


# Measured values


def _products(made: Made) -> dict[tuple[int, int, int], float]:
    """Return the seconds of one product, by n, k and rows."""
    return {
        (matrix.n, matrix.k, rows): made.repeats.at(f"gemm {matrix.name}", rows) / times
        for matrix, times in _matrices(made.shape)
        for rows in _rows(made)
    }


def _matrices(shape: ModelShape) -> list[tuple[Gemm, int]]:
    """Return the matrices and how often each is used in a step."""
    return [*((matrix, shape.layers) for matrix in shape.layer_gemms()), (shape.lm_head_gemm(), 1)]


def _rows(made: Made) -> list[int]:
    return sorted({int(point[1]) for point in made.repeats.seconds if point[0] == "slices"})


def _gemms(made: Made) -> dict[GemmKey, Curve]:
    curves = {}
    for matrix, times in _matrices(made.shape):
        kind = f"gemm {matrix.name}"
        curves[GemmKey(made.name, DTYPE, matrix.n, matrix.k)] = _curve(made, kind, made.words.products, times)
    return curves


def _operators(made: Made) -> dict[OperatorKey, Curve]:
    """Return the slices' time besides their products, divided among the operators by width."""
    shape = made.shape
    operators = [*shape.operators(), ("embedding", shape.hidden, 1)]
    total = sum(width * times for _, width, times in operators)
    curves = {
        OperatorKey(made.name, name, width): _curve(made, "rest", made.words.operators, total / width)
        for name, width, _ in operators
    }
    head = shape.lm_head_gemm().n
    return {**curves, OperatorKey(made.name, "sampler", head): _curve(made, "sampler", made.words.sampler, 1)}


def _curve(made: Made, kind: str, what: str, times: float) -> Curve:
    """Return the curve over rows of one of `times` operations."""
    rows = _rows(made)
    seconds = np.array([made.repeats.at(kind, each) for each in rows]) / times
    origin = made.origin(what, made.repeats.of_kind(kind), made.repeats.drift(Model.name))
    return Curve(np.array(rows, np.float64), seconds, origin)


def _attention(made: Made) -> AttentionGrids:
    alone, prompt = _grid(made, "decode"), _grid(made, "prompt")
    kv = alone.axes[1]
    decode = replace(alone, values=alone.values + _more(made, "attention", "decode", int(kv[0])))
    # Chunks are computed before or after decoding, never concurrently, so times add.
    both = prompt.values[:, :, None, None] + decode.values[None, None]
    skew = _skew(made, alone)
    mixed = Grid((*skew.axes, kv[-1:]), skew.values[..., None])
    drift = max(made.repeats.drift(term) for term in (Decode.name, Prompts.name))
    origin = made.origin(made.words.attention, made.repeats.of_kind("decode", "prompt"), drift)
    return AttentionGrids(decode, prompt, Grid((*prompt.axes, *decode.axes), both), skew, mixed, origin)


def _grid(made: Made, kind: str) -> Grid:
    """Return the grid of points with two numbers."""
    points = made.repeats.of_kind(kind)
    axes = [sorted({int(point[place]) for point in points}) for place in (1, 2)]
    values = np.array([[made.repeats.at(kind, first, second) for second in axes[1]] for first in axes[0]])
    return Grid(tuple(np.array(axis, np.float64) for axis in axes), values)


def _skew(made: Made, decode: Grid) -> Grid:
    """Return where a batch of two lengths is between one of their mean (0) and one of the longer (1)."""
    points = [tuple(map(int, point[1:])) for point in made.repeats.seconds if point[0] == "skew"]
    if not points:
        return Grid((np.ones(1), np.zeros(1)), np.zeros((1, 1)))
    shares: dict[tuple[int, float], list[float]] = {}
    for n, long, longest in points:
        row = decode.values[decode.axes[0].tolist().index(n)]
        share = long / n
        mean = longest * (share + (1 - share) / SHORTER)
        even, all_long = np.interp((mean, float(longest)), decode.axes[1], row)
        way = (made.repeats.at("skew", n, long, longest) - even) / max(all_long - even, 1e-12)
        shares.setdefault((n, share), []).append(float(np.clip(way, 0, 1)))
    wide = sorted({share for _, share in shares})
    values = [[np.mean(shares[n, share]) for share in wide] for n in SKEWED_REQUESTS]
    return Grid((np.array(SKEWED_REQUESTS, np.float64), np.array(wide)), np.array(values))


# Fitted formulas


def _fitted_gemm(made: Made, on: Device) -> GemmCost:
    products = _products(made)
    n, k, m = np.array(list(products), np.float64).T
    samples = Samples({"m": m, "n": n, "k": k}, np.array(list(products.values())))
    return terms.gemm(on, DTYPE).sourced(samples, f"{made.source}: matrix products")


def _fitted_elementwise(made: Made, on: Device) -> ElementwiseCost:
    rows, shape = np.array(_rows(made), np.float64), made.shape
    # Costs once a step are small compared with those of every layer.
    layer = np.array([made.repeats.at("rest", each) for each in _rows(made)]) / shape.layers
    samples = Samples({"m": rows, "tp": np.ones(len(rows))}, np.maximum(layer, 1e-9))
    return terms.elementwise(on, shape).sourced(samples, f"{made.source}: what is between matrix products")


def _fitted_decode(made: Made, on: Device, decode: Grid) -> AttentionCost:
    samples = decode_samples({made.heads: decode})
    return terms.attention(on).sourced(samples, f"{made.source}: decode attention")


def _fitted_prompt(made: Made, on: Device, prompt: Grid) -> PromptAttentionCost:
    samples = prompt_samples({made.heads: prompt})
    return terms.prompt_attention(on).sourced(samples, f"{made.source}: attention of prompts")


# Between workers


def _host(made: Made) -> HostCost:
    """Return the host's cost: from an iteration's end to the next one's beginning, a line over batch sizes.

    Its gap is a model worker's time for an iteration besides its slices.
    """
    batches, seconds, origin = _line(made, "boundary", "from an iteration's end to the next one's beginning")
    if not len(batches):
        return made.host
    fixed, each = straight(batches, seconds)
    cost = HostCost(fixed, each, origin, _more(made, "slices", "step"))
    errors = {**origin.errors, "op": mape(cost.seconds(batches), seconds)}
    return replace(cost, origin=replace(origin, errors=errors))


def _networks(made: Made) -> dict[str, Network]:
    """Return the network between two workers here: all time between slices and attention."""
    batches, seconds, origin = _line(made, "trip", "from a slice to attention and back to the next one")
    if not len(batches):
        return {}
    shape = made.shape
    # q, k, v there and the output back.
    each = ACTIVATION_BYTES * 2 * (shape.query_size + shape.kv_size)
    rtt, per_byte = straight(batches * each, seconds)
    rate = min(1 / per_byte, made.bandwidth) if per_byte > 0 else made.bandwidth
    unstable = ", unstable" if origin.unstable else ""
    title = f"Shared memory, between {made.linked} on this machine"
    source = f"{origin.source}; with all that {made.linked} do for it{unstable}"
    return {NETWORK: Network(NETWORK, title, rtt, rate, made.bandwidth, "measured", source)}


def _server(made: Made) -> ServerHost | None:
    """Return the host of a server of the engine: lines over bursts' sizes, and over batches."""
    if not made.served:
        return None
    sizes = sorted({int(size) for kind, size in made.served if kind == "taken in"})

    def at(kind: str, size: int) -> float:
        return max(float(np.median(made.served[kind, size])), LEAST_S)

    # On average half of the others of a burst are taken in before a request.
    before = np.array([(size + 1) / 2 for size in sizes])
    first, serial = straight(before, np.array([at("taken in", size) for size in sizes]))
    batches = [int(size) for kind, size in made.served if kind == "between steps"]
    fixed, each = straight(np.array(batches, np.float64), np.array([at("between steps", n) for n in batches]))
    origin = made.origin("a server of one process and its client, by events of both", made.served)
    return ServerHost(
        fixed,
        each,
        origin,
        # From its arrival until its step begins, with nothing to wait for.
        request_in_s=first + max(at("begun", sizes[0]) - at("taken in", sizes[0]), 0.0),
        request_serial_s=serial,
        out_s=float(np.median([at("out", size) for size in sizes])),
    )


def _more(made: Made, kind: str, alone: str, *column: int) -> float:
    """Return the seconds by which workers take longer than one core alone: messages, mostly.

    The minimum over small batches and repeats, as noise only ever adds time.
    """
    extra_s = [
        min(taken) - min(made.repeats.seconds[alone, batch, *column])
        for (name, batch), taken in made.between.items()
        if name == kind and batch in SMALL
    ]
    return max(min(extra_s, default=0.0), 0.0)


def _line(made: Made, kind: str, what: str) -> tuple[Float64, Float64, Origin]:
    """Return batch sizes, the time between workers at each, and its origin."""
    taken = made.between_of(kind)
    batches = np.array([point[1] for point in taken], np.float64)
    # Attention may begin before a slice has ended, as q, k and v are sent earlier.
    seconds = np.array([max(np.median(each), LEAST_S) for each in taken.values()])
    return batches, seconds, made.origin(what, taken)
