"""Prefix reuse: measured from the blocks of a real trace, and made again for synthetic prompts."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from laminabench.traces.profile import Profile, Quantiles, Reuse
from laminabench.traces.table import PrefixBlocks

if TYPE_CHECKING:
    from laminabench.traces.draws import Draws
    from laminabench.traces.table import Float64, Int32, Int64, Trace

_CLASSES = 10
_FRESH_RANKS = 17
_LAG_RANKS = 33


def fit_reuse(trace: Trace, prompt: Quantiles) -> Reuse:
    """Fit how this trace's prompts repeat each other; `prompt` is the table that cuts the classes."""
    blocks = trace.prefix_blocks
    assert blocks is not None
    times = trace.arrival_s.tolist() if trace.meta.has_arrivals else list(map(float, range(len(trace))))
    root = root_blocks(blocks)
    full = (trace.prompt_tokens // trace.meta.block_tokens).tolist()
    classes = size_classes(prompt, trace.prompt_tokens, _CLASSES).tolist()
    rows = Counter(classes)
    continue_fresh: dict[int, list[float]] = defaultdict(list)
    branch_fresh: dict[int, list[float]] = defaultdict(list)
    continue_lag_s, branch_lag_s = [], []
    rejoined = 0
    last_user: dict[int, int] = {}
    children: dict[int, set[int]] = defaultdict(set)
    for row in range(len(trace)):
        ids = blocks[row].tolist()
        shared = 0
        while shared < len(ids) and ids[shared] in last_user:
            shared += 1
        if shared > root:
            parent = last_user[ids[shared - 1]]
            fresh = (len(ids) - shared) / len(ids)
            lag_s = times[row] - times[parent]
            if shared >= full[parent]:
                continue_fresh[classes[row]].append(fresh)
                continue_lag_s.append(lag_s)
            else:
                branch_fresh[classes[row]].append(fresh)
                branch_lag_s.append(lag_s)
                rejoined += len(children[ids[shared - 1]]) > 1
        for block, following in pairwise(ids):
            children[block].add(following)
        last_user.update(dict.fromkeys(ids, row))
    return Reuse(
        root_blocks=root,
        continues=tuple(len(continue_fresh[each]) / max(rows[each], 1) for each in range(_CLASSES)),
        branches=tuple(len(branch_fresh[each]) / max(rows[each], 1) for each in range(_CLASSES)),
        continue_fresh=tuple(_fresh_table(continue_fresh[each]) for each in range(_CLASSES)),
        branch_fresh=tuple(_fresh_table(branch_fresh[each]) for each in range(_CLASSES)),
        continue_lag_s=_lag_table(continue_lag_s),
        branch_lag_s=_lag_table(branch_lag_s),
        rejoins=rejoined / max(len(branch_lag_s), 1),
    )


def root_blocks(blocks: PrefixBlocks) -> int:
    """Return the leading blocks (a system prompt) that nearly every request has."""
    depth = 0
    while True:
        long_enough = np.flatnonzero(blocks.lengths() > depth)
        ids, counts = np.unique(blocks.ids[blocks.offsets[long_enough] + depth], return_counts=True)
        if len(ids) == 0 or counts.max() < 0.95 * len(blocks):
            return depth
        depth += 1


def size_classes(prompt: Quantiles, prompt_tokens: Int32, classes: int) -> Int64:
    """Return the class of each prompt: which of equal shares of the distribution it is in."""
    bounds = prompt.at(np.arange(1, classes) / classes)
    return np.searchsorted(bounds, prompt_tokens, side="right")


def _fresh_table(shares: list[float]) -> tuple[float, ...]:
    if not shares:
        return (1.0, 1.0)
    return tuple(np.quantile(shares, np.linspace(0, 1, _FRESH_RANKS)).round(4).tolist())


def _lag_table(lags_s: list[float]) -> Quantiles:
    if not lags_s:
        return Quantiles((0.0, 1.0), (0.0, 0.0))
    ranks = np.linspace(0, 1, _LAG_RANKS)
    return Quantiles(tuple(ranks.tolist()), tuple(np.quantile(lags_s, ranks).round(1).tolist()))


def synthesise_reuse(
    profile: Profile, prompt_tokens: Int32, output_tokens: Int32, times_s: Float64, draws: Draws
) -> PrefixBlocks:
    """Return prefix blocks for these prompts, shared where one repeats the start of an earlier one."""
    reuse = profile.reuse
    assert reuse is not None
    count = len(prompt_tokens)
    lengths = -(-prompt_tokens.astype(np.int64) // profile.block_tokens)
    full = prompt_tokens // profile.block_tokens
    classes = size_classes(profile.prompt, prompt_tokens, len(reuse.continues))
    # One number decides the class and, stretched over its share, how much is new; even among like prompts.
    order = np.argsort(prompt_tokens, kind="stable")
    places = np.empty(count, np.int64)
    places[order] = np.arange(count)
    which = draws.along(places)
    going_on, branching = np.array(reuse.continues)[classes], np.array(reuse.branches)[classes]
    continues = which < going_on
    branches = ~continues & (which < going_on + branching)
    rank = np.zeros(count)
    np.divide(which, going_on, out=rank, where=continues)
    np.divide(which - going_on, branching, out=rank, where=branches)
    depth = np.full(count, reuse.root_blocks, np.int64)
    for mask, table in ((continues, reuse.continue_fresh), (branches, reuse.branch_fresh)):
        for each, values in enumerate(table):
            rows = np.flatnonzero(mask & (classes == each))
            fresh = Quantiles(tuple(np.linspace(0, 1, len(values)).tolist()), values).at(rank[rows])
            depth[rows] = lengths[rows] - np.floor(fresh * lengths[rows] + 0.5).astype(np.int64)
    # The last, part-filled block of a prompt is its own: sharing it would need an equal prompt.
    depth = np.minimum(depth, full)
    lag_rank = draws.uniform(count)
    back_s = np.where(continues, reuse.continue_lag_s.at(lag_rank), reuse.branch_lag_s.at(lag_rank))
    targets_s = (times_s - back_s).tolist()
    rejoins = (draws.uniform(count) < reuse.rejoins).tolist()
    family = _Family(full.tolist(), (prompt_tokens + output_tokens).tolist(), times_s.tolist())
    ends = prompt_tokens.tolist()
    sources = np.full(count, -1, np.int64)
    shared = np.minimum(depth, reuse.root_blocks)
    for row, (blocks, goes_on) in enumerate(zip(depth.tolist(), continues.tolist(), strict=True)):
        if blocks > reuse.root_blocks:
            source = family.turn(row, blocks, targets_s[row], ends[row]) if goes_on else None
            source = source or family.fork(row, blocks, targets_s[row], rejoins[row])
            if source is not None:
                sources[row], shared[row] = source
        family.add(row)
    return _blocks(lengths, shared, sources, reuse.root_blocks)


@dataclass(slots=True)
class _Log:
    """Requests in order of arrival, findable by time."""

    times_s: list[float] = field(default_factory=list)
    rows: list[int] = field(default_factory=list)

    def append(self, time_s: float, row: int) -> None:
        self.times_s.append(time_s)
        self.rows.append(row)

    def near(self, target_s: float, reach: int) -> range:
        """Return the positions around this time, at most `reach` of them."""
        middle = bisect_left(self.times_s, target_s)
        first = max(0, min(middle - reach // 2, len(self.rows) - reach))
        return range(first, min(first + reach, len(self.rows)))


class _Family:
    """The requests so far, and which of them a later one may continue or branch off."""

    def __init__(self, full: list[int], ends: list[int], times_s: list[float]) -> None:
        self._full, self._ends, self._times_s = full, ends, times_s
        self._all = _Log()
        # Not yet continued, by full blocks of the prompt.
        self._open: dict[int, _Log] = defaultdict(_Log)
        # Every departure from the middle of a prompt, by depth: common ones occur more often.
        self._forks: dict[int, _Log] = defaultdict(_Log)
        self._longest = 0

    def add(self, row: int) -> None:
        self._all.append(self._times_s[row], row)
        self._open[self._full[row]].append(self._times_s[row], row)
        if self._full[row] > self._full[self._longest]:
            self._longest = row

    def turn(self, row: int, depth: int, target_s: float, prompt_end: int) -> tuple[int, int] | None:
        """Return an earlier request with about `depth` full blocks that nothing continues yet: (request,
        depth).
        """
        for off in range(2 + depth // 16):
            for each in (depth - off, depth + off):
                log = self._open[each]
                if log.rows and 0 < each <= self._full[row]:
                    # A next turn repeats the answer as well: prefer prompts that leave room for it.
                    at = min(
                        log.near(target_s, 9),
                        key=lambda i: (self._ends[log.rows[i]] > prompt_end, abs(log.times_s[i] - target_s)),
                    )
                    log.times_s.pop(at)
                    return log.rows.pop(at), each
        return None

    def fork(self, row: int, depth: int, target_s: float, rejoin: bool) -> tuple[int, int] | None:
        """Return an earlier request to leave after `depth` blocks, or fewer if none is as long: (request,
        depth).
        """
        if not self._all.rows:
            return None
        log = self._forks[depth]
        candidates = log.near(target_s, 1) if rejoin else range(0)
        if not candidates:
            candidates = self._all.near(target_s, 64)
            log = self._all
        far = (False, 0.0)
        best = self._longest
        for at in candidates:
            source = log.rows[at]
            nearness = (self._full[source] > depth, -abs(log.times_s[at] - target_s))
            if nearness > far:
                far, best = nearness, source
        depth = min(depth, self._full[best])
        self._forks[depth].append(self._times_s[row], best)
        return best, depth


def _blocks(lengths: Int64, shared: Int64, sources: Int64, root: int) -> PrefixBlocks:
    """Return the ids: the root's, then the source's as far as shared, then numbers not used before."""
    offsets = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    place = np.arange(offsets[-1]) - np.repeat(offsets[:-1], lengths)
    fresh = place >= np.repeat(shared, lengths)
    ids = np.where(fresh, root - 1 + np.cumsum(fresh), place)
    for row in np.flatnonzero(sources >= 0).tolist():
        start, source, length = offsets[row], offsets[sources[row]], shared[row]
        ids[start : start + length] = ids[source : source + length]
    return PrefixBlocks(offsets, ids)
