"""Deployments of a system that a model can be served on, from kinds of devices and a price."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

from laminabench.catalog.deployment import Deployment, Workers
from laminabench.catalog.hardware import Device
from laminabench.catalog.models import ModelShape

# Tensor parallelism stays within a node: the cost sets' all-reduce was measured there.
NODE_DEVICES = 8
# A board holds a whole model, so there can be any number of them.
MOST_BOARDS = 64


def deployments(
    system_name: str,
    model: ModelShape,
    devices: Sequence[Device],
    *,
    usd_per_hour: tuple[float, float] = (0.0, float("inf")),
    most_attention: int = 32,
    replicas: int = 1,
) -> Iterator[Deployment]:
    """Every one whose price is within these, both ends included; whether its memory suffices is not asked.

    Model workers are as many as tensor parallelism can be over, for each of so many `replicas`; attention
    workers as many as KV heads divide over, which is also what lamina-v1 deals requests out to. Boards are
    for h2m2 alone, and it is for nothing else.
    """
    if system_name == "h2m2":
        boards = [device for device in devices if device.board]
        found: Iterator[Deployment] = (
            Deployment(Workers(device, count)) for device in boards for count in range(1, MOST_BOARDS + 1)
        )
    else:
        plain = [device for device in devices if not device.board]
        found = _of_workers(system_name, model, plain, most_attention, replicas)
    low, high = usd_per_hour
    for each in found:
        price = each.usd_per_hour
        # A device without a price cannot be compared by cost.
        if price is not None and low <= price <= high:
            yield each


def _of_workers(
    system_name: str, model: ModelShape, devices: Sequence[Device], most_attention: int, replicas: int
) -> Iterator[Deployment]:
    degrees = model.tp_degrees(NODE_DEVICES)
    models = [Workers(device, degree * replicas) for device in devices for degree in degrees]
    if system_name == "vllm":
        return (Deployment(each) for each in models)
    shares = [share for share in model.head_splits() if share <= most_attention]
    attention = [Workers(device, share) for device in devices for share in shares]
    return (Deployment(*pair) for pair in itertools.product(models, attention))
