"""The formulas of the cost model: what one operation takes on a device, from a few coefficients.

Coefficients are efficiencies (shares of the data sheet's peak) and overheads in seconds, so that they can be
carried over to a device that was not measured. Every one has an Origin.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import cache
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, get_type_hints

import msgspec
import numpy as np
from numpy.typing import ArrayLike, NDArray

from laminabench.catalog.hardware import Device, canonical_dtype
from laminabench.catalog.models import DTYPE_BYTES

Float64 = NDArray[np.float64]
Kind = Literal["measured", "fitted", "scaled", "published", "derived", "assumed", "ideal", "given"]

US, NS, PS = 1e-6, 1e-9, 1e-12
ACTIVATION_BYTES = 2  # activations travel and are stored in bf16, whatever the weights are in


class Origin(msgspec.Struct, frozen=True):
    """Source of numbers: measured, fitted to that, published, derived, assumed, given, or a data sheet.

    Scaled is what was fitted on another device, and scaled to this one by its data sheet.
    """

    kind: Kind
    source: str
    range: str = ""  # what was measured: outside it the formula extrapolates
    # Of the fit: mean absolute ones, in percent.
    errors: Mapping[str, Annotated[float, msgspec.Meta(ge=0)]] = msgspec.field(default_factory=dict)
    samples: Annotated[int, msgspec.Meta(ge=0)] = 0  # measurements fitted to
    unstable: bool = False  # the machine was not itself while this was measured


class Coefficient(NamedTuple):
    """The name and unit that a coefficient has in files, and how it changes with the speed of a device."""

    toml: str
    unit: float
    role: Literal["time", "rate", "shape"]  # shorter on a faster device, higher there, or the same
    positive: bool = False
    finite: bool = True
    optional: bool = False  # left out of files and tables where it is 0: the formula has no such part then


@cache
def coefficients(kind: type[Any]) -> Mapping[str, Coefficient]:
    """Return those that a struct declares, by the names of its fields."""
    return {
        name: declared
        for name, hint in get_type_hints(kind, include_extras=True).items()
        for declared in getattr(hint, "__metadata__", ())
    }


Overhead = Annotated[float, Coefficient("overhead_us", US, "time")]
Latency = Annotated[float, Coefficient("latency_us", US, "time")]
PerQueryHead = Annotated[float, Coefficient("per_query_head_ns", NS, "time")]
FlopsEfficiency = Annotated[float, Coefficient("flops_efficiency", 1, "rate", positive=True)]
TileFlops = Annotated[float, Coefficient("flops_efficiency", 1, "rate", positive=True, optional=True)]
TileRows = Annotated[float, Coefficient("tile_rows", 1, "shape", optional=True)]
BandwidthEfficiency = Annotated[float, Coefficient("bandwidth_efficiency", 1, "rate", positive=True)]
LinkEfficiency = Annotated[float, Coefficient("link_efficiency", 1, "rate", positive=True)]


class GemmCost(msgspec.Struct, frozen=True):
    """t = overhead + per_k k + per_input m k + (compute^p + memory^p)^(1/p).

    The p-norm is the roofline with its corner rounded off: near the ridge no kernel overlaps perfectly. The
    term in k is the serial walk of a tile along k, which shows where n is too small to fill the device;
    the term in m k is the quantisation of the activations, and 0 where weights are in 16 bits.
    """

    overhead_s: Overhead
    per_k_s: Annotated[float, Coefficient("per_k_ns", NS, "time")]
    flops_efficiency: FlopsEfficiency
    bandwidth_efficiency: BandwidthEfficiency
    # p; infinity is the plain roofline
    sharpness: Annotated[float, Coefficient("sharpness", 1, "shape", positive=True, finite=False)]
    origin: Origin
    per_input_s: Annotated[float, Coefficient("per_input_ps", PS, "time")] = 0.0

    def seconds(
        self, device: Device, m: ArrayLike, n: ArrayLike, k: ArrayLike, dtype: str = "bf16"
    ) -> Float64:
        m, n, k = (np.asarray(size, np.float64) for size in (m, n, k))
        width = DTYPE_BYTES[dtype]
        compute = 2 * m * n * k / (self.flops_efficiency * device.flops_for(dtype))
        moved = width * (k * n + m * k) + ACTIVATION_BYTES * m * n
        memory = moved / (self.bandwidth_efficiency * device.bandwidth_bytes_per_s)
        serial = self.overhead_s + self.per_k_s * k + self.per_input_s * m * k
        return serial + rounded_max(compute, memory, self.sharpness)


def rounded_max(a: Float64, b: Float64, sharpness: float) -> Float64:
    """(a^p + b^p)^(1/p), computed so that no power under- or overflows."""
    high, low = np.maximum(a, b), np.minimum(a, b)
    if np.isinf(sharpness):
        return high
    result: Float64 = high * (1 + (low / high) ** sharpness) ** (1 / sharpness)
    return result


class AttentionCost(msgspec.Struct, frozen=True):
    """Decode attention of one layer on one device.

    t = overhead + per_query_head B h + KV tokens x per_token (1 + fill / (B kv_heads)). A token takes the
    longer of reading its K and V and of computing with them, in tiles of `tile_rows` query heads of a KV head
    (0: reading alone counts). `fill` is what is lost where requests times KV heads do not fill the device.
    """

    overhead_s: Overhead
    per_query_head_s: PerQueryHead
    bandwidth_efficiency: BandwidthEfficiency
    fill: Annotated[float, Coefficient("fill", 1, "shape")]
    origin: Origin
    tile_rows: TileRows = 0.0
    flops_efficiency: TileFlops = 0.0
    kernel: str = ""  # a name of kernels.toml; else the one that the cost set measured

    def terms(
        self, device: Device, query_heads: int, kv_heads: int, head_dim: int = 128, kv_dtype: str = "bf16"
    ) -> AttentionTerms:
        kv_bytes = 2 * kv_heads * head_dim * DTYPE_BYTES[kv_dtype]
        per_token = kv_bytes / (self.bandwidth_efficiency * device.bandwidth_bytes_per_s)
        if self.tile_rows:
            # Queries are in the KV's format where the device computes in that.
            of = kv_dtype if canonical_dtype(kv_dtype) in device.flops else "bf16"
            rows = padded_rows(-(-query_heads // kv_heads), self.tile_rows)
            flops = 4 * kv_heads * head_dim * rows
            per_token = max(per_token, flops / (self.flops_efficiency * device.flops_for(of)))
        return AttentionTerms(
            self.overhead_s, self.per_query_head_s * query_heads, per_token, per_token * self.fill / kv_heads
        )


def padded_rows(rows: int, tile_rows: float) -> float:
    """Return the rows that are computed: tiles are computed in full."""
    return tile_rows * math.ceil(rows / tile_rows) if tile_rows else rows


class AttentionTerms(NamedTuple):
    """Attention of a batch as a sum of four products: cheap enough to evaluate in every iteration."""

    fixed_s: float
    per_request_s: float
    per_kv_token_s: float  # times all KV tokens of the batch
    per_mean_token_s: float  # times KV tokens / batch

    def seconds(self, kv_tokens: ArrayLike, batch: ArrayLike) -> Float64:
        tokens, requests = np.asarray(kv_tokens, np.float64), np.asarray(batch, np.float64)
        mean = tokens / np.maximum(requests, 1)
        busy = (
            self.fixed_s
            + self.per_request_s * requests
            + self.per_kv_token_s * tokens
            + self.per_mean_token_s * mean
        )
        return np.where(requests > 0, busy, 0.0)

    def times(self, layers: int) -> AttentionTerms:
        return AttentionTerms(*(layers * term for term in self))


class PromptAttentionCost(msgspec.Struct, frozen=True):
    """Causal attention of prompts, one layer on one device.

    t = overhead + per_query_head rows h + 4 head_dim h pairs / (efficiency peak). A row is a token of a
    prompt; it pairs with itself and all before it. Chunks after others have more pairs; no table has them.
    """

    overhead_s: Overhead
    per_query_head_s: PerQueryHead
    flops_efficiency: FlopsEfficiency
    origin: Origin

    def terms(self, device: Device, query_heads: int, head_dim: int) -> PromptTerms:
        rate = self.flops_efficiency * device.flops_for("bf16")
        return PromptTerms(
            self.overhead_s, self.per_query_head_s * query_heads, 4 * head_dim * query_heads / rate
        )


class PromptTerms(NamedTuple):
    """Attention of an iteration's chunks of prompts as a sum of products, of one layer."""

    fixed_s: float
    per_row_s: float
    per_pair_s: float
    windowed_per_pair_s: float = 0.0  # of layers with windows, of the pairs within these

    def seconds(self, rows: ArrayLike, pairs: ArrayLike) -> Float64:
        return self.fixed_s + self.per_row_s * np.asarray(rows) + self.per_pair_s * np.asarray(pairs)


