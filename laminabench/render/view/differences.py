"""In what the manifests of Runs differ: what was asked for first, what follows from it behind."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from laminabench.render.format import short
from laminabench.render.html import Markup, joined, table, tag
from laminabench.render.sheets.runs import swatch
from laminabench.render.shown import Shown
from laminabench.render.view.facts import Facts
from laminabench.render.view.page import several

# Parts of a manifest that say what a Run is of; its numbers are results, and compared as such.
_ASKED = (
    "system",
    "backend",
    "deployment.name",
    "model.name",
    "trace.",
    "transforms.",
    "workload.",
    "request.",
)
_FOLLOWING = ("deployment.", "model.", "laminabench.", "host.", "seed", "partial.")
# What the request says in other words.
_AGAIN = {
    "request.system": "system",
    "request.backend": "backend",
    "request.deployment": "deployment.name",
    "request.model": "model.name",
    "request.trace": "trace.name",
    "request.mode": "workload.mode",
    "request.slo-tbt-ms": "workload.slo_tbt_ms",
    **{
        f"request.{name}": f"transforms.{name.replace('-', '_')}"
        for name in (
            "num-requests",
            "scale-lengths",
            "rate-scale",
            "request-rate",
            "burstiness",
            "sample",
            "seed",
        )
    },
}
# With more Runs, how many have a value is told, and not which.
MOST_BESIDE = 8
_MOST_VALUES = 12


def differences_section(runs: Sequence[Shown], facts: Sequence[Facts]) -> Markup:
    """Nothing of one Run alone."""
    if len(runs) < 2:
        return joined(())
    differing = _differing(facts)
    first = {name: values for name, values in differing.items() if name.startswith(_ASKED)}
    rest = {name: values for name, values in differing.items() if name not in first}
    if not differing:
        inside = [tag("p", "Nothing: their manifests say the same of trace, system, model and choices.")]
    else:
        inside = (
            [_table("Of what was asked for", runs, first)]
            if first
            else [tag("p", "Nothing that was asked for.")]
        )
        if rest:
            words = f"{several(len(rest), 'field')} more: what follows from these, machine and version"
            inside.append(
                tag("details", tag("summary", words), _table("Of the rest of the manifests", runs, rest))
            )
    return tag("section", tag("h2", "What differs"), *inside)


def _differing(facts: Sequence[Facts]) -> dict[str, list[str]]:
    names = dict.fromkeys(name for each in facts for name in each if name.startswith((*_ASKED, *_FOLLOWING)))
    found = {}
    for name in sorted(names, key=_place):
        values = [short(each[name]) if name in each else "-" for each in facts]
        if len(set(values)) > 1:
            found[name] = values
    return {name: values for name, values in found.items() if found.get(_AGAIN.get(name, "")) is None}


def _place(name: str) -> tuple[int, str]:
    places = (*_ASKED, *_FOLLOWING)
    return next(place for place, each in enumerate(places) if name.startswith(each)), name


def _table(caption: str, runs: Sequence[Shown], differing: Mapping[str, Sequence[str]]) -> Markup:
    if len(runs) <= MOST_BESIDE:
        header = ["", *(joined((swatch(each), " ", each.name)) for each in runs)]
        rows = [(tag("code", name), *values) for name, values in differing.items()]
        return table(caption, header, rows, "differing")
    return table(
        caption,
        ("", "Values", "Runs of each"),
        [(tag("code", name), len(set(values)), _counted(values)) for name, values in differing.items()],
        "differing",
    )


def _counted(values: Sequence[str]) -> str:
    counts = Counter(values).most_common()
    more = f", and {len(counts) - _MOST_VALUES:,} more" if len(counts) > _MOST_VALUES else ""
    return ", ".join(f"{value} ({count:,})" for value, count in counts[:_MOST_VALUES]) + more
