"""What a reader has to know before comparing these Runs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from laminabench.compare.comparability import differences
from laminabench.report.shown import Shown
from laminabench.runs.manifest import Manifest


def caveats(runs: Sequence[Shown]) -> list[str]:
    """Sentences; none where the Runs differ in system and deployment only."""
    found = list(differences([each.recorded for each in runs]))
    costs = dict.fromkeys(_costs(each.manifest) for each in runs if not each.measured)
    if len(costs) > 1:
        found.append(f"the Runs were modelled with different cost coefficients ({'; '.join(costs)})")
    for each in runs:
        found += [f"{each.name} {what}" for what in _about(each)]
    return found


def _about(each: Shown) -> Iterator[str]:
    """What is to be known of one Run."""
    if each.partial:
        yield each.partial
    limit = each.slo.tbt_ms
    if each.summary.slo.tbt_ms != limit:
        yield f"was replayed for another limit: attainment and goodput are worked out again for {limit:g} ms"
    if each.unfinished:
        yield f"was stopped: {each.unfinished:,} of its requests are unfinished"
    if each.window.fell_back:
        yield "is too short for a steady window: its numbers are over the whole run"
    if rejected := each.summary.requests.rejected:
        yield f"rejected {rejected:,} requests that could never fit"
    if failed := each.summary.requests.failed:
        yield f"has {failed:,} requests that failed: tokens they lack are in no percentile"
    if each.summary.tokens_per_chunk and each.summary.tokens_per_chunk.even_share:
        yield (
            "is of a server that does not say which tokens a chunk has: they were dealt evenly, so TBT of "
            "single tokens is a guess"
        )
    if faults := each.summary.faults:
        yield f"had workers replaced {len(faults):,} times while it ran"
    if each.summary.resumed and each.summary.resumed.times:
        yield f"was interrupted and resumed {each.summary.resumed.times:,} times"
    if each.summary.schedule and each.summary.schedule.violations:
        yield "left its schedule, which is a bug of the engine"


def _costs(manifest: Manifest) -> str:
    return ", ".join(sorted({str(term["set"]) for term in manifest.coefficients if "set" in term}))
