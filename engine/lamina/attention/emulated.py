"""Attention on an emulated device: waits instead of computing."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from lamina._native import Slab
from lamina.emulation import EmulatedDevice, latest, moments


class EmulatedAttention:
    """Emulated attention for `share` of a worker's heads, with the methods of a TensorWorker."""

    def __init__(self, device: EmulatedDevice, heads: int, share: float) -> None:
        self.heads = self.kv_heads = heads
        self.requests = 0
        self._device, self._share = device, share
        self._takes = self._back = self._came = 0

    def plan(
        self, slab: Slab, requests: NDArray[np.int64], rows: int | None = None, *, space: int = 0
    ) -> None:
        """Plan an iteration: the requests whose tokens, newest included, are attended to."""
        del rows, space
        self._plan(len(requests), sum(map(slab.length, requests.tolist())))

    def plan_lists(self, offsets: NDArray[np.int64], slots: NDArray[np.int32], *, space: int = 0) -> None:
        """Plan from lists given directly: request i has slots[offsets[i]:offsets[i + 1]]."""
        del space
        self._plan(len(offsets) - 1, len(slots))

    def _plan(self, requests: int, tokens: int) -> None:
        model, self.requests = self._device.model, requests
        tokens -= requests  # the newest arrive with finish()
        batch = min(self.requests * model.pools, len(model.attention) - 1)
        self._takes = round(self._share * (model.attention[batch] + tokens * model.per_token[batch]))
        self._back = int(model.out_transfer[batch])

    def begin(self, layer: int, q: Tensor) -> None:
        """Note when q is ready."""
        del layer
        self._came = latest(q)

    def finish(self, layer: int, *kv: Tensor) -> Tensor:
        """Return when the output is back; attention waits for the new tokens' k and v."""
        del layer
        device = self._device
        device.run(self._came, self._takes, latest(*kv))
        device.free += device.model.combine
        return moments(self.requests, self.heads, device.free + self._back)