class CollectiveCost(msgspec.Struct, frozen=True):
    """All-gather, reduce-scatter or all-to-all: t = latency + (p - 1) / p bytes / (efficiency x link).

    The bytes are those of the whole buffer of one device, p the devices of one node.
    """

    latency_s: Latency
    link_efficiency: LinkEfficiency
    origin: Origin

    PASSES: ClassVar[int] = 1  # of the buffer over the link

    def seconds(self, device: Device, degree: int, size_bytes: ArrayLike) -> Float64:
        moved = self.PASSES * (degree - 1) / degree * np.asarray(size_bytes, np.float64)
        return self.latency_s + moved / (self.link_efficiency * device.interchip_bytes_per_s)


class AllReduceCost(CollectiveCost, frozen=True):
    """A reduce-scatter and an all-gather: twice the bytes of either."""

    PASSES: ClassVar[int] = 2


class DispatchCost(msgspec.Struct, frozen=True):
    """Tokens to the ranks of their experts, or results back.

    t = latency + per_expert x experts of all ranks + per_byte x bytes of a rank: a kernel waits for a count
    from every rank and expert.
    """

    latency_s: Latency
    per_byte_s: Annotated[float, Coefficient("per_byte_ps", PS, "time")]
    origin: Origin
    ranks: Annotated[float, Coefficient("ranks", 1, "shape")] = 0.0  # that were measured; 0: all of the nodes
    per_expert_s: Annotated[float, Coefficient("per_expert_ns", NS, "time")] = 0.0
    # Of the device's links instead of a time per byte; 0: not so.
    link_efficiency: Annotated[float, Coefficient("link_efficiency", 1, "rate")] = 0.0

    def share(self, ranks: int) -> float:
        """Return how much more of its bytes a rank sends to others if there are so many."""
        return (1 - 1 / ranks) / (1 - 1 / self.ranks) if self.ranks else 1.0

    def seconds(self, size_bytes: ArrayLike, experts: ArrayLike = 0) -> Float64:
        waits = self.latency_s + self.per_expert_s * np.asarray(experts, np.float64)
        return waits + self.per_byte_s * np.asarray(size_bytes, np.float64)


