"""Why the numbers of Runs may not answer the question that they are put side by side for."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from laminabench.compare.metrics import THROUGHPUT
from laminabench.compare.recorded import Facts, Recorded


def doubts(found: list[Recorded]) -> Iterator[str]:
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
    limits = dict.fromkeys(each.summary["slo"]["tbt_ms"] for each in found)
    if len(limits) > 1:
        said = ", ".join(f"{limit:g}" for limit in limits)
        yield f"attainment and goodput are of different TBT limits ({said} ms): --slo-tbt-ms sets one"


def unsure(groups: list[list[Recorded]]) -> Iterator[str]:
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
