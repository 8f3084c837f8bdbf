"""Cost sets: every coefficient of the modelled cluster, and the time of a step from them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple, TypeVar

import msgspec
import numpy as np
from numpy.typing import ArrayLike

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
    PromptAttentionCost,
    PromptTerms,
)
from laminabench.catalog.entries import Table
from laminabench.catalog.hardware import Device, canonical_dtype, load_devices
from laminabench.catalog.layout import Split, layout_of
from laminabench.catalog.measured import (
    AttentionLines,
    Curve,
    Measured,
    MeasuredAttention,
    nearby,
)
from laminabench.catalog.models import DTYPE_BYTES, ModelShape, Side
from laminabench.catalog.network import Network
from laminabench.util.errors import UserError

Term = TypeVar("Term")

# Kinds of numbers behind which there is a measurement of this very device.
MEASURED = ("measured", "fitted")
ANY = "any"  # stands for every device, dtype or degree (the roofline set)


class Borrowed(NamedTuple):
    """A device without measurements uses another one's efficiencies on its own specification."""

    device: str
    reason: str


class CostSet(msgspec.Struct, frozen=True):
    """A named set of coefficients. Times are in seconds; batch arguments may be arrays."""

    name: str
    title: str
    gemm: Mapping[tuple[str, str], GemmCost]  # by device and dtype
    attention: Mapping[str, AttentionCost]
    prompt_attention: Mapping[str, PromptAttentionCost]
    allreduce: Mapping[tuple[str, int], AllReduceCost]  # by device and degree
    elementwise: Mapping[str, ElementwiseCost]
    host: HostCost
    borrowed: Mapping[str, Borrowed]
    # Attention that is not of heads of 128, KV in bf16 and all tokens: by device, head size, KV's type and
    # window (0: none).
    attention_of: Mapping[tuple[str, int, str, int], AttentionCost] = msgspec.field(default_factory=dict)
    prompt_attention_of: Mapping[tuple[str, int, str, int], PromptAttentionCost] = msgspec.field(
        default_factory=dict
    )
    # Mixtures of experts, by device and format of their weights.
    experts: Mapping[tuple[str, str], ExpertCost] = msgspec.field(default_factory=dict)
    # A latent KV (MLA): decoding by device and KV's type, prompts and the products of absorption by device.
    latent: Mapping[tuple[str, str], LatentCost] = msgspec.field(default_factory=dict)
    latent_prompts: Mapping[str, LatentPromptCost] = msgspec.field(default_factory=dict)
    batched: Mapping[str, BatchedCost] = msgspec.field(default_factory=dict)
    # By device, operation and degree, in a node; and by device, dispatch or combine, and nodes.
    collectives: Mapping[tuple[str, str, int], CollectiveCost] = msgspec.field(default_factory=dict)
    dispatch: Mapping[tuple[str, str, int], DispatchCost] = msgspec.field(default_factory=dict)
    measured: Measured = Measured()
    # How far off it was where it was held against measurements of whole servers: `validate` finds it out.
    held: str = ""
    # Machines that it is of, which the catalogue does not have, and what links workers there.
    devices: Mapping[str, Device] = msgspec.field(default_factory=dict)
    networks: Mapping[str, Network] = msgspec.field(default_factory=dict)

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
        curve = self.measured.gemm.get((device.name, key, *shape))
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
        """One layer of decode attention on one of `workers` that share the heads, as a sum of products.

        With an uneven split this is the worker with the most KV heads. Where requests are dealt out
        instead of heads, use one worker and give its own requests and KV tokens.
        """
        heads, kv_heads = model.heads_of_worker(workers)
        if of := model.latent:
            latent = self.latent_cost(device, model.kv_dtype)
            return latent.terms(device, heads, model.kv_dtype, of.width, of.kv_rank)
        kv_bytes = 2 * kv_heads * model.head_dim * DTYPE_BYTES[model.kv_dtype]
        cost = self.attention_cost(device, model.head_dim, model.kv_dtype, window)
        return cost.terms(device.bandwidth_bytes_per_s, heads, kv_heads, kv_bytes)

    def attention_terms(self, model: ModelShape, device: Device, workers: int = 1) -> AttentionTerms:
        """All layers of it, where no layer has a window."""
        return self.layer_attention(model, device, workers).times(model.layers)

    def prompt_terms(self, model: ModelShape, device: Device, workers: int = 1) -> PromptTerms:
        """One layer of attention of prompts on one of `workers` that share the heads; their mean."""
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
        """At least this for each token that a chunk looks at, in a layer: its KV is read once."""
        if of := model.latent:
            return of.width * DTYPE_BYTES[model.kv_dtype] / device.bandwidth_bytes_per_s
        whole = model.layers - (model.window.layers if model.window else 0)
        return self.layer_attention(model, device, workers).per_kv_token_s * whole / model.layers

    def measured_attention(
        self, model: ModelShape, device: Device, workers: int = 1
    ) -> MeasuredAttention | None:
        """Attention of a worker as it was measured; None where it was not."""
        shape = (device.name, *model.heads_of_worker(workers), model.head_dim)
        grids = self.measured.attention.get(shape)
        if grids is None or model.kv_dtype != "bf16" or model.window:
            return None
        terms = self.attention_terms(replace(model, layers=1), device, workers)
        return MeasuredAttention(grids, terms, self.prompt_terms(model, device, workers))

    def attention_seconds(
        self, model: ModelShape, device: Device, kv_tokens: ArrayLike, batch: ArrayLike, workers: int = 1
    ) -> Float64:
        """All layers of attention for a batch with this many KV tokens in total."""
        return self.attention_terms(model, device, workers).seconds(kv_tokens, batch)

    def allreduce_seconds(self, device: Device, tp: int, size_bytes: ArrayLike) -> Float64:
        """One all-reduce of `size_bytes` over `tp` devices of a node; nothing for one device."""
        if tp == 1:
            return np.zeros(np.shape(size_bytes))
        return self.allreduce_cost(device, tp).seconds(device, tp, size_bytes)

    # Mixtures of experts, latent KV: the terms, each with its origin

    def attention_cost(
        self, device: Device, head_dim: int = 128, kv_dtype: str = "bf16", window: int = 0
    ) -> AttentionCost:
        """Of heads of this size; what was not measured apart is as heads of 128 with KV in bf16."""
        name = self.measured_as(device)
        found = self.attention_of.get((name, head_dim, canonical_dtype(kv_dtype), window))
        return found or self._term(self.attention, device, "decode attention")

    def prompt_attention_cost(
        self, device: Device, head_dim: int = 128, kv_dtype: str = "bf16", window: int = 0
    ) -> PromptAttentionCost:
        name = self.measured_as(device)
        found = self.prompt_attention_of.get((name, head_dim, canonical_dtype(kv_dtype), window))
        return found or self._term(self.prompt_attention, device, "attention of prompts")

    def expert_cost(self, device: Device, dtype: str) -> ExpertCost:
        return self._keyed(self.experts, device, canonical_dtype(dtype), f"experts in {dtype}")

    def latent_cost(self, device: Device, kv_dtype: str = "bf16") -> LatentCost:
        what = f"attention over a latent KV in {kv_dtype}"
        return self._keyed(self.latent, device, canonical_dtype(kv_dtype), what)

    def latent_prompt_cost(self, device: Device) -> LatentPromptCost:
        return self._term(self.latent_prompts, device, "attention of prompts over a latent KV")

    def batched_cost(self, device: Device) -> BatchedCost:
        return self._term(self.batched, device, "batched products")

    def collective_cost(self, device: Device, op: str, degree: int) -> CollectiveCost:
        """Of all_gather, reduce_scatter or alltoall over so many devices of a node."""
        return self._of_degree(self.collectives, device, op, degree)

    def dispatch_cost(self, device: Device, op: str, nodes: int = 1) -> DispatchCost:
        """Of `dispatch` or `combine` over the devices of so many nodes."""
        return self._of_degree(self.dispatch, device, op, nodes)

    def as_measured(self, device: Device) -> Device:
        """The catalogue's device of this name, which was measured; the other may be thought faster."""
        found = known_devices([self]).get(device.name, device)
        return device if found.capability == device.capability else found

    def attention_lines(
        self, model: ModelShape, device: Device, workers: int, window: int
    ) -> AttentionLines | None:
        """A layer of a worker's attention as it was measured; None where the term prices it."""
        heads, kv_heads = model.heads_of_worker(workers)
        if model.latent:
            return self.measured_latent(device, heads, model.kv_dtype)
        return self.measured_lines(device, heads, kv_heads, model.head_dim, model.kv_dtype, window)

    def hop_seconds(self, device: Device, size_bytes: Float64) -> Float64:
        """From a pipeline stage to the next: half of an all-reduce's latency, and the bytes."""
        return self.allreduce_cost(device, 2).latency_s / 2 + size_bytes / device.interchip_bytes_per_s

    # What of these was measured, on this very device; None where the term prices it

    def measured_experts(
        self, device: Device, dtype: str, shape: tuple[int, int, int, int], tp: int = 1, ep: int = 1
    ) -> Curve | None:
        """By the tokens of the whole group; `shape` is hidden size, expert's width, top k and experts."""
        return self.measured.experts.get((device.name, canonical_dtype(dtype), *shape, tp, ep))

    def measured_lines(
        self,
        device: Device,
        heads: int,
        kv_heads: int,
        head_dim: int = 128,
        kv_dtype: str = "bf16",
        window: int = 0,
    ) -> AttentionLines | None:
        """Of a worker with so many heads."""
        key = (device.name, heads, kv_heads, head_dim, canonical_dtype(kv_dtype), window)
        return self.measured.lines.get(key)

    def measured_latent(self, device: Device, heads: int, kv_dtype: str = "bf16") -> AttentionLines | None:
        return self.measured.latent.get((device.name, heads, canonical_dtype(kv_dtype)))

    # Provenance

    def measured_as(self, device: Device) -> str:
        """The device whose measurements stand for `device`: itself, the one it borrows from, or any."""
        if device.board:
            raise UserError(
                "costs-device-is-a-board",
                f"{device.name} is a board: its times are computed from the parameters that `laminabench "
                f"hardware boards {device.board}` lists, and no cost set has coefficients for it",
            )
        if device.name in self.attention:
            return device.name
        if device.name in self.borrowed and self.borrowed[device.name].device in self.attention:
            return self.borrowed[device.name].device
        if ANY in self.attention:
            return ANY
        known = sorted(self.attention)
        raise UserError(
            "costs-no-coefficients",
            f"cost set {self.name} has no coefficients for {device.name}; it has {', '.join(known)}, "
            "and --costs roofline has every device",
        )

    @property
    def held_against(self) -> str:
        """The sentence that goes with its numbers."""
        if self.held:
            return f"{self.name} held against {self.held}"
        return f"{self.name} was never held against a measured server"

    def describe(self) -> Table:
        return {
            "name": self.name,
            "title": self.title,
            "held_against": self.held_against,
            "measured": sorted({on for (on, _), cost in self.gemm.items() if cost.origin.kind in MEASURED}),
            "borrowed": {name: row._asdict() for name, row in sorted(self.borrowed.items())},
        }

    # Look-up

    def elementwise_seconds(
        self, model: ModelShape, device: Device, split: Split, rows: Float64, side: Side | None = None
    ) -> Float64:
        """All layers, and what is there once in a step: measured if every operator of the model was."""
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
        """How often each is in a step, the embedding's last; none where not all were measured."""
        if model.experts or model.latent:
            return []  # which have others
        every = [*model.operators(tp, side), *[("embedding", model.hidden, 1)] * (side != "attention")]
        found = [(times, self._operator(device, name, width)) for name, width, times in every]
        known = [(times, curve) for times, curve in found if curve]
        return known if len(known) == len(every) else []

    def _operator(self, device: Device, name: str, width: int) -> Curve | None:
        return self.measured.operators.get((device.name, name, width))

    def _term(self, table: Mapping[str, Term], device: Device, what: str) -> Term:
        name = self.measured_as(device)
        if name not in table:
            raise UserError(
                "costs-no-coefficients", f"cost set {self.name} has no coefficients of {what} for {name}"
            )
        return table[name]

    def gemm_cost(self, device: Device, dtype: str) -> GemmCost:
        return self._keyed(self.gemm, device, canonical_dtype(dtype), f"{dtype} GEMMs")

    def allreduce_cost(self, device: Device, tp: int) -> AllReduceCost:
        name = self.measured_as(device)
        degrees = sorted(degree for owner, degree in self.allreduce if owner == name)
        if not degrees:
            raise UserError(
                "costs-no-coefficients", f"cost set {self.name} has no all-reduce coefficients for {name}"
            )
        # A degree that was not measured uses the next one that was, or the largest.
        above = [degree for degree in degrees if degree >= tp]
        return self.allreduce[name, above[0] if above else degrees[-1]]

    def _keyed(self, table: Mapping[tuple[str, str], Term], device: Device, key: str, what: str) -> Term:
        name = self.measured_as(device)
        for found in ((name, key), (name, ANY)):
            if found in table:
                return table[found]
        known = ", ".join(sorted(kind for owner, kind in table if owner == name)) or "none"
        raise UserError(
            "costs-no-coefficients",
            f"cost set {self.name} has no coefficients of {what} for {name}; it has {known}",
        )

    def _of_degree(
        self, table: Mapping[tuple[str, str, int], Term], device: Device, op: str, degree: int
    ) -> Term:
        """That of the degree, of the next larger one that was measured, or of the largest."""
        name = self.measured_as(device)
        degrees = sorted(each for owner, kind, each in table if (owner, kind) == (name, op))
        if not degrees:
            raise UserError(
                "costs-no-coefficients", f"cost set {self.name} has no coefficients of {op} for {name}"
            )
        above = [each for each in degrees if each >= degree]
        return table[name, op, above[0] if above else degrees[-1]]


@lru_cache(maxsize=64)
def curves_of(costs: CostSet, device: str, dtype: str) -> Mapping[tuple[int, int], Curve]:
    """The matrices that were measured: looked for once, as sets of today have hundreds."""
    return costs.measured.of(device, dtype)


def known_devices(sets: Iterable[CostSet]) -> Mapping[str, Device]:
    """The catalogue's devices, and those that these sets bring; a UserError where two mean different ones."""
    found = load_devices()
    for each in sets:
        for name, own in each.devices.items():
            if found.get(name, own) != own:
                raise UserError(
                    "costs-device-twice",
                    f"cost set {each.name} has a device {name}, and there is another one of that name; "
                    "rename one of the two",
                )
        found = {**found, **each.devices}
    return found
