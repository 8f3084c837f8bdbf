"""Requests whose KV prefill workers compute, until it is there and they may join."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

import numpy as np

from lamina.cluster.prefill_dispatch import PrefillRequest
from lamina.pipeline import BatchDelta
from lamina.serve.decoder import Decoder
from lamina.serve.requests import Request

if TYPE_CHECKING:
    from lamina.serve.local_core import Core


class PrefillQueue:
    """Staged requests, and what of them has not been announced to workers yet.

    It is empty where model workers compute prompts. Staged requests own KV slots on the attention workers
    from the launch after their admission on.
    """

    def __init__(self, core: Core, decoder: Decoder) -> None:
        self._core, self._decoder = core, decoder
        self._waiting: dict[int, tuple[Request, set[int]]] = {}  # by number, with names whose KV is to come
        self._ready: dict[int, Request] = {}
        self._by_name: dict[int, int] = {}
        self._unsent: list[PrefillRequest] = []
        self._expected: list[tuple[int, ...]] = []  # not yet sent to attention workers

    @property
    def only_waits(self) -> bool:
        """Whether requests wait for KV, and none has it and may join."""
        return bool(self._waiting) and not self._ready

    def begin(self, request: Request, pool: int) -> bool:
        """Stage an admitted request; return whether KV must be computed before it joins."""
        items = self._decoder.stage(request, pool)
        if not items:
            self._ready[request.number] = request
            return False
        self._unsent += items
        self._expected += [item.expected for item in items]
        request.expected = [item.name for item in items]
        self._waiting[request.number] = request, {item.name for item in items}
        self._by_name |= {item.name: request.number for item in items}
        return True

    def announce(self, delta: BatchDelta) -> None:
        """Add to the delta the sequences that attention workers are to expect, and to drop."""
        delta.dropped = self._decoder.dropped()
        if self._expected:
            delta.expected, self._expected = np.array(self._expected, np.int64), []

    def order(self, delta: BatchDelta) -> None:
        """Have prefill workers compute prompts, once attention workers expect them."""
        if prefill := self._core.prefill:
            prefill.forget(delta.dropped[:, 0].tolist())
            items, self._unsent = self._unsent, []
            for item in items:
                prefill.compute(item)

    def look(self, *, wait: bool) -> list[tuple[Request, str | None]]:
        """Return the requests whose KV is there, and those whose KV cannot be computed, with why.

        `wait` until there is one.
        """
        results: list[tuple[Request, str | None]] = []
        while self._waiting and self._core.prefill:
            for name, why in self._core.prefill.news(wait=wait).items():
                # Of several sequences of a request that fail one is enough.
                if (number := self._by_name.pop(name, None)) is None:
                    continue
                request, names = self._waiting[number]
                names.remove(name)
                if why is not None:
                    self.leave(request)
                elif names:
                    continue
                else:
                    del self._waiting[number]
                    self._ready[number] = request
                results.append((request, why))
            if results or not wait:
                break
        return results

    def leave(self, request: Request) -> None:
        self._ready.pop(request.number, None)
        _, names = self._waiting.pop(request.number, (request, set()))
        for name in names:
            del self._by_name[name]
        if names:
            self._unsent = [item for item in self._unsent if item.name not in names]

    def computed_by(self, workers: Collection[int]) -> list[Request]:
        """Return the requests that these prefill workers may be computing."""
        prefill = self._core.prefill
        names = prefill.computed_by(workers) if prefill else []
        return [self._waiting[self._by_name[name]][0] for name in names if name in self._by_name]

    def clear(self) -> tuple[list[Request], list[Request]]:
        """Forget what lost workers had computed or expected: model workers will compute it. Those
        whose KV was to come, and those that were ready.
        """
        waiting, ready = [request for request, _ in self._waiting.values()], list(self._ready.values())
        self._decoder.unstage([*waiting, *ready])
        self._waiting.clear()
        self._ready.clear()
        self._by_name.clear()
        self._unsent.clear()
        self._expected.clear()
        return waiting, ready
