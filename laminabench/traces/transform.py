"""Transforms of a trace (cut, thin, rescale) before a replay, always in the same order."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from msgspec.structs import replace

from laminabench.traces.table import MAX_SPAN_S, MAX_TOKENS, Float64, Int32, Int64, Trace
from laminabench.util.errors import UserError

# A request a nanosecond.
MAX_RATE_PER_S = 1e9


@dataclass(frozen=True, slots=True)
class Transforms:
    """Transforms of a trace, applied in the order of the fields, whatever the order of the flags."""

    window_s: tuple[float, float] | None = None
    scale_lengths: float = 1.0
    max_prompt: int | None = None
    max_output: int | None = None
    too_long: Literal["truncate", "drop"] = "truncate"
    sample: int | None = None
    num_requests: int | None = None
    request_rate: float | None = None
    burstiness: float = 1.0
    rate_scale: float = 1.0
    seed: int = 0

    def apply(self, trace: Trace) -> Trace:
        """Return the transformed trace; its notes list the changes."""
        trace = self._window(trace)
        trace = self._scale(trace)
        trace = self._limit(trace)
        trace = self._sample(trace)
        if self.num_requests is not None:
            trace = trace.first(self.num_requests)
        return self._arrivals(trace)

    def prefix_needed(self) -> int | None:
        """Return how many leading requests can matter; None when all of them do."""
        if self.window_s is None and self.sample is None and self.too_long != "drop":
            return self.num_requests
        return None

    def _window(self, trace: Trace) -> Trace:
        if self.window_s is None:
            return trace
        if not trace.meta.has_arrivals:
            raise UserError(
                "trace-no-arrivals",
                f"--window needs arrival times and {trace.meta.name} has none; use --num-requests",
            )
        first_s, last_s = self.window_s
        low, high = np.searchsorted(trace.arrival_s, [first_s, last_s])
        if low == high:
            raise UserError(
                "trace-empty-window",
                f"--window {first_s:g}:{last_s:g} holds no request; "
                f"{trace.meta.name} runs from 0 to {trace.duration_s:.6g} s",
            )
        return trace.take(np.arange(low, high))

    def _scale(self, trace: Trace) -> Trace:
        if self.scale_lengths == 1.0:
            return trace

        def scaled(tokens: np.ndarray) -> np.ndarray:
            with np.errstate(over="ignore"):
                return np.rint(tokens * self.scale_lengths)

        prompt, output = scaled(trace.prompt_tokens), scaled(trace.output_tokens)
        meta = trace.meta
        cut = int(((prompt > MAX_TOKENS) | (output > MAX_TOKENS)).sum())
        if cut:
            meta = meta.with_note(f"{cut:,} of {len(trace):,} requests were cut to {MAX_TOKENS:,} tokens")
        if trace.prefix_blocks is not None:
            # Blocks grow with the prompts, so that the same share of every prompt repeats an earlier one.
            meta = replace(meta, block_tokens=int(_whole_tokens(scaled(np.array(meta.block_tokens)))))
        return _with_lengths(replace(trace, meta=meta), _whole_tokens(prompt), _whole_tokens(output))

    def _limit(self, trace: Trace) -> Trace:
        max_prompt = MAX_TOKENS if self.max_prompt is None else self.max_prompt
        max_output = MAX_TOKENS if self.max_output is None else self.max_output
        too_long = (trace.prompt_tokens > max_prompt) | (trace.output_tokens > max_output)
        count = int(too_long.sum())
        if count == 0:
            return trace
        share = f"{count:,} of {len(trace):,} requests"
        if self.too_long == "truncate":
            trace = _with_lengths(
                trace,
                np.minimum(trace.prompt_tokens, np.int32(max_prompt)),
                np.minimum(trace.output_tokens, np.int32(max_output)),
            )
            return replace(trace, meta=trace.meta.with_note(f"{share} were too long and were truncated"))
        if count == len(trace):
            raise UserError(
                "trace-all-too-long",
                "every request is longer than --max-prompt/--max-output allow; raise them or truncate",
            )
        remaining = trace.take(np.flatnonzero(~too_long))
        return replace(remaining, meta=trace.meta.with_note(f"{share} were too long and were dropped"))

    def _sample(self, trace: Trace) -> Trace:
        """Sample complete sessions at random, until the number of requests is reached."""
        if self.sample is None or self.sample >= len(trace):
            return trace
        random = np.random.Generator(np.random.PCG64(self.seed))
        if trace.session is None:
            order = np.argsort(random.random(len(trace)), kind="stable")
            return trace.take(np.sort(order[: self.sample]))
        sessions, member, sizes = np.unique(trace.session, return_inverse=True, return_counts=True)
        order = np.argsort(random.random(len(sessions)), kind="stable")
        # The last session taken is the one that reaches the number: never a torn one, so it may be exceeded.
        taken = int(np.searchsorted(np.cumsum(sizes[order]), self.sample)) + 1
        chosen = np.zeros(len(sessions), bool)
        chosen[order[:taken]] = True
        return trace.take(np.flatnonzero(chosen[member]))

    def _arrivals(self, trace: Trace) -> Trace:
        if self.request_rate is not None:
            arrival_s = poisson_like(len(trace), self.request_rate, self.burstiness, self.seed)
            trace = replace(trace, arrival_s=arrival_s, meta=replace(trace.meta, has_arrivals=True))
        if self.rate_scale != 1.0:
            if not trace.meta.has_arrivals:
                raise UserError(
                    "trace-no-arrivals",
                    f"--rate-scale needs arrival times and {trace.meta.name} has none; use --request-rate",
                )
            with np.errstate(over="ignore", under="ignore"):
                trace = replace(trace, arrival_s=trace.arrival_s / self.rate_scale)
        if self.request_rate is None and self.rate_scale == 1.0:
            return trace
        if not trace.duration_s <= MAX_SPAN_S:  # NaN is not
            raise UserError(
                "trace-bad-rate",
                f"{self._rate_flags()} spreads {len(trace):,} requests over more than a century",
            )
        if trace.duration_s > 0:
            rate = (len(trace) - 1) / trace.duration_s
            if rate > MAX_RATE_PER_S:
                raise UserError(
                    "trace-bad-rate",
                    f"{self._rate_flags()} makes {rate:.3g} requests/s; no clock is that fine",
                )
            trace = replace(trace, meta=trace.meta.with_note(f"offered at {rate:.4g} requests/s"))
        return trace

    def _rate_flags(self) -> str:
        flags = {"--request-rate": self.request_rate, "--burstiness": self.burstiness}
        flags["--rate-scale"] = self.rate_scale
        return " ".join(f"{flag} {value:g}" for flag, value in flags.items() if value not in {None, 1.0})


def _whole_tokens(tokens: np.ndarray) -> Int32:
    rounded: Int32 = np.clip(tokens, 1, MAX_TOKENS).astype(np.int32)
    return rounded


def _with_lengths(trace: Trace, prompt: np.ndarray, output: np.ndarray) -> Trace:
    blocks = trace.prefix_blocks
    if blocks is not None:
        needed: Int64 = -(-prompt.astype(np.int64) // trace.meta.block_tokens)
        blocks = blocks.limit(needed)
    return replace(trace, prompt_tokens=prompt, output_tokens=output, prefix_blocks=blocks)


def poisson_like(requests: int, rate_per_s: float, burstiness: float, seed: int) -> Float64:
    """Return arrivals at a mean rate: Poisson for burstiness 1, gamma gaps of that shape otherwise.

    As in vLLM's benchmark, burstiness is the gamma's shape: below 1 is burstier, above 1 more even.
    """
    random = np.random.Generator(np.random.PCG64(seed))
    # Absurd rates give absurd times, infinite or NaN among them: the caller checks the span.
    with np.errstate(all="ignore"):
        gaps = random.gamma(burstiness, np.divide(1.0, rate_per_s * burstiness), requests)
        gaps[0] = 0.0
        # To the microsecond: the last bits of a logarithm differ between machines.
        arrival_s: Float64 = np.round(np.cumsum(gaps), 6).astype(np.float64)
    return arrival_s
