"""Terms measured on one device: slices and their matrix products, attention of decode and of prompts."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from functools import partial

import numpy as np
import torch
from torch import Tensor

from lamina import gpu
from lamina.attention.cpu import TensorWorker
from lamina.attention.cuda import CudaAttentionWorker
from lamina.attention.heads import AttentionLayer
from lamina.convert import Conversion
from lamina.convert.constants import weight_name
from lamina.convert.packing import is_matrix, linear, sizes
from lamina.kv import Arena, ArenaShape
from lamina.model import sampler
from lamina.model.prefill import CHUNK, causal
from laminabench.calibrate.clock import CORE, Clock
from laminabench.calibrate.rounds import Point

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
# Batches of two lengths: number of requests, the share of long ones, and how much shorter the others are.
SKEWED_REQUESTS = (8, 64)
LONG_SHARES = (0.125, 0.5)
SHORTER = 8
LEAST_SKEWED = 256
# Most keys and values to allocate; larger batches are not measured.
MOST_KV_BYTES = 1 << 30
# On a GPU, layers with separate KV follow one another, as in a model: a single layer that is read repeatedly
# would be read from the cache.
GPU_KV_TOKENS = (64, 256, 1024, 4096, 8192)
GPU_KV_LAYERS = 4
GPU_KV_SHARE = 0.6  # of free memory

CHUNKS = (32, 128, CHUNK)
BEFORE = (0, 512, 1024, 2048, 4096)

# Bytes that the control reads, more than caches hold, and rows that it multiplies.
CONTROL_BYTES = 64 << 20
CONTROL_ROWS = 4


class Model:
    """All slices as a worker runs them, one after the other, then the same matrix products by themselves.

    Attention is left out: its output is replaced by the queries. On a GPU the products of one matrix are
    timed together over all layers, as a weight that is multiplied again may be in the cache.
    """

    name, share, columns = "slices and matrix products", 0.55, ROWS

    def __init__(self, conversion: Conversion, original: torch.nn.Module, clock: Clock = CORE) -> None:
        self._slices = conversion.bind(original, device=clock.place, q_first=False)
        self._vocab, self._clock = conversion.vocab_size, clock
        self.products = [(name, [weight]) for name, weight in self._products(conversion)]
        if gpu.is_gpu(clock.device):
            by_matrix: dict[str, list[Tensor]] = {}
            for name, weights in self.products:
                by_matrix.setdefault(name, []).extend(weights)
            self.products = list(by_matrix.items())

    def _products(self, conversion: Conversion) -> Iterator[tuple[str, Tensor]]:
        """Yield each weight that rows are multiplied with, in the engine's order, under its matrix' name."""
        for piece, bound in zip(conversion.slices, self._slices, strict=True):
            for numbers, weight in zip(bound.made_of, bound.weights, strict=True):
                if not is_matrix(weight):
                    continue
                # Weights of one product belong to one matrix of the catalogue.
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
        widths = {sizes(weight)[1] for _, (weight, *_) in self.products}
        inputs = {width: _drawn(column, width).to(self._clock.place) for width in widths}
        for name, weights in self.products:
            x = inputs[sizes(weights[0])[1]]
            products[name] += self._clock.seconds(partial(_multiply, x, weights))
        points: dict[Point, float] = {(name, column): took for name, took in slices.items()}
        points |= {(f"gemm {name}", column): took for name, took in products.items()}
        points["step", column] = sum(slices.values())
        # Both from the same moment, so that noise does not look like small operators.
        points["rest", column] = max(slices["slices"] - sum(products.values()), 0.0)
        return points

    def _run(self, rows: int) -> dict[str, float]:
        place = self._clock.place
        first = torch.randint(self._vocab, (rows,), device=place), torch.full((rows,), 100, device=place)
        made: list[Tensor] = []

        def slices() -> None:
            context: tuple[Tensor, ...] = first
            attended: Tensor | None = None
            *between, last = self._slices
            for piece in between:
                attended, state = piece.query(context, attended)
                *_, state = piece.keyvalue(state)
                context = piece.rest(state)
            made[:] = [last.logits(context, attended)]

        taken = self._clock.seconds_of_many(slices)
        wishes = _greedy(rows)
        return {
            "slices": taken,
            "sampler": self._clock.seconds(lambda: sampler.choose(made[0], wishes)),
        }


class Decode:
    """A layer of decode attention, by one thread or a GPU, of keys and values that no cache holds."""

    name, share = "decode attention", 0.25

    def __init__(self, conversion: Conversion, free_bytes: float, clock: Clock = CORE) -> None:
        op = self._op = conversion.attentions[0]
        heads = op.heads, op.kv_heads, op.head_dim, op.latent
        self._clock, on_gpu = clock, gpu.is_gpu(clock.device)
        layers = GPU_KV_LAYERS if on_gpu else 1
        shape = ArenaShape(layers, op.kv_heads, op.head_dim, conversion.dtype, op.latent)
        room = GPU_KV_SHARE * free_bytes if on_gpu else min(MOST_KV_BYTES, free_bytes / 4)
        most, lengths = shape.tokens_in(int(room)), GPU_KV_TOKENS if on_gpu else KV_TOKENS
        self.columns = [k for k in lengths if k * REQUESTS[-1] <= most] or [lengths[0]]
        arena = Arena(shape, REQUESTS[-1] * self.columns[-1], device=clock.place)
        arena.fill()
        self.storage, self._slots, self._next = arena.spaces[0].storage, arena.capacity, 0
        self.worker: TensorWorker | CudaAttentionWorker
        if on_gpu:
            self.worker = CudaAttentionWorker(
                conversion.dtype,
                *heads,
                max_batch=REQUESTS[-1],
                max_tokens=[arena.capacity],
                device=clock.device,
            )
        else:
            self.worker = TensorWorker(conversion.dtype, *heads, threads=1)
        self._vectors = shape.vectors
        self._layers = [
            self.worker.add_layer(
                AttentionLayer(arena.keys(layer), arena.values(layer), op.scale, op.window, op.softcap)
            )
            for layer in range(layers)
        ]

    @torch.inference_mode()
    def measure(self, column: int) -> Mapping[Point, float]:
        points: dict[Point, float] = {
            ("decode", n, column): self._attend(np.full(n, column)) for n in REQUESTS
        }
        if column >= LEAST_SKEWED:
            for n in SKEWED_REQUESTS:
                for share in LONG_SHARES:
                    long = round(share * n)
                    lengths = np.where(np.arange(n) < long, column, column // SHORTER)
                    points["skew", n, long, column] = self._attend(lengths)
        return points

    def _attend(self, lengths: np.ndarray) -> float:
        offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
        tokens, requests, op = int(offsets[-1]), len(lengths), self._op
        # Move on, so that the slots read last are not read again from the cache.
        if self._next + tokens > self._slots:
            self._next = 0
        slots = np.arange(self._next, self._next + tokens, dtype=np.int32)
        self._next += tokens
        self.worker.plan_lists(offsets, slots)
        q = _drawn(requests, op.heads, op.head_dim).to(self.storage)
        kv = _drawn(self._vectors, requests, op.kv_heads, op.head_dim).to(self.storage)

        def layers() -> None:
            for layer in self._layers:
                self.worker.run(layer, q, *kv)

        return self._clock.seconds(layers) / len(self._layers)


class Prompts:
    """A layer of a chunk's attention, as the engine computes prompts."""

    name, share, columns = "attention of prompts", 0.2, BEFORE

    def __init__(self, conversion: Conversion, clock: Clock = CORE) -> None:
        self._op, self._clock = conversion.attentions[0], clock

    @torch.inference_mode()
    def measure(self, column: int) -> Mapping[Point, float]:
        op = self._op
        points: dict[Point, float] = {}
        for chunk in CHUNKS:
            q = _drawn(chunk, op.heads, op.head_dim).to(self._clock.place)
            keys, values = (
                _drawn(column + chunk, op.kv_heads, op.head_dim).to(self._clock.place) for _ in "kv"
            )
            points["prompt", chunk, column] = self._clock.seconds(
                partial(causal, q, keys, values[..., : op.value_dim], op)
            )
        return points