# What DeepEP sends for a (token, expert) pair: fp8 with a scale of 4 bytes for 128 elements and 16 bytes that
# say which token it is, or bf16.
DISPATCH_BYTES: Mapping[str, Callable[[int], float]] = {
    "dispatch": lambda hidden: hidden * (1 + 4 / 128) + 16,
    "combine": lambda hidden: 2.0 * hidden,
}


# Rows that a tile of an expert's product is padded by.
TILE_ROWS = 16


class ExpertCost(msgspec.Struct, frozen=True):
    """The routed experts of one layer on one device: gated, of `hidden` by `inter` on this device.

    t = overhead + per_expert A + sqrt(M^2 + C^2) + activation (4 h P + 6 i P + 4 h m) / bandwidth, where M
    reads the weights of A active experts, and C computes P (token, expert) pairs and the rows that tiles are
    padded by.
    """

    overhead_s: Overhead
    per_expert_s: Annotated[float, Coefficient("per_expert_ns", NS, "time")]
    bandwidth_efficiency: BandwidthEfficiency
    flops_efficiency: FlopsEfficiency
    # How often activations are read and written, against once.
    activation: Annotated[float, Coefficient("activation", 1, "time")]
    origin: Origin

    def seconds(
        self,
        device: Device,
        hidden: int,
        inter: int,
        dtype: str,
        active: ArrayLike,
        pairs: ArrayLike,
        rows: ArrayLike,
    ) -> Float64:
        active, pairs, rows = (np.asarray(count, np.float64) for count in (active, pairs, rows))
        weights = 3 * hidden * inter * DTYPE_BYTES[dtype] * active
        flops = 6 * hidden * inter * (pairs + TILE_ROWS * active)
        memory = weights / (self.bandwidth_efficiency * device.bandwidth_bytes_per_s)
        compute = flops / (self.flops_efficiency * device.flops_for(dtype))
        moved = 4 * hidden * pairs + 6 * inter * pairs + 4 * hidden * rows
        small = self.activation * moved / device.bandwidth_bytes_per_s
        return self.overhead_s + self.per_expert_s * active + np.hypot(memory, compute) + small


class MaskedExpertCost(msgspec.Struct, frozen=True):
    """The routed experts of one layer on one rank by masked grouped products, as DeepEP's layouts need them.

    t = overhead + per_expert E + sqrt(M^2 + C^2), where E experts are on the rank, M reads the weights of the
    active ones, and C computes the (token, expert) pairs.
    """

    overhead_s: Overhead
    per_expert_s: Annotated[float, Coefficient("per_expert_ns", NS, "time")]
    bandwidth_efficiency: BandwidthEfficiency
    flops_efficiency: FlopsEfficiency
    origin: Origin

    def seconds(
        self,
        device: Device,
        hidden: ArrayLike,
        inter: ArrayLike,
        dtype: str,
        local: ArrayLike,
        active: ArrayLike,
        pairs: ArrayLike,
    ) -> Float64:
        sizes = (np.asarray(size, np.float64) for size in (hidden, inter, local, active, pairs))
        hidden, inter, local, active, pairs = sizes
        weights = 3 * hidden * inter * DTYPE_BYTES[dtype] * active
        memory = weights / (self.bandwidth_efficiency * device.bandwidth_bytes_per_s)
        compute = 6 * hidden * inter * pairs / (self.flops_efficiency * device.flops_for(dtype))
        return self.overhead_s + self.per_expert_s * local + np.hypot(memory, compute)


