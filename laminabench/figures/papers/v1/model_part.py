"""What v1 calls computation: a decode step without attention, its rate, and the network that it asks for."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from laminabench.catalog.cost_terms import ACTIVATION_BYTES
from laminabench.catalog.costs import CostSet
from laminabench.catalog.hardware import Device
from laminabench.catalog.models import ModelShape

# The A100 that the cost sets were measured on.
MEASURED_CARD = "a100-80g-sxm"
# v1 Table 3, GB/s: by model and its number of A100, for these batches.
BATCHES = (128, 256, 512, 1024)
TABLE3 = {
    ("llama-13b", 1): (4.90, 8.12, 9.08, 10.06),
    ("llama-33b", 2): (5.94, 9.31, 11.56, 12.53),
    ("llama-65b", 4): (7.55, 11.78, 13.92, 15.90),
}


def parameters(model: ModelShape) -> float:
    """N as the papers count it: the layers and one vocabulary table."""
    return model.table3_bytes / model.dtype_bytes


def mfu(
    costs: CostSet, model: ModelShape, device: Device, tp: int, batches: NDArray[np.int64]
) -> NDArray[np.float64]:
    """2 N B over the step's time and the peak rate of all devices."""
    seconds = costs.model_step_seconds(model, device, tp, batches)
    share: NDArray[np.float64] = (
        2 * parameters(model) * batches / (seconds * tp * device.flops_for(model.dtype))
    )
    return share


def least_bandwidth(
    model: ModelShape, device: Device, count: int, share: float | NDArray[np.float64]
) -> float | NDArray[np.float64]:
    """Section 4.2: 4 e d B L bytes in the time of 2 N B operations; the batch cancels out.

    The rate is of all devices together: taken for one, Table 3 would imply more than the peak.
    """
    sent = 4 * ACTIVATION_BYTES * model.hidden * model.layers
    return sent * share * count * device.flops_for(model.dtype) / (2 * parameters(model))


def implied_mfu(model: ModelShape, device: Device, count: int, bytes_per_s: float) -> float:
    """The MFU behind a published bandwidth: `least_bandwidth` turned around."""
    return float(bytes_per_s / least_bandwidth(model, device, count, 1.0))
