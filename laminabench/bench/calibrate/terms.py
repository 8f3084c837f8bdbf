"""What one core does for the engine: slices and their matrix products, attention of either kind."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping

import numpy as np
import torch
from torch import Tensor

from lamina.attention.worker import TensorWorker
from lamina.convert import Conversion
from lamina.convert.constants import weight_name
from lamina.convert.packing import is_matrix, linear, sizes
from lamina.kv import Arena, ArenaShape
from lamina.model import sampler
from lamina.model.prefill import CHUNK, causal
from laminabench.bench.calibrate.rounds import Point
from laminabench.bench.frame import seconds_of

# Rows of a step: requests that decode, or a chunk of a prompt.
ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256, CHUNK)
# The catalogue's names of matrices, by the model's own.
MATRICES = {
    **dict.fromkeys(("q_proj", "k_proj", "v_proj"), "qkv"),
    **dict.fromkeys(("o_proj", "out_proj"), "o"),
    **dict.fromkeys(("gate_proj", "up_proj"), "gate_up"),
    "down_proj": "down",
    "fc1": "fc1",
    "fc2": "fc2",
}
HEAD = "lm_head"

REQUESTS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
KV_TOKENS = (16, 64, 256, 1024, 4096)
# Of batches of two lengths: how many requests, of which this share is long, the others an eighth as long.
SKEWED_REQUESTS = (8, 64)
LONG_SHARES = (0.125, 0.5)
SHORTER = 8
LEAST_SKEWED = 256
# Of a layer's keys and values; beyond it, less is measured.
MOST_KV_BYTES = 1 << 30

CHUNKS = (32, 128, CHUNK)
BEFORE = (0, 512, 1024, 2048, 4096)

# What the control reads, more than caches hold, and the rows it multiplies.
CONTROL_BYTES = 64 << 20
CONTROL_ROWS = 4


class Model:
    """All slices as a worker runs them, one after the other, then the same matrix products by themselves.

    Attention is left out: what it would give is the queries.
    """

    name, share, columns = "slices and matrix products", 0.55, ROWS

    def __init__(self, conversion: Conversion, original: torch.nn.Module) -> None:
        self._slices = conversion.bind(original, q_first=False)
        self._vocab = conversion.vocab_size
        self.products = list(self._products(conversion))

    def _products(self, conversion: Conversion) -> Iterator[tuple[str, Tensor]]:
        """Each weight that rows are multiplied with, in the engine's order, under its matrix' name."""
        for piece, bound in zip(conversion.slices, self._slices, strict=True):
            for numbers, weight in zip(bound.made_of, bound.weights, strict=True):
                if not is_matrix(weight):
                    continue
                # Those that are one product are of one matrix of the catalogue.
                called = weight_name(conversion.constants, piece.weights[numbers[0]])
                matrix = next((ours for theirs, ours in MATRICES.items() if theirs in called), None)
                if matrix is None and bound is self._slices[-1] and sizes(weight)[0] == self._vocab:
                    matrix = HEAD
                if matrix is not None:
                    yield matrix, weight

    @torch.inference_mode()
    def measure(self, column: int) -> Mapping[Point, float]:
        slices = self._run(column)
        products = dict.fromkeys((name for name, _ in self.products), 0.0)
        widths = {sizes(weight)[1] for _, weight in self.products}
        inputs = {width: _drawn(column, width) for width in widths}
        for name, weight in self.products:
            x = inputs[sizes(weight)[1]]
            products[name] += seconds_of(lambda x=x, weight=weight: linear(x, weight))  # type: ignore[misc]
        found: dict[Point, float] = {(name, column): took for name, took in slices.items()}
        found |= {(f"gemm {name}", column): took for name, took in products.items()}
        found["step", column] = sum(slices.values())
        # Of the same moment, so that a noisy one does not look like small operators.
        found["rest", column] = max(slices["slices"] - sum(products.values()), 0.0)
        return found

    def _run(self, rows: int) -> dict[str, float]:
        context: tuple[Tensor, ...] = (torch.randint(self._vocab, (rows,)), torch.full((rows,), 100))
        attended: Tensor | None = None
        *between, last = self._slices
        started = time.perf_counter()
        for piece in between:
            attended, state = piece.query(context, attended)
            *_, state = piece.keyvalue(state)
            context = piece.rest(state)
        logits = last.logits(context, attended)
        made = time.perf_counter()
        sampler.choose(logits, _greedy(rows))
        return {"slices": made - started, "sampler": time.perf_counter() - made}


class Decode:
    """A layer of decode attention by one thread, of keys and values that no cache holds."""

    name, share = "decode attention", 0.25

    def __init__(self, conversion: Conversion, free_bytes: float) -> None:
        op = self._op = conversion.attentions[0]
        shape = ArenaShape(1, op.kv_heads, op.head_dim, conversion.dtype, op.latent)
        most = shape.tokens_in(int(min(MOST_KV_BYTES, free_bytes / 4)))
        self.columns = [k for k in KV_TOKENS if k * REQUESTS[-1] <= most] or [KV_TOKENS[0]]
        arena = Arena(shape, REQUESTS[-1] * self.columns[-1])
        arena.fill()
        self.storage = arena.spaces[0].storage
        heads = op.heads, op.kv_heads, op.head_dim, op.latent
        self.worker = TensorWorker(conversion.dtype, *heads, threads=1)
        self._vectors = shape.vectors
        self._layer = self.worker.add_layer(
            arena.keys(0), arena.values(0), scale=op.scale, window=op.window, softcap=op.softcap
        )
        self._slots, self._next = arena.capacity, 0

    @torch.inference_mode()
    def measure(self, column: int) -> Mapping[Point, float]:
        found: dict[Point, float] = {
            ("decode", n, column): self._attend(np.full(n, column)) for n in REQUESTS
        }
        if column >= LEAST_SKEWED:
            for n in SKEWED_REQUESTS:
                for share in LONG_SHARES:
                    long = round(share * n)
                    lengths = np.where(np.arange(n) < long, column, column // SHORTER)
                    found["skew", n, long, column] = self._attend(lengths)
        return found

    def _attend(self, lengths: np.ndarray) -> float:
        offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
        tokens, requests, op = int(offsets[-1]), len(lengths), self._op
        # On, so that what was read last is not read again.
        if self._next + tokens > self._slots:
            self._next = 0
        slots = np.arange(self._next, self._next + tokens, dtype=np.int32)
        self._next += tokens
        self.worker.plan_lists(offsets, slots)
        q = _drawn(requests, op.heads, op.head_dim).to(self.storage.dtype)
        kv = _drawn(self._vectors, requests, op.kv_heads, op.head_dim).to(self.storage.dtype)
        return seconds_of(lambda: self.worker.run(self._layer, q, *kv))


class Prompts:
    """A layer of a chunk's attention, as the engine computes prompts."""

    name, share, columns = "attention of prompts", 0.2, BEFORE

    def __init__(self, conversion: Conversion) -> None:
        self._op = conversion.attentions[0]

    @torch.inference_mode()
    def measure(self, column: int) -> Mapping[Point, float]:
        op = self._op
        found: dict[Point, float] = {}
        for chunk in CHUNKS:
            q = _drawn(chunk, op.heads, op.head_dim)
            keys, values = (_drawn(column + chunk, op.kv_heads, op.head_dim) for _ in "kv")
            found["prompt", chunk, column] = seconds_of(
                lambda q=q, keys=keys, values=values[..., : op.value_dim]: causal(  # type: ignore[misc]
                    q, keys, values, op
                )
            )
        return found


