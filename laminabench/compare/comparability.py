"""Why the numbers of Runs may not answer the question that they are put side by side for."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from laminabench.analysis.metrics_table import THROUGHPUT
from laminabench.compare.recorded import Facts, Recorded
from laminabench.runs.summary import number_at

# Servers whose chunks differ by less send them in the same way.
ALIKE = 1.1
_DEALT = "they were dealt evenly, so TBT of single tokens is a guess"


def comparability_warnings(found: list[Recorded], groups: list[list[Recorded]]) -> list[str]:
    """What to know before numbers of these Runs are compared; each group is rounds of one thing."""
    return [*_of_single_runs(found), *differences(found), *_of_intervals(groups)]


def differences(found: list[Recorded]) -> Iterator[str]:
    """In what the Runs differ that makes their numbers answers to different questions."""
    alike: dict[str, Callable[[Facts], str]] = {
        "traces": lambda facts: facts.trace,
        "cuts of the trace": lambda facts: facts.transforms,
        "models": lambda facts: facts.model,
        "modes": lambda facts: facts.mode,
        "backends": lambda facts: facts.backend,
    }
    for what, of in alike.items():
        values = dict.fromkeys(of(each.facts) for each in found)
        if len(values) > 1:
            yield f"the Runs are of different {what}{_listed(values)}: they are not comparable as such"
    if len(dict.fromkeys(each.seen for each in found)) > 1:
        yield (
            "some Runs saw their tokens in the engine and some as a client: a client's TBT has the network "
            "and the server's front end in it, and is 0 for a token that came in a chunk with the one before"
        )
    sizes = [size for each in found if (size := number_at(each.summary, "tokens_per_chunk.mean"))]
    if sizes and max(sizes) > ALIKE * min(sizes):
        said = ", ".join(f"{size:.3g}" for size in sizes)
        yield f"chunks have {said} tokens on average: TBT is of tokens, 0 within a chunk; ITL is of chunks"
    yield from _boards([each.facts for each in found])
    limits = dict.fromkeys(each.summary.slo.tbt_ms for each in found)
    if len(limits) > 1:
        said = ", ".join(f"{limit:g}" for limit in limits)
        yield f"attainment and goodput are of different TBT limits ({said} ms): --slo-tbt-ms sets one"


def _boards(found: list[Facts]) -> Iterator[str]:
    """What boards hold in another type than others do, and what of their prices is assumed."""
    held = dict.fromkeys(facts.boards_type or facts.model_type for facts in found)
    if len(held) > 1 and any(facts.boards_type for facts in found):
        yield f"weights and KV are not of one type ({', '.join(held)}): boards hold them in their own"
    yield from dict.fromkeys(facts.boards_prices for facts in found if facts.boards_prices)


def _of_single_runs(found: list[Recorded]) -> Iterator[str]:
    """What of single Runs is to be known before their numbers are believed."""
    for each in found:
        if each.facts.partial:
            yield f"{each.path} is {each.facts.partial}"
        if failed := each.summary.requests.failed:
            yield f"{each.path} has {failed:,} requests that failed: tokens they lack are in no percentile"
        if number_at(each.summary, "tokens_per_chunk.even_share"):
            yield f"{each.path} is of a server that does not say which tokens a chunk has: {_DEALT}"


def _of_intervals(groups: list[list[Recorded]]) -> Iterator[str]:
    """What intervals of measured Runs do not tell."""
    single = [group[0] for group in groups if len(group) == 1 and group[0].measured]
    for each in single:
        if each.estimates[THROUGHPUT.name].error is None:
            yield f"{each.path} has too few iterations in its window to say how sure its numbers are"
    if single:
        yield (
            "an interval of one Run does not know how one start differs from the next: several Runs of each, "
            "in alternation, are compared as rounds"
        )


def _listed(values: Iterable[str]) -> str:
    """In brackets, where they are names."""
    return "" if any(value.startswith("{") for value in values) else f" ({', '.join(values)})"
