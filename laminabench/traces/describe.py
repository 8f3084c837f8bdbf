"""What a trace looks like: lengths, rate, burstiness, and how much of its prompts repeats."""

from __future__ import annotations

import numpy as np

from laminabench.traces.table import Int64, Trace

PERCENTILES = {"p50": 50, "p90": 90, "p99": 99}


def describe(trace: Trace) -> dict[str, object]:
    """The documented keys of `traces info --json`."""
    duration_s = trace.duration_s
    return {
        "name": trace.meta.name,
        "source": trace.meta.source,
        "sha256": trace.meta.sha256,
        "requests": len(trace),
        "duration_s": duration_s if trace.meta.has_arrivals else None,
        "rate_per_s": (len(trace) - 1) / duration_s if duration_s > 0 else None,
        "interarrival_cv": interarrival_cv(trace),
        "prompt": lengths(trace.prompt_tokens),
        "output": lengths(trace.output_tokens),
        "prefix_share": prefix_share(trace),
        "sessions": None if trace.session is None else len(np.unique(trace.session)),
        "origin": trace.meta.origin,
        "license": trace.meta.license,
        "citation": trace.meta.citation,
        "tokenizer": trace.meta.tokenizer,
        "notes": list(trace.meta.notes),
    }


def lengths(tokens: np.ndarray) -> dict[str, float]:
    """Mean, percentiles and maximum; a percentile is always a length that occurs."""
    values = np.percentile(tokens, list(PERCENTILES.values()), method="inverted_cdf")
    return {
        "mean": float(tokens.mean(dtype=np.float64)),
        **{name: int(value) for name, value in zip(PERCENTILES, values, strict=True)},
        "max": int(tokens.max()),
    }


def interarrival_cv(trace: Trace) -> float | None:
    """Standard deviation of the gaps between arrivals over their mean: 1 is Poisson, more is bursty."""
    gaps = np.diff(trace.arrival_s)
    if not trace.meta.has_arrivals or len(gaps) < 2 or gaps.mean() == 0:
        return None
    return float(gaps.std() / gaps.mean())


def reused_tokens(trace: Trace) -> Int64 | None:
    """Per request, how many leading prompt tokens lie in blocks that an earlier request already had."""
    blocks = trace.prefix_blocks
    if blocks is None:
        return None
    lengths = blocks.lengths()
    _, first, member = np.unique(blocks.ids, return_index=True, return_inverse=True)
    row_starts = np.repeat(blocks.offsets[:-1], lengths)
    seen_before = first[member] < row_starts
    # Leading run of seen blocks: where the first unseen one stands, or the whole row.
    place = np.arange(len(blocks.ids)) - row_starts
    stop = np.where(seen_before, np.iinfo(np.int64).max, place)
    leading = lengths.copy()
    filled = np.flatnonzero(lengths)
    if len(filled):
        leading[filled] = np.minimum(leading[filled], np.minimum.reduceat(stop, blocks.offsets[:-1][filled]))
    return np.minimum(leading * trace.meta.block_tokens, trace.prompt_tokens)


def prefix_share(trace: Trace) -> float | None:
    """Share of all prompt tokens that repeats an earlier prefix; None where the trace does not say."""
    reused = reused_tokens(trace)
    return None if reused is None else float(reused.sum() / trace.prompt_tokens.sum(dtype=np.int64))
