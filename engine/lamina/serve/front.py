"""The front of a fleet: a queue of requests, and the router that gives each to an engine."""

from __future__ import annotations

import hashlib
import heapq
from collections.abc import Callable, Iterable, Sequence
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from lamina._native import Router
from lamina.pipeline import EngineError
from lamina.serve.instance import Instance, Routed

Ints: TypeAlias = NDArray[np.int64]
# (prompt_tokens, output_tokens, prefix, requests, kv_tokens) -> instance, as in lamina._native.Router
Choice: TypeAlias = Callable[[int, int, Ints, Ints, Ints], int]
Queue: TypeAlias = Literal["each", "global"]
ROUTERS = ("round-robin", "least-requests", "least-kv", "prefix", "fit")
PREFIX_BLOCK = 512  # tokens
NO_PREFIX: Ints = np.empty(0, np.int64)


class Front:
    """Requests that no engine has taken, and the tokens that the others may need in their engines."""

    def __init__(self, router: str | Choice, queue: Queue) -> None:
        if queue not in ("each", "global"):
            raise EngineError("fleet-queue-unknown", f"queue '{queue}': known are each, global")
        if isinstance(router, str) and router not in ROUTERS:
            raise EngineError(
                "fleet-router-unknown", f"router '{router}': give a function, or {', '.join(ROUTERS)}"
            )
        self._name = router if isinstance(router, str) else "round-robin"
        self._choose = None if isinstance(router, str) else router
        self._global = queue == "global"
        self._instances: list[Instance] = []
        self._waiting: list[tuple[int, int, Routed]] = []  # a heap

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def uses_prefixes(self) -> bool:
        return self._name == "prefix" or self._choose is not None

    def serve(self, instances: Sequence[Instance], requests: Iterable[Routed]) -> None:
        """Set the instances, and the requests that they have."""
        self._instances = list(instances)
        limits = [(each.engine.kv_tokens, each.engine.max_sequences) for each in instances]
        self.router = Router(self._name, limits, global_queue=self._global)
        for request in requests:
            if request.instance is not None:
                self.router.route_to(request.instance, *request.demand)
        for each in instances:
            self.router.open(each.number, each.open)

    def open(self, instance: Instance, *, to_requests: bool) -> None:
        instance.open = to_requests
        self.router.open(instance.number, to_requests)

    def push(self, request: Routed) -> None:
        heapq.heappush(self._waiting, (request.priority, request.number, request))

    def drop(self, request: Routed) -> None:
        """Remove a request from the queue, if it waits there."""
        self._waiting = [entry for entry in self._waiting if entry[2] is not request]
        heapq.heapify(self._waiting)

    def left(self, request: Routed) -> Routed:
        """Release a request from its instance, and return it."""
        if request.instance is not None:
            self.router.left(request.instance, *request.demand)
        request.instance = request.local = None
        return request

    def send_on(self) -> list[Routed]:
        """Send on as many as engines take, in their order; return those that no engine has room for."""
        refused = []
        while self._waiting:
            request = self._waiting[0][2]
            if (chosen := self._route(request)) is None:
                break
            if not _fits(self._instances[chosen], request):
                self.router.left(chosen, *request.demand)
                others = [each for each in self._instances if each.open and _fits(each, request)]
                if not others:
                    heapq.heappop(self._waiting)
                    refused.append(request)
                    continue
                takers = (self.router.route_to(each.number, *request.demand) for each in others)
                if (chosen := next((taker for taker in takers if taker is not None), None)) is None:
                    break
            heapq.heappop(self._waiting)
            request.instance = chosen
            self._instances[chosen].coming.append(request)
        return refused

    def _route(self, request: Routed) -> int | None:
        router = self.router
        if self._choose is None:
            return router.route(*request.demand, request.prefix, PREFIX_BLOCK)
        if not any(each.open for each in self._instances):
            return None
        chosen = self._choose(*request.demand, request.prefix, router.requests, router.kv_tokens)
        try:
            return router.route_to(chosen, *request.demand)
        except (IndexError, TypeError) as error:
            why = f"the router chose instance {chosen!r}: {error}"
            raise EngineError("fleet-router-invalid", why) from error


def prefix_blocks(tokens: Ints) -> Ints:
    """Return the ids of a prompt's whole blocks; each stands for all before it too."""
    ids, chain = [], b""
    for first in range(0, len(tokens) - PREFIX_BLOCK + 1, PREFIX_BLOCK):
        block = tokens[first : first + PREFIX_BLOCK].tobytes()
        chain = hashlib.blake2b(chain + block, digest_size=8).digest()
        ids.append(int.from_bytes(chain, "little", signed=True))
    return np.array(ids, np.int64)


def _fits(instance: Instance, request: Routed) -> bool:
    engine = instance.engine
    return sum(request.demand) <= engine.pool_tokens and request.sampling.width <= engine.max_sequences
