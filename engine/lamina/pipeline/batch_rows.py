"""A batch as model workers know it: columns, one row a sequence; and what comes of its iterations."""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec
import numpy as np
import torch

from lamina.model import sampler
from lamina.pipeline.batch_delta import NO_LOGPROBS, BatchDelta, Floats, Ints, Joined, places_of, staying


class Revealed(msgspec.Struct, frozen=True):
    """Log-probabilities, the model's own, for the rows that ask for those of their tokens."""

    rows: Ints
    chosen: Floats  # of the token that was chosen
    tokens: Ints  # [rows, most], the likeliest ones first
    logs: Floats  # theirs


@dataclass(frozen=True)
class Choice:
    """The next token of every row of a batch."""

    tokens: Ints
    revealed: Revealed | None = None


@dataclass
class Spent:
    """Where the time of an iteration went, in seconds; none of it is the caller's own work."""

    prefill_s: float = 0.0
    model_s: float = 0.0
    attention_s: float = 0.0
    sampling_s: float = 0.0
    waited_s: float = 0.0  # for workers elsewhere, which did all this meanwhile


@dataclass
class Landed:
    """An iteration's tokens."""

    choice: Choice
    spent: Spent
    ended_s: float  # time.monotonic() when the tokens were there
    failed: dict[int, str] = field(default_factory=dict)  # sequences whose prompt could not be computed


class BatchRows:
    """The sequences of one batch, in the order in which they joined."""

    def __init__(self) -> None:
        self.columns = Joined()

    def __len__(self) -> int:
        return len(self.columns)

    def apply(self, delta: BatchDelta) -> None:
        """Beams swap what they continue, some sequences leave, some join."""
        rows = self.columns
        if len(delta.renamed):
            old, new, tokens = delta.renamed.T
            places = places_of(old, rows.name)
            rows = msgspec.structs.replace(rows, name=rows.name.copy(), token=rows.token.copy())
            rows.name[places], rows.token[places] = new, tokens
        if delta.left.size:
            rows = rows.where(staying(rows.name, delta.left))
        self.columns = rows.with_rows(delta.joined) if len(delta.joined) else rows

    def advance(self, tokens: Ints | None) -> None:
        """An iteration has run. Where the next one does not begin, its tokens need not be known."""
        rows = self.columns
        token = rows.token if tokens is None else tokens
        self.columns = msgspec.structs.replace(
            rows, position=rows.position + 1, made=rows.made + 1, token=token
        )

    def choose(self, logits: torch.Tensor) -> Choice:
        """From logits [rows, vocab]."""
        rows = self.columns
        wishes = sampler.Wishes(rows.temperature, rows.top_k, rows.top_p, rows.seed, rows.made)
        tokens = sampler.choose(logits, wishes)
        asked = np.flatnonzero(rows.most != NO_LOGPROBS)
        revealed = _reveal(logits, tokens, asked, int(rows.most[asked].max())) if asked.size else None
        return Choice(tokens.cpu().numpy(), revealed)


def _reveal(logits: torch.Tensor, tokens: torch.Tensor, asked: Ints, most: int) -> Revealed:
    places = torch.from_numpy(asked).to(logits.device)
    logs = torch.log_softmax(logits[places].float(), dim=-1)
    top = logs.topk(min(most, logs.shape[-1]), dim=-1)
    chosen = logs.gather(1, tokens[places][:, None])[:, 0]
    return Revealed(asked, chosen.cpu().numpy(), top.indices.cpu().numpy(), top.values.cpu().numpy())