class Control:
    """The same work again and again, reading memory and a matrix product: it should take the same time."""

    def __init__(self, model: Model, decode: Decode) -> None:
        self._worker, self._storage = decode.worker, decode.storage
        self._bytes = min(CONTROL_BYTES, self._storage.numel() * self._storage.element_size())
        self._weight = max((weight for _, weight in model.products), key=lambda weight: weight.numel())
        self._x = _drawn(CONTROL_ROWS, sizes(self._weight)[1])
        self.bandwidths: list[float] = []  # bytes/s

    @torch.inference_mode()
    def __call__(self) -> float:
        self.bandwidths.append(self._worker.native.read_bandwidth(self._storage.data_ptr(), self._bytes))
        return self._bytes / self.bandwidths[-1] + seconds_of(lambda: linear(self._x, self._weight))


def _drawn(*sizes: int) -> Tensor:
    # Drawn once and repeated: only that they are numbers matters, and drawing takes longer than computing.
    count = math.prod(sizes)
    return torch.randn(min(count, 1 << 12)).repeat(-(-count // (1 << 12)))[:count].view(sizes).bfloat16()


def _greedy(rows: int) -> sampler.Wishes:
    zeros = np.zeros(rows, np.int64)
    ones = np.ones(rows, np.float32)
    return sampler.Wishes(ones * 0, zeros, ones, zeros.astype(np.uint64), zeros)
