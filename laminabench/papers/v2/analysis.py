"""v2's analysis of LLaMA3-70B: the model's operators, attention's, and the network (figures 2 to 4)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from laminabench.catalog.cost_terms import ACTIVATION_BYTES
from laminabench.catalog.costs import CostSet
from laminabench.catalog.deployment import parse_deployment
from laminabench.catalog.find_model import model
from laminabench.catalog.hardware import GB, Device, device
from laminabench.catalog.models import ModelShape
from laminabench.catalog.network import parse_network
from laminabench.catalog.step import model_step_seconds
from laminabench.papers.context import Context
from laminabench.papers.paper import Result
from laminabench.papers.replays import stacked
from laminabench.systems.modelled.homogeneous import build
from laminabench.systems.modelled.setup import Setup

MODEL = "llama3-70b"
# Table 2's range.
BATCHES = (1, *range(8, 1025, 8))
# One H100 does not hold the weights.
DEGREES = (2, 4, 8)
ROOFLINE = "roofline"
_SMALL = 100


def fig2(context: Context) -> Result:
    """Compute a step without attention with both cost sets, and by the paper's roofline."""
    shape, card = model(MODEL), device("h100")
    batches = np.array(BATCHES)
    parts = []
    for degree in DEGREES:
        times = {
            costs.name: model_step_seconds(costs, shape, card, degree, batches) for costs in context.costs()
        }
        times[ROOFLINE] = roofline(shape, card, degree, batches)
        for name, seconds in times.items():
            mfu = 100 * flops(shape, batches) / (seconds * degree * card.flops_for(shape.dtype))
            columns = {"costs": name, "devices": f"{degree} H100", "batch": batches}
            parts.append({**columns, "ms": 1000 * seconds, "mfu_percent": mfu})
    frame = stacked(parts)
    modelled = frame[frame["costs"] != ROOFLINE]
    largest = int(modelled[modelled["batch"] < _SMALL]["batch"].max())
    most = modelled.groupby(["devices", "batch"])["mfu_percent"].max()
    low = most[most <= context.published("fig2")["mfu"]].reset_index()
    until = low.groupby("devices")["batch"].max()
    mfu = modelled[modelled["batch"] == largest].groupby("devices")["mfu_percent"]
    values = {"largest": largest, "mfu": dict(list(mfu)), "until": until, "early": until < largest}
    return Result(frame, values)


