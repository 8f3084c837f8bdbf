"""The front end's side of prefill workers: which prompt was sent to which, and what has come of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from lamina.cluster.layout import Layout
from lamina.cluster.messages import Compute, Forget, KvStored, PrefillFailed
from lamina.cluster.worker_pool import WorkerPool
from lamina.model.prefill import CHUNK
from lamina.pipeline.batch_rows import NO_PARENT
from lamina.pipeline.prompt_calls import fitting


class PrefillRequest(NamedTuple):
    """A sequence whose KV is to be computed: that of its text from `shared` on."""

    name: int
    text: NDArray[np.int32]
    shared: int
    pool: int
    parent: int = NO_PARENT  # whose first tokens are shared

    @property
    def expected(self) -> tuple[int, int, int, int, int]:
        """The entry for attention workers: see BatchDelta."""
        return self.name, self.parent, self.shared, len(self.text), self.pool


@dataclass
class _Prompt:
    """One that is being computed, or is on its way."""

    worker: int
    tokens: int  # to be sent
    total: int  # to be computed
    lacking: set[int]  # workers that need its KV and do not have it


class PrefillDispatch:
    """A dispatcher of prompts to the prefill worker with the fewest tokens; notes when KV is there."""

    def __init__(self, workers: WorkerPool, layout: Layout) -> None:
        self._workers = workers
        self.clear(layout)

    def compute(self, request: PrefillRequest) -> None:
        attending = self._layout.attending
        to = range(len(attending)) if self._layout.partition == "heads" else [request.pool]
        worker = min(self._to_do, key=lambda number: self._to_do[number])
        tokens = len(request.text) - request.shared
        self._prompts[request.name] = _Prompt(
            worker, tokens, len(request.text), {attending[number] for number in to}
        )
        self._to_do[worker] += tokens
        job = Compute(request.name, request.text, request.shared, list(to))
        self._workers.send(worker, job, self._workers.patience([worker]))

    def forget(self, names: Iterable[int]) -> None:
        for name in names:
            if prompt := self._done_with(name):
                self._workers.send(prompt.worker, Forget(name), self._workers.patience([prompt.worker]))

    def news(self, *, wait: bool) -> dict[int, str | None]:
        """Return outcomes by name: None once all that need the KV have it, else why it failed; `wait` until
        there is one.
        """
        outcomes: dict[int, str | None] = {}
        deadline = self._workers.patience(range(self._layout.model_workers, self._layout.workers))
        while True:
            for number, stored in self._workers.received(KvStored):
                if prompt := self._prompts.get(stored.name):
                    prompt.lacking.discard(number)
                    if not prompt.lacking:
                        self._done_with(stored.name)
                        outcomes[stored.name] = None
            for _, failed in self._workers.received(PrefillFailed):
                # Of those that have been forgotten something may be on its way still.
                if self._done_with(failed.name):
                    outcomes[failed.name] = failed.why
            if outcomes or not wait:
                return outcomes
            self._workers.wait(next(iter(self._prompts.values())).worker, deadline)

    def computed_by(self, workers: Collection[int]) -> list[int]:
        """Return the names that these workers may be computing, or would next: for each the first one sent,
        and those that fit into a chunk with it.
        """
        computing: list[int] = []
        for worker in workers:
            own = [name for name, prompt in self._prompts.items() if prompt.worker == worker]
            fit = fitting([self._prompts[name].total for name in own], CHUNK)
            computing += [own[at] for at in sorted({0, *fit}) if own]
        return computing

    def _done_with(self, name: int) -> _Prompt | None:
        prompt = self._prompts.pop(name, None)
        if prompt:
            self._to_do[prompt.worker] -= prompt.tokens
        return prompt

    def clear(self, layout: Layout) -> None:
        """Reset: workers meet anew, and no prompt is being computed."""
        self._layout = layout
        self._prompts: dict[int, _Prompt] = {}
        self._to_do = Counter(dict.fromkeys(layout.prefilling, 0))  # tokens, by worker
