"""Where the numbers are from: everything that each Run's manifest says, in tables that open."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from laminabench.report.headline import badge, swatch
from laminabench.report.markup import Markup, joined, table, tag
from laminabench.report.shown import Shown
from laminabench.request import choices_of

_ABOUT = {"term", "device", "set", "kind", "source"}


def provenance(each: Shown) -> Markup:
    """One Run's."""
    manifest = each.manifest
    sections = (
        ("Trace", table("Trace", ("", ""), _facts(manifest["trace"]))),
        ("Changes to the trace", table("Changes to the trace", ("", ""), _facts(manifest["transforms"]))),
        ("Workload and options", table("Workload and options", ("", ""), _facts(_workload(manifest)))),
        ("Deployment and prices", joined(_deployment(manifest["deployment"]))),
        ("Model", table("Model", ("", ""), _facts(manifest["model"]))),
        (f"Coefficients ({len(manifest['coefficients'])})", _coefficients(manifest["coefficients"], each)),
        ("Host", table("Host", ("", ""), _facts(manifest["host"]))),
        ("run.json, whole", tag("pre", json.dumps(manifest, indent=1, ensure_ascii=False), tabindex="0")),
    )  # fmt: skip
    opening = [tag("details", tag("summary", title), inside) for title, inside in sections]
    return tag("article", tag("h3", swatch(each), " ", each.name, " ", badge(each)), _origin(each), *opening)


def _workload(manifest: dict[str, Any]) -> dict[str, Any]:
    """How the trace was offered, and every choice of the replay."""
    return {**manifest["workload"], "options": choices_of(manifest)}


def _origin(each: Shown) -> Markup:
    """The few facts that identify a Run."""
    manifest = each.manifest
    ours = manifest["laminabench"]
    trace = manifest["trace"]
    facts = {
        "command": tag("code", manifest["command"]),
        "laminabench": f"{ours.get('version')}, commit {ours.get('commit') or 'not known'}",
        "trace": f"{trace['name']}, sha256 {trace.get('sha256')}",
        "requests": f"{trace.get('requests') or len(each.run.output_tokens):,}",
        "seed": _said(manifest.get("seed")),
        "replayed in": f"{manifest.get('wall_s') or 0:,.2f} s",
        "folder": str(each.run.directory),
    }
    return table(f"Origin of {each.name}", ("", ""), facts.items())


def _deployment(deployment: Mapping[str, Any]) -> Iterator[Markup]:
    header = ("Device", "Count", "$ an hour each", "Basis", "Source", "Date")
    rows = []
    for device in deployment.get("devices", ()):
        price = device.get("price") or {}
        more = (_said(price.get(name)) for name in ("usd", "basis", "source", "date"))
        rows.append((device["device"], device["count"], *more))
    yield table("Devices and prices", header, rows)
    rest = {name: fact for name, fact in deployment.items() if name != "devices"}
    yield table("Deployment", ("", ""), _facts(rest))


def _coefficients(terms: Sequence[Mapping[str, Any]], each: Shown) -> Markup:
    if not terms:
        return tag(
            "p", "None: nothing was computed from coefficients." if each.measured else "None recorded."
        )
    header = ("Term", "Device", "Set", "Kind", "Source", "Values", "Range and errors")
    rows = []
    for term in terms:
        values = dict(term.get("coefficients") or {})
        rest = {name: fact for name, fact in term.items() if name not in _ABOUT | {"coefficients"}}
        # A network says its numbers beside its name, not among coefficients.
        if not values:
            values, rest = rest, {}
        about = (_said(term.get(name)) for name in ("term", "device", "set", "kind", "source"))
        rows.append((*about, _lines(values), _lines(rest)))
    return table("Coefficients, each with its source", header, rows, "coefficients")


def _lines(facts: Mapping[str, Any]) -> Markup:
    return joined(tag("div", f"{path}: {fact}") for path, fact in _facts(facts) if fact)


def _facts(facts: Mapping[str, Any], within: str = "") -> Iterator[tuple[str, str]]:
    """Nested facts as lines; an inner name follows those around it."""
    for name, fact in facts.items():
        path = f"{within}{name}".replace("_", " ")
        if isinstance(fact, Mapping):
            yield from _facts(fact, f"{path}: ")
        else:
            yield path, _said(fact)


def _said(fact: object) -> str:
    if isinstance(fact, bool) or fact is None:
        return {True: "yes", False: "no", None: "-"}[fact]
    if isinstance(fact, float):
        return f"{fact:,.6g}"
    if isinstance(fact, int):
        return f"{fact:,}"
    if isinstance(fact, list | tuple):
        return ", ".join(map(_said, fact))
    return str(fact)
