"""Kernels of systems that split attention off: those that send, and experts fused with their exchange."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache, lru_cache
from typing import Literal

import msgspec
import numpy as np

from laminabench.catalog.cost_keys import DispatchKey, DtypeKey, GemmKey
from laminabench.catalog.cost_terms import DISPATCH_BYTES, US, DispatchCost, MaskedExpertCost, Origin
from laminabench.catalog.costs import CostSet
from laminabench.catalog.entries import packaged
from laminabench.catalog.hardware import Device, canonical_dtype
from laminabench.catalog.measured import Curve
from laminabench.util.errors import UserError
from laminabench.util.json import JsonObject

Wire = Literal["bf16", "fp8"]
# Of a number that travels; in fp8 with a scale of 4 bytes for 128.
WIRE_BYTES: Mapping[Wire, float] = {"bf16": 2.0, "fp8": 1 + 4 / 128}
ExpertKernel = Literal["deepgemm-masked", "deepgemm-masked-fp4", "megamoe-fp8", "megamoe-fp4"]
# Format of the experts' weights, where it is not the model's own.
EXPERT_DTYPES: Mapping[str, str] = {
    "megamoe-fp8": "fp8_block",
    "megamoe-fp4": "mxfp4",
    "deepgemm-masked-fp4": "mxfp4",
}


# Small kernels of a layer where products get quantised activations: two norms, each with the sum before it
# and the quantisation behind, and one that norms and rotates queries and keys.
SMALL_KERNELS = 3


class SplitKernels(msgspec.Struct, frozen=True):
    """Kernels of a device: one that sends q, k, v or a hidden state; one of outputs; fused experts.

    `products_us` are times of matrix products that were given, as `dtype/NxK`, instead of a cost set's.
    """

    publish_us: float
    publish_output_us: float
    publish_source: str
    experts_us: float
    experts_bandwidth_efficiency: float
    experts_flops_efficiency: float
    experts_source: str
    # Hidden size of the measured model, to which the fixed time is in proportion; None: it is constant.
    experts_hidden: int | None = None
    # Also, where they were given: masked experts on a rank, and DeepEP's two kernels.
    masked_us: float | None = None
    exchange_us: tuple[float, float] | None = None
    products_us: Mapping[str, float] = msgspec.field(default_factory=dict)

    def __hash__(self) -> int:
        return hash((self.publish_us, self.experts_us, self.experts_source))

    @property
    def publish_s(self) -> float:
        return self.publish_us * US

    @property
    def publish_output_s(self) -> float:
        return self.publish_output_us * US

    def rows(self, device: Device) -> list[JsonObject]:
        """Return what was used and its source, as rows next to the coefficients of a cost set."""
        return [
            {
                "term": "split kernels",
                "device": device.name,
                "kind": "fitted",
                "source": f"{self.publish_source}; {self.experts_source}",
                "coefficients": {
                    name: value
                    for name, value in msgspec.structs.asdict(self).items()
                    if isinstance(value, float)
                },
            }
        ]


@cache
def split_kernels(device: Device) -> SplitKernels:
    """Return the kernels of a device; raise a UserError where none were measured."""
    table = packaged("split_kernels.toml")
    if device.name not in table:
        raise UserError(
            "costs-no-split-kernels",
            f"--wire fp8 and --expert-kernel: kernels of split systems were measured on {', '.join(table)} "
            f"alone, not on {device.name}; leave both out",
        )
    return msgspec.convert(table[device.name], SplitKernels)


@lru_cache(maxsize=64)
def with_split_products(
    costs: CostSet,
    device: Device,
    kernels: SplitKernels,
    expert_kernel: ExpertKernel | None,
    small_kernels: int,
    hidden: int,
) -> CostSet:
    """Return a cost set whose products get activations that are quantised already, and with these experts.

    `small_kernels` are what a layer of the model has without fusion, `hidden` is its width. Fused experts
    exchange their tokens: dispatch and combine take no time of their own.
    """
    name, measured = device.name, costs.measured
    gemm, curves, masked = dict(costs.gemm), dict(measured.gemm), dict(costs.masked_experts)
    dispatch, elementwise = dict(costs.dispatch), dict(costs.elementwise)
    block, fused = DtypeKey(name, "fp8_block"), DtypeKey(name, "fp8_fused")
    if fused in gemm:
        gemm[block] = gemm[fused]
        small = elementwise[name]
        kernel_s = small.kernel_s * min(1.0, SMALL_KERNELS / small_kernels)
        elementwise[name] = msgspec.structs.replace(small, kernel_s=kernel_s)
        curves = {key: curve for key, curve in curves.items() if key[:2] != block}
        curves |= {
            key._replace(dtype="fp8_block"): curve for key, curve in measured.gemm.items() if key[:2] == fused
        }
    given = Origin("given", kernels.experts_source)
    for product, time in kernels.products_us.items():
        dtype, _, shape = product.partition("/")
        n, k = map(int, shape.split("x"))
        # As long at all these rows.
        rows = np.array([1.0, 256.0])
        curves[GemmKey(name, dtype, n, k)] = Curve(rows, np.full(2, time * US), given)
    if expert_kernel and expert_kernel.startswith("megamoe"):
        width = hidden / kernels.experts_hidden if kernels.experts_hidden else 1.0
        masked[DtypeKey(name, canonical_dtype(EXPERT_DTYPES[expert_kernel]))] = MaskedExpertCost(
            kernels.experts_us * US * width,
            0.0,
            kernels.experts_bandwidth_efficiency,
            kernels.experts_flops_efficiency,
            Origin("fitted", kernels.experts_source),
        )
        dispatch |= {DispatchKey(name, op, 1): DispatchCost(0.0, 0.0, given) for op in DISPATCH_BYTES}
    elif kernels.masked_us is not None and kernels.exchange_us is not None:
        masked[block] = msgspec.structs.replace(
            masked[block], overhead_s=kernels.masked_us * US, per_expert_s=0.0
        )
        times = zip(DISPATCH_BYTES, kernels.exchange_us, strict=True)
        dispatch |= {DispatchKey(name, op, 1): DispatchCost(time * US, 0.0, given) for op, time in times}
    if expert_kernel == "deepgemm-masked-fp4":
        masked[DtypeKey(name, "mxfp4")] = masked[block]
    return msgspec.structs.replace(
        costs,
        gemm=gemm,
        elementwise=elementwise,
        masked_experts=masked,
        dispatch=dispatch,
        measured=msgspec.structs.replace(measured, gemm=curves),
    )
