"""A batch as those know it who choose its tokens: columns, one row a sequence."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from lamina.model import sampler
from lamina.pipeline.batch_delta import NO_LOGPROBS, BatchDelta, Ints, Joined, places_of, staying


@dataclass(frozen=True)
class Revealed:
    """What the rows that ask are told of their tokens: log-probabilities, the model's own."""

    rows: Ints
    chosen: NDArray[np.float32]  # of the token that was chosen
    tokens: Ints  # [rows, most], the likeliest ones first
    logs: NDArray[np.float32]  # theirs


@dataclass(frozen=True)
class Choice:
    """The next token of every row of a batch."""

    tokens: Ints
    revealed: Revealed | None = None


class BatchRows:
    """The sequences of one batch, in the order in which they joined."""

    def __init__(self) -> None:
        self._rows = Joined()

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def names(self) -> Ints:
        return self._rows.name

    @property
    def pools(self) -> Ints:
        """The attention worker that has each, where they have whole requests."""
        return self._rows.pool

    @property
    def tokens(self) -> Ints:
        """What the next iteration begins with."""
        return self._rows.token

    @property
    def positions(self) -> Ints:
        return self._rows.position

    def apply(self, delta: BatchDelta) -> None:
        """Beams swap what they continue, some leave, some join."""
        rows = self._rows
        if len(delta.renamed):
            old, new, tokens = delta.renamed.T
            places = places_of(old, rows.name)
            rows.name = rows.name.copy()
            rows.token = rows.token.copy()
            rows.name[places], rows.token[places] = new, tokens
        if delta.left.size:
            rows = rows.where(staying(rows.name, delta.left))
        if len(delta.joined):
            rows = Joined(
                *(
                    np.concatenate([mine, new])
                    for mine, new in zip(_columns(rows), _columns(delta.joined), strict=True)
                )
            )
        self._rows = rows

    def advance(self, tokens: Ints | None) -> None:
        """An iteration has run. Who does not begin the next one need not know the tokens."""
        self._rows.position = self._rows.position + 1
        self._rows.made = self._rows.made + 1
        if tokens is not None:
            self._rows.token = tokens

    def choose(self, logits: torch.Tensor) -> Choice:
        """From logits [rows, vocab]."""
        rows = self._rows
        wishes = sampler.Wishes(rows.temperature, rows.top_k, rows.top_p, rows.seed, rows.made)
        tokens = sampler.choose(logits, wishes)
        asked = np.flatnonzero(rows.most != NO_LOGPROBS)
        revealed = _reveal(logits, tokens, asked, int(rows.most[asked].max())) if asked.size else None
        return Choice(tokens.cpu().numpy(), revealed)


def _columns(rows: Joined) -> list[NDArray[np.generic]]:
    return list(vars(rows).values())


def _reveal(logits: torch.Tensor, tokens: torch.Tensor, asked: NDArray[np.intp], most: int) -> Revealed:
    places = torch.from_numpy(asked).to(logits.device)
    logs = torch.log_softmax(logits[places].float(), dim=-1)
    top = logs.topk(min(most, logs.shape[-1]), dim=-1)
    chosen = logs.gather(1, tokens[places][:, None])[:, 0]
    return Revealed(
        asked.astype(np.int64), chosen.cpu().numpy(), top.indices.cpu().numpy(), top.values.cpu().numpy()
    )