def flops(shape: ModelShape, batches: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return 2 N B, of the matrices that are multiplied with: looking up an embedding is no operation."""
    count = shape.weights()
    return np.asarray(2 * (count.matrices + count.lm_head) * batches, np.float64)


def roofline(shape: ModelShape, card: Device, degree: int, batches: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return the longer of 2 N B operations and e N + 2 e B d bytes, on so many devices (section 2.2.1)."""
    count, element = shape.weights(), shape.dtype_bytes
    moved = element * (count.matrices + count.lm_head) + 2 * element * batches * shape.hidden
    longer: NDArray[np.float64] = np.maximum(
        flops(shape, batches) / (degree * card.flops_for(shape.dtype)),
        moved / (degree * card.bandwidth_bytes_per_s),
    )
    return longer


CONTEXTS = (4096, 8192)
DEVICES = ("h100", "h20")
_FEW = 20
# Deployments that hold the weights with room for KV, and a request of about azure-conv's mean length.
_SERVING, _SHORT = (4, 8), 1260


def fig3(context: Context) -> Result:
    """Compute all layers of attention on one device with both cost sets, by batch until memory is full."""
    shape = model(MODEL)
    parts = []
    for costs in context.costs():
        for name in DEVICES:
            card = device(name)
            for length in CONTEXTS:
                batches = np.arange(1, int(fitting(name, length)) + 1)
                seconds = costs.attention_seconds(shape, card, batches * length, batches)
                read = batches * length * shape.kv_bytes_per_token
                mbu = 100 * read / (seconds * card.bandwidth_bytes_per_s)
                columns = {"costs": costs.name, "device": name, "context": length, "batch": batches}
                parts.append({**columns, "ms": 1000 * seconds, "mbu_percent": mbu})
    frame = stacked(parts)
    steps = {
        length: [step_mfu(costs, degree, length) for costs in context.costs() for degree in _SERVING]
        for length in (*CONTEXTS, _SHORT)
    }
    values = {
        "mbu": dict(list(frame[frame["batch"] == _FEW].groupby("device")["mbu_percent"])),
        "long": [mfu for length in CONTEXTS for mfu in steps[length]],
        "short": steps[_SHORT],
        "filling": fitting("h100", CONTEXTS[-1]),
    }
    return Result(frame, values)


def step_mfu(costs: CostSet, degree: int, length: int) -> float:
    """Return the percentage in a step without host, of all requests of this length that vLLM holds."""
    shape, card = model(MODEL), device("h100")
    setup = Setup(shape, parse_deployment(f"{degree}xh100"), costs, parse_network("fhbn"))
    most = np.array([int(build(setup).spec.tokens_per_pool // length)])
    seconds = model_step_seconds(costs, shape, card, degree, most)
    seconds = seconds + costs.attention_seconds(shape, card, most * length, most, degree)
    return float(100 * flops(shape, most)[0] / (seconds[0] * degree * card.flops_for(shape.dtype)))


def fitting(device_name: str, length: int) -> float:
    """Return how many requests' KV is as large as the whole memory, weights or not."""
    return device(device_name).memory_bytes / (length * model(MODEL).kv_bytes_per_token)


ALPHA = 0.2
DOPS = ((2, 2), (4, 4))
# Not in the paper's text.
NETWORK_CONTEXTS = (4096, 8192, 16384)
NETWORK_BATCHES = (1, *range(5, 301, 5))
_RATES = ("aggregate_gb_per_s", "nic_gb_per_s")


def fig4(context: Context) -> Result:
    """Compute the bandwidth that splitting attention off asks of the network, with both cost sets."""
    shape, batches = model(MODEL), np.array(NETWORK_BATCHES)
    parts = []
    for costs in context.costs():
        for dop in DOPS:
            for length in NETWORK_CONTEXTS:
                needed = least_bandwidth(costs, shape, dop, length, batches) / GB
                columns = {"costs": costs.name, "dop": str(dop), "context": length, "batch": batches}
                parts.append({**columns, **dict(zip(_RATES, (needed, needed / min(dop)), strict=True))})
    frame = stacked(parts)
    most = frame.groupby(["dop", "costs"], sort=False)[[*_RATES]].max()
    limit = context.published("fig4")["links"] * GB

    def shortest(dop: tuple[int, int], links: int) -> int:
        """Return the shortest context from which on the limit holds of so many links together."""
        return next(
            length
            for length in range(512, 65536, 512)
            if max(least_bandwidth(costs, shape, dop, length, batches).max() for costs in context.costs())
            <= links * limit
        )

    values = {
        "most": {rate: {dop: most.loc[dop][rate] for dop in map(str, DOPS)} for rate in _RATES},
        "of_nics": 8 * most["nic_gb_per_s"],
        "together": {str(dop): shortest(dop, 1) for dop in DOPS},
        "each_nic": {str(dop): shortest(dop, min(dop)) for dop in DOPS},
    }
    return Result(frame, values)


def least_bandwidth(
    costs: CostSet, shape: ModelShape, dop: tuple[int, int], length: int, batches: NDArray[np.int64]
) -> NDArray[np.float64]:
    """Return (2 + 2/G) e d B L bytes over alpha times a step without network, all links together (3.1)."""
    h100, h20 = device("h100"), device("h20")
    sent = (2 + 2 / shape.group) * ACTIVATION_BYTES * shape.hidden * batches * shape.layers
    model_s = model_step_seconds(costs, shape, h100, dop[0], batches)
    attention_s = costs.attention_seconds(shape, h20, batches * length, batches, dop[1])
    needed: NDArray[np.float64] = sent / (ALPHA * (model_s + attention_s))
    return needed