class LatentCost(msgspec.Struct, frozen=True):
    """Decode attention over a latent KV (MLA, absorbed) of one layer on one device: the kernel alone.

    t = overhead + KV tokens x the longer of reading the latent and computing with it + queries and outputs.
    All heads share one latent of `width`, of which the first `value_width` are also the values; they are
    computed in tiles of `tile_rows` (0: as many as there are).
    """

    overhead_s: Overhead
    bandwidth_efficiency: BandwidthEfficiency
    flops_efficiency: FlopsEfficiency
    origin: Origin
    tile_rows: TileRows = 0.0
    kernel: str = ""

    def per_token_s(
        self, device: Device, heads: int, kv_dtype: str, width: int = 576, value_width: int = 512
    ) -> float:
        memory = width * DTYPE_BYTES[kv_dtype] / (self.bandwidth_efficiency * device.bandwidth_bytes_per_s)
        flops = 2 * padded_rows(heads, self.tile_rows) * (width + value_width)
        return max(memory, flops / (self.flops_efficiency * device.flops_for("bf16")))

    def terms(
        self, device: Device, heads: int, kv_dtype: str, width: int = 576, value_width: int = 512
    ) -> AttentionTerms:
        moved = ACTIVATION_BYTES * heads * (width + value_width)
        per_request = moved / (self.bandwidth_efficiency * device.bandwidth_bytes_per_s)
        per_token = self.per_token_s(device, heads, kv_dtype, width, value_width)
        return AttentionTerms(self.overhead_s, per_request, per_token, 0.0)


class LatentPromptCost(msgspec.Struct, frozen=True):
    """Attention of prompts over K and V made from the latent (not absorbed), of one layer: the kernel alone.

    t = overhead + 2 h (key size + value size) pairs / (efficiency peak).
    """

    overhead_s: Overhead
    flops_efficiency: FlopsEfficiency
    origin: Origin

    def terms(self, device: Device, heads: int, key_size: int = 192, value_size: int = 128) -> PromptTerms:
        rate = self.flops_efficiency * device.flops_for("bf16")
        return PromptTerms(self.overhead_s, 0.0, 2 * heads * (key_size + value_size) / rate)


class BatchedCost(msgspec.Struct, frozen=True):
    """A product for each head, bf16, as absorption needs: t = overhead + sqrt(compute^2 + memory^2)."""

    overhead_s: Overhead
    flops_efficiency: FlopsEfficiency
    bandwidth_efficiency: BandwidthEfficiency
    origin: Origin

    def seconds(self, device: Device, heads: int, m: ArrayLike, n: int, k: int) -> Float64:
        """Return the seconds for m rows in each of `heads` products with matrices [k, n]."""
        m = np.asarray(m, np.float64)
        compute = 2 * heads * m * n * k / (self.flops_efficiency * device.flops_for("bf16"))
        moved = ACTIVATION_BYTES * heads * (k * n + m * (k + n))
        memory = moved / (self.bandwidth_efficiency * device.bandwidth_bytes_per_s)
        return self.overhead_s + np.hypot(compute, memory)


class ElementwiseCost(msgspec.Struct, frozen=True):
    """Norms, rotation, activation, residual: t = kernels x kernel + bytes / (efficiency x bandwidth)."""

    kernel_s: Annotated[float, Coefficient("kernel_us", US, "time")]
    bandwidth_efficiency: BandwidthEfficiency
    origin: Origin

    def seconds(self, device: Device, kernels: int, size_bytes: ArrayLike) -> Float64:
        moved = np.asarray(size_bytes, np.float64)
        return self.kernel_s * kernels + moved / (self.bandwidth_efficiency * device.bandwidth_bytes_per_s)


class HostCost(msgspec.Struct, frozen=True):
    """Host time of each iteration: scheduling, sampling, detokenising."""

    per_step_s: Annotated[float, Coefficient("per_step_us", US, "time")]
    per_request_s: Annotated[float, Coefficient("per_request_us", US, "time")]
    origin: Origin
    gap_s: Annotated[float, Coefficient("gap_us", US, "time")] = (
        0.0  # between two iterations, although the host works behind the devices
    )

    def seconds(self, batch: ArrayLike) -> Float64:
        requests = np.asarray(batch, np.float64)
        return np.where(requests > 0, self.per_step_s + self.per_request_s * requests, 0.0)
