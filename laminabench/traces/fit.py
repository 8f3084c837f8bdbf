"""Profiles from real traces: tables read off the rows, and how well they give the rows back."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from msgspec.structs import replace

from laminabench.traces.describe import compare
from laminabench.traces.draws import Draws
from laminabench.traces.profile import Arrivals, FittedTo, Profile, Quantiles, parse_profile, profile_text
from laminabench.traces.reuse import fit_reuse
from laminabench.traces.synth import synthesise
from laminabench.traces.table import MAX_TOKENS
from laminabench.util.errors import UserError

if TYPE_CHECKING:
    from laminabench.traces.table import Float64, Trace

# Even ranks for the body, and towards both ends ranks that come closer by this factor, because a few very
# long requests carry much of the mean.
_BODY = 160
_TAIL = 1.6
# Parts of each axis of the copula, fewer for short traces: cells need some requests in them.
_COPULA = 20
_PER_CELL = 8
_MAX_BINS = 200
_BIN_S = (1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200, 14400, 43200, 86400, 604800)
_GAP_BODY = 64


def fit(trace: Trace, name: str, note: str = "") -> Profile:
    """Return the profile of this trace, with the errors that one synthetic trace of the same size has."""
    prompt, output = token_table(trace.prompt_tokens), token_table(trace.output_tokens)
    profile = Profile(
        name=name,
        method="fitted",
        note=note,
        requests=len(trace),
        fitted_to=FittedTo(trace.meta.name, trace.meta.sha256, len(trace)),
        prompt=prompt,
        output=output,
        copula=_copula(trace),
        arrivals=_arrivals(trace.arrival_s) if trace.meta.has_arrivals else None,
        reuse=fit_reuse(trace, prompt) if trace.prefix_blocks is not None else None,
        block_tokens=trace.meta.block_tokens,
    )
    profile = _as_filed(profile)
    return _as_filed(replace(profile, errors=compare(trace, synthesise(profile))))


def moment_match(
    profile: Profile, *, name: str, requests: int, mean_prompt: float, mean_output: float, note: str
) -> Profile:
    """Return another profile's shape with these means: for a trace of which no more than the means is
    known.
    """
    if not (1 <= mean_prompt <= MAX_TOKENS and 1 <= mean_output <= MAX_TOKENS):
        raise UserError(
            "profile-impossible-mean",
            f"means of {mean_prompt:g} and {mean_output:g} tokens cannot be matched: "
            f"from 1 to {MAX_TOKENS:,} each",
        )
    matched = replace(
        profile,
        name=name,
        method="moment-matched",
        note=note,
        requests=requests,
        prompt=_with_mean(profile.prompt, mean_prompt),
        output=_with_mean(profile.output, mean_output),
        errors=None,
    )
    return _as_filed(matched)


def _as_filed(profile: Profile) -> Profile:
    """Round to the digits a file has, so that it gives the same requests before and after it is written."""
    return parse_profile(profile_text(profile), profile.name)


def token_table(tokens: np.ndarray) -> Quantiles:
    ranks = _ranks(_BODY, len(tokens))
    values = np.quantile(tokens, ranks).round()
    return Quantiles(tuple(ranks.tolist()), tuple(values.tolist()))


def _ranks(body: int, rows: int) -> Float64:
    ranks = np.arange(1, body) / body
    # np.quantile reaches single rows at 1 / (rows - 1); there is nothing beyond.
    tail = [1 / body / _TAIL]
    while tail[-1] > 1 / max(rows - 1, 1):
        tail.append(tail[-1] / _TAIL)
    tails = np.array(tail)
    return np.unique(np.concatenate([[0, 1], tails, ranks, 1 - tails]).round(6))


def _with_mean(table: Quantiles, mean: float) -> Quantiles:
    # Scaled values are cut to what a length may be, which moves the mean again: a few rounds settle it.
    scaled = table
    for _ in range(50):
        grown = scaled.scaled(mean / scaled.mean())
        scaled = Quantiles(grown.ranks, tuple(min(max(1.0, value), MAX_TOKENS) for value in grown.values))
    if abs(scaled.mean() / mean - 1) > 0.01:
        raise UserError(
            "profile-impossible-mean",
            f"a mean of {mean:g} tokens cannot be matched: with this shape, too many lengths would be "
            f"above {MAX_TOKENS:,}",
        )
    return Quantiles(scaled.ranks, tuple(round(value, 1) for value in scaled.values))


def _copula(trace: Trace) -> tuple[tuple[int, ...], ...]:
    rows = len(trace)
    parts = max(1, min(_COPULA, int((rows / _PER_CELL) ** 0.5)))
    # Equal lengths are put in a drawn order: any other would invent a dependence between them.
    draws = Draws(0, 0)
    cells = np.zeros((parts, parts), np.int64)
    places = []
    for tokens in (trace.prompt_tokens, trace.output_tokens):
        order = np.lexsort((draws.uniform(rows), tokens))
        place = np.empty(rows, np.int64)
        place[order] = np.arange(rows) * parts // rows
        places.append(place)
    np.add.at(cells, (places[0], places[1]), 1)
    return tuple(tuple(row) for row in cells.tolist())


def _arrivals(arrival_s: Float64) -> Arrivals:
    duration_s = float(arrival_s[-1])
    bin_s = next(
        (float(each) for each in _BIN_S if duration_s / each < _MAX_BINS), duration_s / (_MAX_BINS - 1)
    )
    place = (arrival_s // bin_s).astype(np.int64)
    counts = np.bincount(place)
    starts = np.arange(len(counts)) * bin_s
    # The last bin ends with the trace; a trace of one moment still needs some width.
    ends = np.append(starts[1:], max(duration_s, starts[-1] + 1e-6))
    return Arrivals(
        bin_s,
        round(float(ends[-1]), 6),
        tuple(counts.tolist()),
        _gaps(arrival_s, place, counts, ends - starts),
    )


def _gaps(arrival_s: Float64, place: np.ndarray, counts: np.ndarray, widths: Float64) -> Quantiles:
    """Return gaps over the mean gap of their bin, every bin closed to a circle so that no edge is lost."""
    last = np.cumsum(counts) - 1
    ends = np.flatnonzero(counts)
    following = np.append(arrival_s[1:], 0)
    following[last[ends]] = arrival_s[last[ends] - counts[ends] + 1] + widths[ends]
    gaps = (following - arrival_s) * (counts / widths)[place]
    ranks = _ranks(_GAP_BODY, len(gaps))
    values = np.maximum(np.quantile(gaps, ranks), 0)
    return Quantiles(tuple(ranks.tolist()), tuple(float(f"{value:.4g}") for value in values))
