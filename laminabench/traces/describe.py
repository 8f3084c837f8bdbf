"""Description of a trace, and distances between two: the numbers that a fitted profile is tested on."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import numpy as np

from laminabench.traces.table import Int64, Trace

if TYPE_CHECKING:
    from laminabench.traces.table import Float64

PERCENTILES = {"p50": 50, "p90": 90, "p99": 99}


def describe(trace: Trace) -> dict[str, object]:
    duration_s = trace.duration_s
    return {
        **{name: getattr(trace.meta, name) for name in ("name", "source", "sha256")},
        "requests": len(trace),
        "duration_s": duration_s if trace.meta.has_arrivals else None,
        "rate_per_s": (len(trace) - 1) / duration_s if duration_s > 0 else None,
        "interarrival_cv": interarrival_cv(trace),
        "prompt": lengths(trace.prompt_tokens),
        "output": lengths(trace.output_tokens),
        "prefix_share": prefix_share(trace),
        "sessions": None if trace.session is None else len(np.unique(trace.session)),
        **{name: getattr(trace.meta, name) for name in ("origin", "license", "citation", "tokenizer")},
        "notes": list(trace.meta.notes),
    }


def lengths(tokens: np.ndarray) -> dict[str, float]:
    """Return the mean, percentiles and maximum; a percentile is always a length that occurs."""
    values = np.percentile(tokens, list(PERCENTILES.values()), method="inverted_cdf")
    return {
        "mean": float(tokens.mean(dtype=np.float64)),
        **{name: int(value) for name, value in zip(PERCENTILES, values, strict=True)},
        "max": int(tokens.max()),
    }


def interarrival_cv(trace: Trace) -> float | None:
    """Return the gaps' standard deviation over their mean: 1 is Poisson, more is bursty."""
    gaps = np.diff(trace.arrival_s)
    if not trace.meta.has_arrivals or len(gaps) < 2 or gaps.mean() == 0:
        return None
    return float(gaps.std() / gaps.mean())


def reused_tokens(trace: Trace) -> Int64 | None:
    """Return each request's leading prompt tokens in blocks that an earlier request already had."""
    blocks = trace.prefix_blocks
    if blocks is None:
        return None
    lengths = blocks.lengths()
    _, first, member = np.unique(blocks.ids, return_index=True, return_inverse=True)
    row_starts = np.repeat(blocks.offsets[:-1], lengths)
    repeated = first[member] < row_starts
    # Leading run of seen blocks: where the first unseen one stands, or the whole row.
    place = np.arange(len(blocks.ids)) - row_starts
    stop = np.where(repeated, np.iinfo(np.int64).max, place)
    leading = lengths.copy()
    filled = np.flatnonzero(lengths)
    if len(filled):
        leading[filled] = np.minimum(leading[filled], np.minimum.reduceat(stop, blocks.offsets[:-1][filled]))
    return np.minimum(leading * trace.meta.block_tokens, trace.prompt_tokens)


def prefix_share(trace: Trace) -> float | None:
    """Return the share of all prompt tokens that repeats an earlier prefix; None if unknown."""
    reused = reused_tokens(trace)
    return None if reused is None else float(reused.sum() / trace.prompt_tokens.sum(dtype=np.int64))


class Comparison(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A synthetic trace compared with the real one; None if the traces lack the column."""

    ks_prompt: float
    ks_output: float
    mean_error_prompt: float
    mean_error_output: float
    spearman_real: float
    spearman_synthetic: float
    # Variance of the per-minute counts around the real counts, over what Poisson noise would give: about 1.
    minute_dispersion: float | None = None
    # Standard deviation of the gaps between arrivals over their mean: 1 is a Poisson process, more is bursty.
    gap_cv_real: float | None = None
    gap_cv_synthetic: float | None = None
    prefix_share_real: float | None = None
    prefix_share_synthetic: float | None = None
    ks_prefix: float | None = None
    distinct_blocks_real: int | None = None
    distinct_blocks_synthetic: int | None = None


def compare(real: Trace, synthetic: Trace) -> Comparison:
    """Compare all numbers that both traces have the columns for."""
    timed = real.meta.has_arrivals and synthetic.meta.has_arrivals
    comparison = Comparison(
        ks_prompt=ks_distance(real.prompt_tokens, synthetic.prompt_tokens),
        ks_output=ks_distance(real.output_tokens, synthetic.output_tokens),
        mean_error_prompt=mean_error(real.prompt_tokens, synthetic.prompt_tokens),
        mean_error_output=mean_error(real.output_tokens, synthetic.output_tokens),
        spearman_real=spearman(real.prompt_tokens, real.output_tokens),
        spearman_synthetic=spearman(synthetic.prompt_tokens, synthetic.output_tokens),
        minute_dispersion=minute_dispersion(real.arrival_s, synthetic.arrival_s) if timed else None,
        gap_cv_real=interarrival_cv(real) if timed else None,
        gap_cv_synthetic=interarrival_cv(synthetic) if timed else None,
    )
    reused_real, reused_synthetic = reused_tokens(real), reused_tokens(synthetic)
    if reused_real is None or reused_synthetic is None:
        return comparison
    assert real.prefix_blocks is not None
    assert synthetic.prefix_blocks is not None
    return msgspec.structs.replace(
        comparison,
        prefix_share_real=prefix_share(real),
        prefix_share_synthetic=prefix_share(synthetic),
        ks_prefix=ks_distance(reused_real / real.prompt_tokens, reused_synthetic / synthetic.prompt_tokens),
        distinct_blocks_real=len(np.unique(real.prefix_blocks.ids)),
        distinct_blocks_synthetic=len(np.unique(synthetic.prefix_blocks.ids)),
    )


def ks_distance(first: np.ndarray, second: np.ndarray) -> float:
    """Return the largest difference between two empirical distribution functions (Kolmogorov-Smirnov)."""
    first, second = np.sort(first), np.sort(second)
    points = np.concatenate([first, second])
    below_first = np.searchsorted(first, points, side="right") / len(first)
    below_second = np.searchsorted(second, points, side="right") / len(second)
    return float(np.abs(below_first - below_second).max())


def mean_error(real: np.ndarray, synthetic: np.ndarray) -> float:
    """Return how much the second mean is above the first, as a share of the first."""
    return float(synthetic.mean() / real.mean() - 1)


def spearman(first: np.ndarray, second: np.ndarray) -> float:
    """Return the rank correlation, ties sharing their mean rank; 0 where one column never changes."""
    ranks_first, ranks_second = mean_ranks(first), mean_ranks(second)
    ranks_first -= ranks_first.mean()
    ranks_second -= ranks_second.mean()
    scale = float(np.sqrt((ranks_first**2).sum() * (ranks_second**2).sum()))
    return float((ranks_first * ranks_second).sum()) / scale if scale else 0.0


def mean_ranks(values: np.ndarray) -> Float64:
    """Return the rank of every value, from 0; equal values share the mean of theirs."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    middles: Float64 = (ends - counts + ends - 1) / 2
    return middles[inverse]


def minute_dispersion(real_s: Float64, synthetic_s: Float64) -> float:
    """Return the squared difference of per-minute counts over the real counts: about 1 for Poisson noise."""
    minutes = int(max(real_s[-1], synthetic_s[-1]) // 60) + 1
    real = np.bincount((real_s // 60).astype(np.int64), minlength=minutes)
    synthetic = np.bincount((synthetic_s // 60).astype(np.int64), minlength=minutes)
    return float(((synthetic - real) ** 2).sum() / real.sum())
