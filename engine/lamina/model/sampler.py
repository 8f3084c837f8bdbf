"""The next token of every sequence of a batch, a whole batch at a time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import numpy as np
import torch
from numpy.typing import NDArray

from lamina._native import Rowwise

# Below it the likeliest token has all the probability that a float can show: greedy in effect, so argmax.
LEAST_TEMPERATURE = 1e-5


@dataclass(frozen=True)
class Wishes:
    """Sampling parameters, one row a sequence."""

    temperature: NDArray[np.float32]
    top_k: NDArray[np.int64]
    top_p: NDArray[np.float32]
    seed: NDArray[np.uint64]
    made: NDArray[np.int64]  # tokens made so far: a sequence's draws are numbered by them


def choose(logits: torch.Tensor, wishes: Wishes) -> torch.Tensor:
    """Return one token for each row of logits [B, vocab]: the likeliest, or drawn."""
    tokens = likeliest(logits)
    drawing = np.flatnonzero(wishes.temperature > LEAST_TEMPERATURE)
    if drawing.size:
        rows = torch.from_numpy(drawing).to(logits.device)
        tokens[rows] = _draw(logits[rows].float(), wishes, drawing)
    return tokens


def likeliest(logits: torch.Tensor) -> torch.Tensor:
    """Return the first of each row's largest numbers, as argmax gives, in a tenth of its time on a CPU."""
    choose_native = _choosing(logits.dtype) if logits.device.type == "cpu" else None
    if choose_native is None:
        return logits.argmax(dim=-1)
    logits = logits.contiguous()
    rows, vocab = logits.shape
    tokens = torch.empty(rows, dtype=torch.int64)
    choose_native(logits.data_ptr(), tokens.data_ptr(), rows, vocab)
    return tokens


@cache
def _choosing(dtype: torch.dtype) -> Callable[[int, int, int, int], None] | None:
    """Sample by native code: it has data_ptr() of logits and tokens, and how many there are."""
    if dtype not in (torch.float32, torch.bfloat16, torch.float16):
        return None
    return Rowwise(str(dtype).removeprefix("torch.")).choose


def _draw(logits: torch.Tensor, wishes: Wishes, rows: NDArray[np.int64]) -> torch.Tensor:
    """Walk along the vocabulary until the allowed tokens' probability exceeds a random share of it.

    Always in the vocabulary's order, so that what a seed gives does not depend on how the set of allowed
    tokens was determined.
    """
    device = logits.device
    temperature = torch.from_numpy(wishes.temperature[rows]).to(device)[:, None]
    # From the likeliest downwards: nothing overflows however small the temperature is.
    scaled = (logits - logits.amax(dim=-1, keepdim=True)) / temperature
    _keep_top_k(scaled, wishes.top_k[rows])
    probability = torch.softmax(scaled, dim=-1)
    _keep_top_p(probability, wishes.top_p[rows])
    mass = probability.double().cumsum(dim=-1)
    share = torch.from_numpy(uniform(wishes.seed[rows], wishes.made[rows])).to(device)
    # The first token whose mass is beyond the share: never one without mass of its own.
    target = share[:, None] * mass[:, -1:]
    return torch.searchsorted(mass, target, right=True)[:, 0].clamp_(max=logits.shape[-1] - 1)


def _keep_top_k(scaled: torch.Tensor, top_k: NDArray[np.int64]) -> None:
    """Make all but the k likeliest impossible, in place; what ties with the k-th stays."""
    vocab = scaled.shape[-1]
    limited = np.flatnonzero((top_k > 0) & (top_k < vocab))
    if not limited.size:
        return
    rows = torch.from_numpy(limited).to(scaled.device)
    k = torch.from_numpy(top_k[limited]).to(scaled.device)
    best = scaled[rows].topk(int(top_k[limited].max()), dim=-1).values
    least = best.gather(1, k[:, None] - 1)
    scaled[rows] = scaled[rows].masked_fill(scaled[rows] < least, -torch.inf)


def _keep_top_p(probability: torch.Tensor, top_p: NDArray[np.float32]) -> None:
    """Make all but the smallest likeliest set of mass top_p impossible, in place; what ties with it stays."""
    limited = np.flatnonzero(top_p < 1)
    if not limited.size:
        return
    rows = torch.from_numpy(limited).to(probability.device)
    ranked = probability[rows].sort(dim=-1, descending=True).values
    before = ranked.cumsum(dim=-1) - ranked
    within = before < torch.from_numpy(top_p[limited]).to(probability.device)[:, None]
    least = ranked.gather(1, within.sum(dim=-1, keepdim=True).clamp_(min=1) - 1)
    probability[rows] = probability[rows].masked_fill(probability[rows] < least, 0)


def uniform(seed: NDArray[np.uint64], number: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return the number-th draw of each seed's stream, from [0, 1): hashed, so that no generator state is
    stored.
    """
    step = np.uint64(0x9E3779B97F4A7C15)
    mixed = _mixed(seed + step) + (number.astype(np.uint64) + np.uint64(1)) * step
    return (_mixed(mixed) >> np.uint64(11)).astype(np.float64) / float(1 << 53)


def _mixed(bits: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Apply the finaliser of SplitMix64 (Steele, Lea and Flood, 2014): every bit in moves every bit out."""
    bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return bits ^ (bits >> np.uint64(31))
