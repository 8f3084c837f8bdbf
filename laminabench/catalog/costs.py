"""Cost sets: the coefficients and measured times of operations on devices, and how they are looked up."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Any, NamedTuple, TypeVar

import msgspec
import numpy as np
from msgspec import structs
from numpy.typing import ArrayLike

from laminabench.catalog.cost_keys import (
    AllReduceKey,
    AttentionKey,
    CollectiveKey,
    DispatchKey,
    DtypeKey,
    ExpertsKey,
    GemmKey,
    HeadsKey,
    LatentKey,
    LinesKey,
    OperatorKey,
)
from laminabench.catalog.cost_terms import (
    ACTIVATION_BYTES,
    AllReduceCost,
    AttentionCost,
    AttentionTerms,
    BatchedCost,
    CollectiveCost,
    DispatchCost,
    ElementwiseCost,
    ExpertCost,
    Float64,
    GemmCost,
    HostCost,
    LatentCost,
    LatentPromptCost,
    MaskedExpertCost,
    PromptAttentionCost,
    PromptTerms,
    padded_rows,
)
from laminabench.catalog.entries import Table
from laminabench.catalog.hardware import Device, canonical_dtype, load_devices
from laminabench.catalog.layout import Layout, Split, layout_of
from laminabench.catalog.measured import (
    AttentionLines,
    Curve,
    Measured,
    MeasuredAttention,
    nearby,
)
from laminabench.catalog.models import DTYPE_BYTES, ModelShape, Side
from laminabench.catalog.network import Network
from laminabench.catalog.server_host import ServerHost
from laminabench.util.errors import UserError

Term = TypeVar("Term")
Key = TypeVar("Key", bound=tuple[Any, ...])

# Kinds of numbers behind which there is a measurement of this very device.
MEASURED = ("measured", "fitted")
HEAD_DIM = 128  # of kernels that were measured by tiles
ANY = "any"  # stands for every device, dtype or degree (the roofline set)


class Borrowed(NamedTuple):
    """A device without measurements uses another one's efficiencies on its own specification."""

    device: str
    reason: str


