"""Beam search over one request: which continuations live on, and which are done."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from lamina.serve.sampling import Sampling

# The score of what must not win: far below any sum of log-probabilities, far from overflow.
HOPELESS = -1.0e9


@dataclass(frozen=True)
class Beam:
    """A finished continuation and its score, its log-probability divided by length ** length_penalty."""

    tokens: tuple[int, ...]
    score: float


class BeamSearch:
    """The beams of one request. Each step takes the live beams' likeliest tokens and decides which go on.

    The rules are those of transformers' generate(num_beams=...), so that results can be held against it: with
    k end tokens, max(2, 1 + k) times as many candidates as beams are looked at; of those that end, only the
    ones among the best `beams` count; the search stops when no live beam could still better the worst
    finished one.
    """

    def __init__(self, sampling: Sampling, stops: tuple[int, ...]) -> None:
        self._sampling = sampling
        self._stops = torch.tensor(stops, dtype=torch.int64)
        self._scores = torch.full((sampling.beams,), HOPELESS)
        self._scores[0] = 0.0  # all beams are the prompt yet: only one of them may be continued
        self.live: list[tuple[int, ...]] = [()] * sampling.beams  # what each beam has made
        self._finished: list[Beam] = []
        self._hopeful = True
        self.done = False

    @property
    def candidates(self) -> int:
        """Continuations that are looked at; of one beam no more of them can count."""
        return max(2, 1 + len(self._stops)) * self._sampling.beams

    def step(self, logs: NDArray[np.float32], likeliest: NDArray[np.int64]) -> tuple[list[int], list[int]]:
        """From each live beam's likeliest tokens, [beams, candidates] or all there are, and their
        log-probabilities: for each beam that lives on, its parent and its token.
        """
        beams = self._sampling.beams
        total = torch.from_numpy(logs) + self._scores[:, None]
        scores, places = total.view(-1).topk(self.candidates)
        parents = places // logs.shape[-1]
        tokens = torch.from_numpy(likeliest).view(-1)[places]
        length = len(self.live[0]) + 1
        ends = torch.isin(tokens, self._stops) | (length >= self._sampling.max_tokens)

        alive, kept = (scores + ends * HOPELESS).topk(beams)
        self._finish(scores, parents, tokens, ends, length)
        chosen = [(int(parents[i]), int(tokens[i])) for i in kept]
        self.live = [(*self.live[parent], token) for parent, token in chosen]
        self._scores = alive
        self._hopeful = self._hopeful and self._could_improve(length)
        self.done = not self._hopeful or self._full or bool(ends.all())
        return [parent for parent, _ in chosen], [token for _, token in chosen]

    def best(self, n: int) -> list[Beam]:
        """The n best, finished ones before those that still ran when the search was stopped."""
        length = max(1, len(self.live[0]))
        running = [
            Beam(tokens, self._normalised(float(score), length))
            for tokens, score in zip(self.live, self._scores, strict=True)
            if score > HOPELESS / 2
        ]
        return (self._finished + running)[:n]

    def _finish(
        self,
        scores: torch.Tensor,
        parents: torch.Tensor,
        tokens: torch.Tensor,
        ends: torch.Tensor,
        length: int,
    ) -> None:
        if self._full or not self._hopeful:
            return
        for rank in torch.nonzero(ends[: self._sampling.beams])[:, 0].tolist():
            sequence = (*self.live[int(parents[rank])], int(tokens[rank]))
            self._finished.append(Beam(sequence, self._normalised(float(scores[rank]), length)))
        # Stable: of equal scores the one that was there first stays first.
        self._finished.sort(key=lambda beam: -beam.score)
        del self._finished[self._sampling.beams :]

    @property
    def _full(self) -> bool:
        """Whether there are enough finished beams for a search that stops at the first ones."""
        return self._sampling.early_stopping is True and len(self._finished) == self._sampling.beams

    def _could_improve(self, length: int) -> bool:
        if len(self._finished) < self._sampling.beams:
            return True
        lasting = self._sampling.early_stopping == "never" and self._sampling.length_penalty > 0
        best = self._normalised(float(self._scores[0]), self._sampling.max_tokens if lasting else length)
        return best > self._finished[-1].score

    def _normalised(self, score: float, length: int) -> float:
        return score / math.pow(length, self._sampling.length_penalty)