class Control:
    """A fixed piece of a core's work, reading and a matrix product, whose time should not change."""

    def __init__(self, model: Model, decode: Decode) -> None:
        assert isinstance(decode.worker, TensorWorker)
        self._worker, self._storage = decode.worker, decode.storage
        self.isa = decode.worker.native.isa
        self._bytes = min(CONTROL_BYTES, self._storage.numel() * self._storage.element_size())
        self._weight = max((weight for _, (weight, *_) in model.products), key=lambda weight: weight.numel())
        self._x = _drawn(CONTROL_ROWS, sizes(self._weight)[1])
        self.bandwidths: list[float] = []  # bytes/s

    @torch.inference_mode()
    def __call__(self) -> float:
        self.bandwidths.append(self._worker.native.read_bandwidth(self._storage.data_ptr(), self._bytes))
        return self._bytes / self.bandwidths[-1] + CORE.seconds(lambda: linear(self._x, self._weight))


def _multiply(x: Tensor, weights: Sequence[Tensor]) -> None:
    for weight in weights:
        linear(x, weight)


def _drawn(*sizes: int) -> Tensor:
    # Drawn once and repeated: the values do not matter, and drawing takes longer than computing.
    count = math.prod(sizes)
    return torch.randn(min(count, 1 << 12)).repeat(-(-count // (1 << 12)))[:count].view(sizes).bfloat16()


def _greedy(rows: int) -> sampler.Wishes:
    zeros = np.zeros(rows, np.int64)
    ones = np.ones(rows, np.float32)
    return sampler.Wishes(ones * 0, zeros, ones, zeros.astype(np.uint64), zeros)