class CostSet(msgspec.Struct, frozen=True, kw_only=True):
    """A named set of coefficients. Times are in seconds; batch arguments may be arrays."""

    name: str
    title: str
    gemm: Mapping[DtypeKey, GemmCost]
    attention: Mapping[str, AttentionCost]
    prompt_attention: Mapping[str, PromptAttentionCost] = msgspec.field(default_factory=dict)
    allreduce: Mapping[AllReduceKey, AllReduceCost] = msgspec.field(default_factory=dict)
    elementwise: Mapping[str, ElementwiseCost]
    host: HostCost
    borrowed: Mapping[str, Borrowed]
    attention_of: Mapping[AttentionKey, AttentionCost] = msgspec.field(default_factory=dict)
    prompt_attention_of: Mapping[AttentionKey, PromptAttentionCost] = msgspec.field(default_factory=dict)
    experts: Mapping[DtypeKey, ExpertCost] = msgspec.field(default_factory=dict)
    # Of layouts that send tokens to the devices of their experts.
    masked_experts: Mapping[DtypeKey, MaskedExpertCost] = msgspec.field(default_factory=dict)
    # A latent KV (MLA): decoding by the format of the cache, prompts, and the products of absorption.
    latent: Mapping[DtypeKey, LatentCost] = msgspec.field(default_factory=dict)
    latent_prompts: Mapping[str, LatentPromptCost] = msgspec.field(default_factory=dict)
    batched: Mapping[str, BatchedCost] = msgspec.field(default_factory=dict)
    collectives: Mapping[CollectiveKey, CollectiveCost] = msgspec.field(default_factory=dict)
    dispatch: Mapping[DispatchKey, DispatchCost] = msgspec.field(default_factory=dict)
    measured: Measured = Measured()
    # Devices that the catalogue lacks, and the networks between them.
    devices: Mapping[str, Device] = msgspec.field(default_factory=dict)
    networks: Mapping[str, Network] = msgspec.field(default_factory=dict)
    server: ServerHost | None = None  # the host of this machine's engine behind its HTTP API

    def __hash__(self) -> int:
        return hash(self.name)  # mappings have none

    # Operations

    def gemm_seconds(
        self, device: Device, m: ArrayLike, n: ArrayLike, k: ArrayLike, dtype: str = "bf16"
    ) -> Float64:
        cost, key = self.gemm_cost(device, dtype), canonical_dtype(dtype)
        formula = cost.seconds(device, m, n, k, key)
        if np.ndim(n) or np.ndim(k):
            return formula
        shape = int(np.asarray(n)), int(np.asarray(k))
        curve = self.measured.gemm.get(GemmKey(device.name, key, *shape))
        if curve is None and not self.measured.nearest:
            return formula
        # Of the device as it is in the catalogue; of one that is thought faster, in the ratio of the formula.
        catalogued = self.as_measured(device)
        if curve is None:
            return formula * nearby(
                curves_of(self, device.name, key),
                self.measured.nearest,
                lambda rows, n, k: cost.seconds(catalogued, rows, n, k, key),
                m,
                *shape,
            )
        there = cost.seconds(catalogued, m, n, k, key)
        last = float(cost.seconds(catalogued, curve.rows[-1], n, k, key))
        return curve.at(m, there, last) * (formula / there)

    def layer_attention(
        self, model: ModelShape, device: Device, workers: int = 1, window: int = 0
    ) -> AttentionTerms:
        """Return a layer's decode attention on one of `workers` that share the heads, as a sum of products.

        With an uneven split this is the worker with the most KV heads. Where requests are distributed
        instead of heads, use one worker and give its own requests and KV tokens.
        """
        heads, kv_heads = model.heads_of_worker(workers)
        if of := model.latent:
            latent = self.latent_cost(device, model.kv_dtype)
            return latent.terms(device, heads, model.kv_dtype, of.width, of.kv_rank)
        cost = self.attention_cost(device, model.head_dim, model.kv_dtype, window)
        return cost.terms(device, heads, kv_heads, model.head_dim, model.kv_dtype)

    def attention_terms(self, model: ModelShape, device: Device, workers: int = 1) -> AttentionTerms:
        """Return the terms of all layers' attention, where no layer has a window."""
        return self.layer_attention(model, device, workers).times(model.layers)

    def prompt_terms(self, model: ModelShape, device: Device, workers: int = 1) -> PromptTerms:
        """Return the terms of a mean layer's prompt attention on one of `workers` that share the heads."""
        heads = model.heads_of_worker(workers)[0]
        if of := model.latent:
            return self.latent_prompt_cost(device).terms(device, heads, of.query, of.value)
        fixed = row = pair = windowed = 0.0
        for layers, window in model.layer_kinds():
            cost = self.prompt_attention_cost(device, model.head_dim, model.kv_dtype, window)
            share, terms = layers / model.layers, cost.terms(device, heads, model.head_dim)
            fixed, row = fixed + share * terms.fixed_s, row + share * terms.per_row_s
            pair += (not window) * share * terms.per_pair_s
            windowed += bool(window) * share * terms.per_pair_s
        return PromptTerms(fixed, row, pair, windowed)

    def prompt_token_seconds(self, model: ModelShape, device: Device, workers: int = 1) -> float:
        """Return the least time per token that a chunk attends to, in a layer: its KV is read once."""
        if of := model.latent:
            return of.width * DTYPE_BYTES[model.kv_dtype] / device.bandwidth_bytes_per_s
        unwindowed = model.layers - (model.window.layers if model.window else 0)
        return self.layer_attention(model, device, workers).per_kv_token_s * unwindowed / model.layers

    def measured_attention(
        self, model: ModelShape, device: Device, workers: int = 1
    ) -> MeasuredAttention | None:
        """Return the measured attention of a worker; None if it was not measured."""
        key = HeadsKey(device.name, *model.heads_of_worker(workers), model.head_dim)
        grids = self.measured.attention.get(key)
        if grids is None or model.kv_dtype != "bf16" or model.window:
            return None
        terms = self.attention_terms(replace(model, layers=1), device, workers)
        return MeasuredAttention(grids, terms, self.prompt_terms(model, device, workers))

    def attention_seconds(
        self, model: ModelShape, device: Device, kv_tokens: ArrayLike, batch: ArrayLike, workers: int = 1
    ) -> Float64:
        """Return the seconds of attention in all layers for a batch with this many KV tokens in total."""
        return self.attention_terms(model, device, workers).seconds(kv_tokens, batch)

    def allreduce_seconds(self, device: Device, tp: int, size_bytes: ArrayLike) -> Float64:
        """Return the seconds of an all-reduce of `size_bytes` over `tp` devices of a node; 0 for one."""
        if tp == 1:
            return np.zeros(np.shape(size_bytes))
        return self.allreduce_cost(device, tp).seconds(device, tp, size_bytes)

    # Mixtures of experts, latent KV: the terms, each with its origin

    def attention_cost(
        self, device: Device, head_dim: int = 128, kv_dtype: str = "bf16", window: int = 0
    ) -> AttentionCost:
        """Return the attention cost for this head size; unmeasured kinds are as heads of 128 in bf16."""
        name = self.source_of(self.attention, device)
        key = AttentionKey(name, head_dim, canonical_dtype(kv_dtype), window)
        return self.attention_of.get(key) or self._term(self.attention, device, "decode attention")

    def prompt_attention_cost(
        self, device: Device, head_dim: int = 128, kv_dtype: str = "bf16", window: int = 0
    ) -> PromptAttentionCost:
        kind = (head_dim, canonical_dtype(kv_dtype), window)
        # A kind that a device's own tables lack is borrowed, as other terms are.
        for name in (self.source_of(self.prompt_attention, device), self._lender(device)):
            if cost := self.prompt_attention_of.get(AttentionKey(name, *kind)):
                return cost
        return self._term(self.prompt_attention, device, "attention of prompts")

    def expert_cost(self, device: Device, dtype: str) -> ExpertCost:
        return self._keyed(self.experts, device, dtype, f"experts in {dtype}")

    def latent_cost(self, device: Device, kv_dtype: str = "bf16") -> LatentCost:
        return self._keyed(self.latent, device, kv_dtype, f"attention over a latent KV in {kv_dtype}")

    def latent_prompt_cost(self, device: Device) -> LatentPromptCost:
        return self._term(self.latent_prompts, device, "attention of prompts over a latent KV")

    def batched_cost(self, device: Device) -> BatchedCost:
        return self._term(self.batched, device, "batched products")

    def allreduce_cost(self, device: Device, tp: int) -> AllReduceCost:
        key = AllReduceKey(self.source_of(self.allreduce, device), tp)
        return self._next_larger(self.allreduce, key, "all-reduce")

    def collective_cost(self, device: Device, op: str, degree: int) -> CollectiveCost:
        """Return the cost of all_gather, reduce_scatter or alltoall over devices of a node."""
        key = CollectiveKey(self.source_of(self.collectives, device), op, degree)
        return self._next_larger(self.collectives, key, op)

    def masked_cost(self, device: Device, dtype: str) -> MaskedExpertCost | None:
        """Return the cost of experts by masked products; None if it was not measured."""
        name = self.source_of(self.masked_experts, device)
        return self.masked_experts.get(DtypeKey(name, canonical_dtype(dtype)))

    def dispatch_cost(self, device: Device, op: str, ranks: int) -> DispatchCost:
        """Return the cost of `dispatch` or `combine` over so many devices.

        Where it is by links, what leaves the device takes fast ones, and what leaves their domain NICs.
        """
        name, domains = self.source_of(self.dispatch, device), device.link_domains(ranks)
        cost = self._next_larger(self.dispatch, DispatchKey(name, op, domains), op)
        if not cost.link_efficiency:
            return cost
        rate, parts = (
            (device.interchip_bytes_per_s, ranks) if domains == 1 else (device.nic_bytes_per_s, domains)
        )
        return structs.replace(cost, per_byte_s=(1 - 1 / parts) / (cost.link_efficiency * rate))

    def as_measured(self, device: Device) -> Device:
        """Return the catalogue's device of this name, as measured; `device` may be a faster variant."""
        catalogued = known_devices([self]).get(device.name, device)
        return device if catalogued.capability == device.capability else catalogued

    def hop_seconds(self, device: Device, size_bytes: Float64) -> Float64:
        """Return the time to the next pipeline stage: half of an all-reduce's latency, and the bytes."""
        return self.allreduce_cost(device, 2).latency_s / 2 + size_bytes / device.interchip_bytes_per_s

    # Measurements of this very device; None where the term prices it

    def measured_experts(self, model: ModelShape, device: Device, layout: Layout) -> Curve | None:
        """Return the times of a layer's routed experts by the tokens of the whole group."""
        assert model.experts
        of, dtype = model.experts, canonical_dtype(model.expert_dtype)
        shape = (model.hidden, of.intermediate, of.top_k, of.count)
        key = ExpertsKey(device.name, dtype, *shape, layout.expert_tp, layout.ep)
        return self.measured.experts.get(key)

    def attention_lines(
        self, model: ModelShape, device: Device, workers: int, window: int
    ) -> AttentionLines | None:
        """Return the times of one layer of attention of a worker."""
        heads, kv_heads = model.heads_of_worker(workers)
        kv_dtype = canonical_dtype(model.kv_dtype)
        if model.latent:
            return self.measured.latent.get(LatentKey(device.name, heads, kv_dtype))
        key = LinesKey(device.name, heads, kv_heads, model.head_dim, kv_dtype, window)
        if by_tiles := self.measured.tiles.get(DtypeKey(device.name, kv_dtype)):
            rows = self.attention_cost(device, model.head_dim, kv_dtype, window).tile_rows
            tiles = kv_heads * padded_rows(-(-heads // kv_heads), rows) / rows
            return by_tiles.in_tiles(tiles) if model.head_dim == HEAD_DIM else None
        return self.measured.lines.get(key)

    # Provenance

    def measured_as(self, device: Device) -> str:
        """Return the device whose measurements apply to `device`: itself, the one it borrows from, or any."""
        if device.board:
            raise UserError(
                "costs-device-is-a-board",
                f"{device.name} is a board: its times are computed from the parameters that `laminabench "
                f"hardware boards {device.board}` lists, and no cost set has coefficients for it",
            )
        lender = self._lender(device)
        measured = {key.device for key in self.gemm}
        for name in (device.name, lender, ANY):
            if name in measured:
                return name
        known = sorted(measured)
        raise UserError(
            "costs-no-coefficients",
            f"cost set {self.name} has no coefficients for {device.name}; it has {', '.join(known)}, "
            "and --costs roofline has every device",
        )

    def scaled(self, device: str) -> bool:
        """Return whether the device's products are those of another, scaled."""
        return any(key.device == device and of.origin.kind == "scaled" for key, of in self.gemm.items())

    def borrows(self, device: Device, term: object) -> Borrowed | None:
        """Return what this term of the device is borrowed from; None if it is its own."""
        lender = self.borrowed.get(device.name)
        if lender is None:
            return None
        tables = (table for table in structs.asdict(self).values() if isinstance(table, Mapping))
        keys = (key for table in tables for key, of in table.items() if of is term)
        return lender if any(_device_of(key) == lender.device for key in keys) else None

    def _lender(self, device: Device) -> str:
        lender = self.borrowed.get(device.name)
        return lender.device if lender else ""

    def source_of(self, table: Mapping[Any, Any], device: Device) -> str:
        """Return the device whose terms in a table apply: its own, the one it borrows from, or any."""
        measured_as, devices = self.measured_as(device), set(map(_device_of, table))
        names = (device.name, self._lender(device), ANY)
        return next((name for name in names if name in devices), measured_as)

    def describe(self) -> Table:
        return {
            "name": self.name,
            "title": self.title,
            "measured": sorted(
                {key.device for key, cost in self.gemm.items() if cost.origin.kind in MEASURED}
            ),
            "borrowed": {name: row._asdict() for name, row in sorted(self.borrowed.items())},
        }

    # Look-up

    def elementwise_seconds(
        self, model: ModelShape, device: Device, split: Split, rows: Float64, side: Side | None = None
    ) -> Float64:
        """Return the seconds in all layers and once per step; measured if every operator of the model was."""
        if curves := self.operators(model, device, layout_of(split).tp, side):
            return sum((times * curve.at(rows) for times, curve in curves), np.zeros_like(rows))
        kernels, elements = model.elementwise(split, side)
        cost = self.elementwise_cost(device)
        return model.layers * cost.seconds(device, kernels, ACTIVATION_BYTES * elements * rows)

    def elementwise_cost(self, device: Device) -> ElementwiseCost:
        return self._term(self.elementwise, device, "element-wise operations")

    def operators(
        self, model: ModelShape, device: Device, tp: int, side: Side | None = None
    ) -> list[tuple[int, Curve]]:
        """Return how often each operator is in a step, the embedding last; empty if not all were measured."""
        if model.experts or model.latent:
            return []  # which have others
        every = [*model.operators(tp, side), *[("embedding", model.hidden, 1)] * (side != "attention")]
        curves = [(times, self._operator(device, name, width)) for name, width, times in every]
        known = [(times, curve) for times, curve in curves if curve]
        return known if len(known) == len(every) else []

    def _operator(self, device: Device, name: str, width: int) -> Curve | None:
        return self.measured.operators.get(OperatorKey(device.name, name, width))

    def _term(self, table: Mapping[str, Term], device: Device, what: str) -> Term:
        name = self.source_of(table, device)
        if name not in table:
            raise UserError(
                "costs-no-coefficients", f"cost set {self.name} has no coefficients of {what} for {name}"
            )
        return table[name]

    def gemm_cost(self, device: Device, dtype: str) -> GemmCost:
        return self._keyed(self.gemm, device, dtype, f"{dtype} GEMMs")

    def _keyed(self, table: Mapping[DtypeKey, Term], device: Device, dtype: str, what: str) -> Term:
        name, own = self.measured_as(device), canonical_dtype(dtype)
        for of in dict.fromkeys((device.name, self._lender(device), name)):
            for key in (DtypeKey(of, own), DtypeKey(of, ANY)):
                if key in table:
                    return table[key]
        known = ", ".join(sorted(key.dtype for key in table if key.device == name)) or "none"
        raise UserError(
            "costs-no-coefficients",
            f"cost set {self.name} has no coefficients of {what} for {name}; it has {known}",
        )

    def _next_larger(self, table: Mapping[Key, Term], key: Key, what: str) -> Term:
        """Return the term of this size, of the next larger one that was measured, or of the largest."""
        sizes = {each[-1]: term for each, term in table.items() if each[:-1] == key[:-1]}
        if not sizes:
            raise UserError(
                "costs-no-coefficients", f"cost set {self.name} has no coefficients of {what} for {key[0]}"
            )
        return sizes[min((size for size in sizes if size >= key[-1]), default=max(sizes))]


def _device_of(key: str | tuple[Any, ...]) -> str:
    return key if isinstance(key, str) else str(key[0])


@lru_cache(maxsize=64)
def curves_of(costs: CostSet, device: str, dtype: str) -> Mapping[tuple[int, int], Curve]:
    """Return the measured matrices, cached as today's sets have hundreds."""
    return costs.measured.of(device, dtype)


def known_devices(sets: Iterable[CostSet]) -> Mapping[str, Device]:
    """Return the catalogue's devices and these sets'; a UserError where two definitions differ."""
    devices = load_devices()
    for each in sets:
        for name, own in each.devices.items():
            if devices.get(name, own) != own:
                raise UserError(
                    "costs-device-twice",
                    f"cost set {each.name} has a device {name}, and there is another one of that name; "
                    "rename one of the two",
                )
        devices = {**devices, **each.devices}
    return devices
