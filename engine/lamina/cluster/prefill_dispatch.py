"""The front end's side of prefill workers: which prompt was sent to which, and what has come of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from lamina.cluster.layout import Layout
from lamina.cluster.messages import Compute, Forget, KvStored, PrefillFailed
from lamina.cluster.worker_pool import WorkerPool
from lamina.fhbn.control import Deadline


class PrefillRequest(NamedTuple):
    """A sequence whose KV is to be computed: that of its text from `shared` on."""

    name: int
    text: NDArray[np.int32]
    shared: int
    pool: int


@dataclass
class _Prompt:
    """One that is being computed, or is on its way."""

    worker: int
    tokens: int
    lacking: set[int]  # workers that need its KV and do not have it


class PrefillDispatch:
    """Sends each prompt to the prefill worker with the fewest tokens to compute; notes when KV is there."""

    def __init__(self, workers: WorkerPool, layout: Layout) -> None:
        self._workers = workers
        self.clear(layout)

    def compute(self, wanted: PrefillRequest) -> None:
        attending = self._layout.attending
        to = range(len(attending)) if self._layout.partition == "heads" else [wanted.pool]
        worker = min(self._to_do, key=lambda number: self._to_do[number])
        tokens = len(wanted.text) - wanted.shared
        self._prompts[wanted.name] = _Prompt(worker, tokens, {attending[number] for number in to})
        self._to_do[worker] += tokens
        job = Compute(wanted.name, wanted.text, wanted.shared, list(to))
        self._workers.send(worker, job, Deadline(self._layout.timeout_s))

    def forget(self, names: Iterable[int]) -> None:
        for name in names:
            if prompt := self._done_with(name):
                self._workers.send(prompt.worker, Forget(name), Deadline(self._layout.timeout_s))

    def news(self, *, wait: bool) -> dict[int, str | None]:
        """What has come of them, by name: None where all that need the KV have it, else why it cannot be
        computed; `wait` until there is something.
        """
        found: dict[int, str | None] = {}
        deadline = Deadline(self._layout.timeout_s)
        while True:
            for number, stored in self._workers.received(KvStored):
                if prompt := self._prompts.get(stored.name):
                    prompt.lacking.discard(number)
                    if not prompt.lacking:
                        self._done_with(stored.name)
                        found[stored.name] = None
            for _, failed in self._workers.received(PrefillFailed):
                # Of those that have been forgotten something may be on its way still.
                if self._done_with(failed.name):
                    found[failed.name] = failed.why
            if found or not wait:
                return found
            self._workers.wait(next(iter(self._prompts.values())).worker, deadline)

    def _done_with(self, name: int) -> _Prompt | None:
        prompt = self._prompts.pop(name, None)
        if prompt:
            self._to_do[prompt.worker] -= prompt.tokens
        return prompt

    def clear(self, layout: Layout) -> None:
        """Workers meet anew: no prompt is being computed."""
        self._layout = layout
        self._prompts: dict[int, _Prompt] = {}
        self._to_do = Counter(dict.fromkeys(layout.prefilling, 0))  # tokens, by worker
