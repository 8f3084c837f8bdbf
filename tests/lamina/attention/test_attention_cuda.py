"""The CUDA attention worker beside attention in fp64 where there is a GPU; its words where there is none."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from plain_attention import plain_partial
from torch import Tensor

from lamina import cuda_library, gpu
from lamina.attention.cuda import CudaAttentionWorker, _Arena, _Attention, _Lists, _Partial, _Workspace
from lamina.attention.heads import AttentionLayer
from lamina.cuda_library import CudaError

on_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device for torch here")
# fp16 and bf16 round the softmax's weights before they meet the values.
TOLERANCE = {torch.float32: 1e-4, torch.float16: 3e-3, torch.bfloat16: 2e-2}


@pytest.fixture
def library() -> Iterator[ctypes.CDLL]:
    """The compiled kernels; without them, where there was no nvcc, the test is skipped."""
    try:
        yield cuda_library.library()
    except CudaError as missing:
        pytest.skip(str(missing))


@dataclass
class Case:
    dtype: torch.dtype = torch.bfloat16
    heads: int = 8
    kv_heads: int = 2
    head_dim: int = 128
    lengths: tuple[int, ...] = (300, 1, 64, 0, 2, 1000, 65)
    window: int = 0
    softcap: float = 0.0
    latent: int = 0

    @property
    def value_dim(self) -> int:
        return self.latent or self.head_dim

    @property
    def scale(self) -> float:
        return 1 / math.sqrt(self.head_dim)


class World:
    """Lists, an arena with K and V interleaved as the engine has it, and a worker on it."""

    def __init__(self, case: Case, lengths: tuple[int, ...], rows: int | None = None) -> None:
        self.case = case
        self.random = np.random.default_rng(len(lengths))
        torch.manual_seed(sum(lengths))
        self.tokens = max(sum(case.lengths), sum(lengths))
        shape = (self.tokens + 7, 1 if case.latent else 2, case.kv_heads, case.head_dim)
        self.arena = torch.randn(shape, device="cuda").to(case.dtype)
        self.worker = CudaAttentionWorker(
            case.dtype,
            case.heads,
            case.kv_heads,
            case.head_dim,
            case.latent,
            max_batch=max(len(lengths), rows or 0),
            max_tokens=[self.tokens],
        )
        values = self.arena[:, -1, :, : case.value_dim]
        self.layer = self.worker.add_layer(
            AttentionLayer(self.arena[:, 0], values, case.scale, case.window, case.softcap)
        )
        self.rows = rows or len(lengths)
        self.plan(lengths)

    def plan(self, lengths: tuple[int, ...]) -> None:
        self.offsets = np.cumsum([0, *lengths])
        slots = self.random.permutation(self.tokens + 7)[: self.offsets[-1]].astype(np.int32)
        self.slots = torch.from_numpy(slots).long().cuda()
        self.worker.plan_lists(self.offsets, slots, self.rows)

    def draw(self, heads: int) -> Tensor:
        return torch.randn((self.rows, heads, self.case.head_dim), device="cuda").to(self.case.dtype)

    def draw_kv(self) -> list[Tensor]:
        return [self.draw(self.case.kv_heads) for _ in range(1 if self.case.latent else 2)]

    def reference(self, q: Tensor, newest: bool) -> tuple[Tensor, Tensor]:
        """As the textbook has it, from what is in the arena now."""
        case = self.case
        out = torch.zeros((self.rows, case.heads, case.value_dim), dtype=torch.float64, device="cuda")
        lse = torch.full(out.shape[:2], -math.inf, dtype=torch.float64, device="cuda")
        for row in range(len(self.offsets) - 1):
            observed = self.slots[self.offsets[row] : self.offsets[row + 1]]
            first = max(len(observed) - case.window, 0) if case.window else 0
            rows = self.arena[observed[first : len(observed) if newest else -1]].double()
            k, v = rows[:, 0], rows[:, -1, :, : case.value_dim]
            out[row], lse[row] = plain_partial(q[row].double(), k, v, scale=case.scale, softcap=case.softcap)
        return out, lse


def close(result: Tensor, expected: Tensor, tolerance: float) -> None:
    torch.testing.assert_close(result.double(), expected, rtol=tolerance, atol=tolerance)


HEADS = {"gqa": (32, 4), "gqa-16": (24, 2), "mha": (8, 8), "mqa": (20, 1), "odd": (15, 3)}
CASES = {
    **{f"{name}-{dtype}": Case(dtype, *HEADS[name]) for name in HEADS for dtype in TOLERANCE},
    **{f"dim-{dim}": Case(head_dim=dim) for dim in (16, 64, 80, 96, 112, 160, 192, 256)},
    **{f"dim-{dim}-fp32": Case(torch.float32, head_dim=dim) for dim in (64, 80, 256)},
    **{f"window-{window}": Case(window=window) for window in (1, 2, 64, 65, 128, 5000)},
    **{
        f"latent-{name}-{dtype}": Case(dtype, heads, 1, head_dim, latent=latent)
        for name, heads, head_dim, latent in (
            ("v3", 128, 576, 512),
            ("v2-lite", 16, 576, 512),
            ("minicpm3", 40, 288, 256),
            ("small", 3, 48, 32),
        )
        for dtype in TOLERANCE
    },
    "latent-window": Case(heads=128, kv_heads=1, head_dim=576, latent=512, window=100),
    "latent-one-long": Case(heads=128, kv_heads=1, head_dim=576, latent=512, lengths=(40_000,)),
    "softcap": Case(softcap=30.0),
    "softcap-window-fp16": Case(torch.float16, window=100, softcap=5.0),
    "one-long": Case(lengths=(40_000,)),
    "many-short": Case(lengths=tuple(range(300))),
    "more-than-a-planning-block": Case(lengths=(3,) * 1500),
    "all-empty": Case(lengths=(0, 0)),
}


@on_gpu
@pytest.mark.parametrize("name", CASES)
def test_begin_and_finish_are_attention(name: str) -> None:
    case = CASES[name]
    world = World(case, case.lengths)
    q, kv = world.draw(case.heads), world.draw_kv()
    for _ in range(2):  # as two layers would: the second finds the workspace as the first leaves it
        world.worker.begin(world.layer, q)
        previous, previous_lse = world.reference(q, newest=False)
        close(world.worker._out[: world.rows], previous, TOLERANCE[case.dtype])
        close(world.worker._lse[: world.rows], previous_lse, 1e-4)
        result = world.worker.finish(world.layer, *kv)
        # The reference sees the new tokens only if they have been stored.
        close(result, world.reference(q, newest=True)[0], 2 * TOLERANCE[case.dtype])


@on_gpu
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
def test_partials_over_parts_combine_to_the_whole(dtype: torch.dtype) -> None:
    case = Case(dtype, lengths=(400, 33, 2))
    world = World(case, case.lengths)
    q = world.draw(case.heads)
    whole = world.worker.partial(world.layer, q)
    expected = world.reference(q, newest=True)
    close(whole[0], expected[0], TOLERANCE[dtype])
    close(whole[1], expected[1], 1e-4)
    halves = []
    for half in (0, 1):
        parts = [np.arange(a, b)[half::2] for a, b in zip(world.offsets[:-1], world.offsets[1:], strict=True)]
        slots = world.slots.cpu().numpy()[np.concatenate(parts)].astype(np.int32)
        world.worker.plan_lists(np.cumsum([0, *map(len, parts)]), slots)
        halves.append(world.worker.partial(world.layer, q))
    joined = world.worker.combine(*halves)
    close(joined[0], expected[0], TOLERANCE[dtype])
    close(joined[1], expected[1], 1e-4)


@on_gpu
def test_append_stores_rows_in_their_slots() -> None:
    case = Case(lengths=(10,))
    world = World(case, case.lengths)
    before = world.arena.clone()
    slots = np.array([3, -1, 11], np.int32)
    k, v = (torch.randn((3, case.kv_heads, case.head_dim), device="cuda").to(case.dtype) for _ in range(2))
    world.worker.append(world.layer, slots, k, v)
    for row, slot in ((0, 3), (2, 11)):
        before[slot, 0], before[slot, 1] = k[row], v[row]
    assert torch.equal(world.arena, before)


@on_gpu
@pytest.mark.parametrize("window", [0, 100])
def test_a_captured_graph_serves_other_lengths(window: int) -> None:
    case = Case(window=window, lengths=(700, 20, 64, 3))
    world = World(case, case.lengths, rows=6)
    q, k, v = world.draw(case.heads), world.draw(case.kv_heads), world.draw(case.kv_heads)
    world.worker.run(world.layer, q, k, v)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = world.worker.run(world.layer, q, k, v)
    for lengths in (case.lengths, (1, 5, 700, 81), (2, 2), (100, 90, 80, 70, 60, 50), ()):
        world.plan(lengths)
        q.copy_(world.draw(case.heads))
        graph.replay()
        close(out, world.reference(q, newest=True)[0], 2 * TOLERANCE[case.dtype])


@on_gpu
@pytest.mark.parametrize("captured", [False, True])
def test_attention_runs_concurrently_with_other_kernels(captured: bool) -> None:
    case = Case(lengths=(700, 20, 64, 3))
    world = World(case, case.lengths)
    worker, layer = world.worker, world.layer
    q, k, v = world.draw(case.heads), world.draw(case.kv_heads), world.draw(case.kv_heads)
    expected = worker.run(layer, q, k, v)
    worker._side = gpu.SideStream(worker.device)

    def run() -> Tensor:
        worker.begin(layer, q)
        meanwhile = (k.double() * 1).to(k.dtype)  # behind which k would come too late on one stream
        return worker.finish(layer, meanwhile, v)

    result = run()
    if captured:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            result = run()
        graph.replay()
    assert torch.equal(result, expected)


@on_gpu
def test_a_request_does_not_depend_on_arrival_order() -> None:
    case = Case(lengths=(5000, 3000))
    world = World(case, case.lengths)
    q = world.draw(case.heads)
    first = world.worker.partial(world.layer, q)[0]
    assert all(torch.equal(world.worker.partial(world.layer, q)[0], first) for _ in range(20))


@pytest.mark.usefixtures("library")
@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device here")
def test_without_a_device_it_says_so_in_a_sentence() -> None:
    with pytest.raises(CudaError, match=r"cuda-(failed|torch-without)"):
        CudaAttentionWorker(torch.bfloat16, 8, 2, 128, max_batch=4, max_tokens=[100])


def test_a_missing_library_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAMINA_CUDA_LIBRARY", "/nowhere/liblamina_cuda.so")
    cuda_library.library.cache_clear()
    with pytest.raises(CudaError, match="cuda-no-library"):
        gpu.require()
    cuda_library.library.cache_clear()


@pytest.mark.usefixtures("library")
@pytest.mark.parametrize(
    ("numbers", "sentence"),
    [
        ((2, 8, 3, 128, 1.0, 0.0, 0), "not a multiple of kv_heads"),
        ((2, 8, 2, 100, 1.0, 0.0, 0), "multiple of 16 between 16 and 256"),
        ((2, 8, 2, 272, 1.0, 0.0, 0), "multiple of 16 between 16 and 256"),
        ((7, 8, 2, 128, 1.0, 0.0, 0), "neither fp32 nor fp16 nor bf16"),
        ((2, 8, 2, 128, math.nan, 0.0, 0), "scale is not a finite number"),
        ((2, 8, 2, 128, 1.0, -1.0, 0), "soft_cap is neither 0 nor"),
        ((2, 8, 1, 592, 1.0, 0.0, 512), "multiple of 16 between 16 and 576"),
        ((2, 8, 1, 64, 1.0, 0.0, 80), "latent is not a multiple of 16 between 16 and head_dim"),
        ((2, 8, 1, 576, 1.0, 0.0, 528), "latent is not a multiple of 16 between 16 and head_dim, 512"),
        ((2, 8, 1, 576, 1.0, 0.0, -16), "latent is not a multiple of 16"),
    ],
)
def test_attention_that_makes_no_sense_is_refused(
    numbers: tuple[int, int, int, int, float, float, int], sentence: str
) -> None:
    with pytest.raises(ValueError, match=sentence):
        cuda_library.call("workspace_bytes", _Attention(*numbers), 4, ctypes.byref(ctypes.c_size_t()))


@pytest.mark.usefixtures("library")
@pytest.mark.parametrize(
    ("arena", "sentence"),
    [
        ((0, 256, 256, 128), "the arena is missing"),
        ((264, 256, 256, 128), "multiple of 16 bytes"),
        ((256, 256, 257, 128), "strides are not multiples of 16 bytes"),
        ((256, 256, 1 << 31, 128), "2 GiB apart"),
    ],
)
def test_an_arena_that_cannot_be_read_is_refused(arena: tuple[int, int, int, int], sentence: str) -> None:
    attention = _Attention(2, 8, 2, 128, 1.0, 0.0, 0)
    lists, workspace, partial = (
        _Lists(256, 256, 1),
        _Workspace(256, 256),
        _Partial(256, 256),
    )
    with pytest.raises(ValueError, match=sentence):
        cuda_library.call("begin", attention, _Arena(*arena), lists, 256, workspace, partial, None)


def test_tensors_of_another_type_are_refused() -> None:
    with pytest.raises(ValueError, match=r"dtype is torch.int8 but must be one of"):
        CudaAttentionWorker(torch.int8, 8, 2, 128, max_batch=4, max_tokens=[100])


@pytest.mark.usefixtures("emulated")
def test_lists_and_slots_are_staged(monkeypatch: pytest.MonkeyPatch) -> None:
    """A copy from pageable memory would wait for kernels that wait for other workers."""
    arena = torch.zeros(10, 2, 2, 16)
    worker = CudaAttentionWorker(torch.float32, 4, 2, 16, max_batch=2, max_tokens=[8])
    layer = worker.add_layer(AttentionLayer(arena[:, 0], arena[:, 1], 1.0))
    staged: list[int] = []
    monkeypatch.setattr(gpu, "staged", lambda one, _: staged.append(one.numel()) or one)
    monkeypatch.setattr(gpu, "put", lambda one, _: staged.append(one.numel()) or one)
    worker.plan_lists(np.array([0, 3, 8]), np.arange(8, dtype=np.int32))
    assert staged == [3, 8]
    k = torch.zeros(2, 2, 16)
    worker.append(layer, np.arange(2, dtype=np.int32), k, k)
    assert staged == [3, 8, 2]


@pytest.mark.usefixtures("emulated")
def test_a_gpu_that_others_use_too_gets_smaller_shares() -> None:
    """A block that finds no room at first then holds up a part of a share, and results are the same."""
    arena, q = torch.randn(490, 2, 2, 16), torch.randn(2, 4, 16)
    lengths, k, v = (390, 100), torch.randn(2, 2, 16), torch.randn(2, 2, 16)
    outputs, workers = [], []
    for shared in (False, True):
        worker = CudaAttentionWorker(torch.float32, 4, 2, 16, max_batch=2, max_tokens=[490], shared=shared)
        stored = arena.clone()
        layer = worker.add_layer(AttentionLayer(stored[:, 0], stored[:, 1], 0.25))
        worker.plan_lists(np.cumsum([0, *lengths]), np.arange(sum(lengths), dtype=np.int32))
        (workspace,) = worker._previous.values()
        workers.append(int(workspace[:16].view(torch.int32)[2]))  # of the plan's line
        outputs.append(worker.run(layer, q, k, v))
    alone, several = workers
    assert several == 4 * alone
    # One of the blocks that the GPU would run at once has no room: shares go to the others as they end.
    longest = [math.ceil(count / max(alone - 1, 1)) / count for count in workers]
    assert longest[1] < 0.8 * longest[0]
    torch.testing.assert_close(outputs[0], outputs[1])
