"""Requests that have memory and no KV yet: prefill workers compute it, and they join when it is there."""

from __future__ import annotations

from dataclasses import dataclass, field

from lamina.cluster.prefill_dispatch import PrefillRequest
from lamina.pipeline import BatchDelta
from lamina.serve.core import Core
from lamina.serve.decoder import Decoder
from lamina.serve.requests import Request


@dataclass
class PrefillOutcome:
    """Whose KV is there, and whose cannot be computed, and why."""

    ready: list[Request] = field(default_factory=list)
    failed: list[tuple[Request, str]] = field(default_factory=list)


class PrefillQueue:
    """Whose prompts are computed, and what of it nobody has been told yet.

    Nobody is here where model workers compute prompts. Whoever is has his names in the attention workers'
    memory from the launch after his admission on.
    """

    def __init__(self, core: Core, decoder: Decoder) -> None:
        self._core, self._decoder = core, decoder
        self._waiting: dict[int, tuple[Request, set[int]]] = {}  # by number, with names whose KV is to come
        self._ready: dict[int, Request] = {}
        self._by_name: dict[int, int] = {}
        self._wanted: list[PrefillRequest] = []

    @property
    def only_waits(self) -> bool:
        """Whether somebody waits for KV, and nobody has it and may join."""
        return bool(self._waiting) and not self._ready

    def begin(self, request: Request, pool: int) -> bool:
        """It has been given memory; whether there is KV to compute before it joins."""
        wanted = self._decoder.stage(request, pool)
        if not wanted:
            self._ready[request.number] = request
            return False
        self._wanted += wanted
        self._waiting[request.number] = request, {item.name for item in wanted}
        self._by_name |= {item.name: request.number for item in wanted}
        return True

    def tell(self, delta: BatchDelta) -> None:
        """Attention workers, with the next launch: who will come, and who will not."""
        if self._core.prefill:
            delta.expected, delta.dropped = self._decoder.staged()

    def order(self, delta: BatchDelta) -> None:
        """Prefill workers, once that has been told."""
        if prefill := self._core.prefill:
            prefill.forget(delta.dropped[:, 0].tolist())
            wanted, self._wanted = self._wanted, []
            for item in wanted:
                prefill.compute(item)

    def look(self, *, wait: bool) -> PrefillOutcome:
        """What has come; `wait` until somebody may join, or has failed."""
        heard = PrefillOutcome()
        while self._waiting and self._core.prefill:
            news = self._core.prefill.news(wait=wait)
            for name in news.computed:
                self._take(name, heard)
            for name, why in news.failed.items():
                # Of several sequences of a request one is enough.
                if (number := self._by_name.get(name)) is not None:
                    request, _ = self._waiting[number]
                    heard.failed.append((request, why))
                    self.leave(request)
            if heard.ready or heard.failed or not wait:
                break
        return heard

    def _take(self, name: int, heard: PrefillOutcome) -> None:
        if (number := self._by_name.pop(name, None)) is None:
            return
        request, names = self._waiting[number]
        names.remove(name)
        if not names:
            del self._waiting[number]
            self._ready[number] = request
            heard.ready.append(request)

    def leave(self, request: Request) -> None:
        """It has joined, or goes without having joined."""
        self._ready.pop(request.number, None)
        _, names = self._waiting.pop(request.number, (request, set()))
        for name in names:
            del self._by_name[name]
        if names:
            self._wanted = [item for item in self._wanted if item.name not in names]

    def clear(self) -> list[Request]:
        """Workers have lost what was computed, and who was expected: model workers will compute it when the
        requests join. Those of them that were not ready for it.
        """
        waiting = [request for request, _ in self._waiting.values()]
        self._decoder.unstage([*waiting, *self._ready.values()])
        self._waiting.clear()
        self._by_name.clear()
        self._wanted.clear()
        # Whoever is ready joins as he would have.
        self._ready |= {request.number: request for request in waiting}
        return waiting
