"""Where the numbers are from: everything that each Run's manifest says, in tables that open."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence

from laminabench.render.format import plain
from laminabench.render.html import Markup, joined, table, tag
from laminabench.render.sheets.runs import badge, swatch
from laminabench.render.shown import Shown
from laminabench.runs.manifest import DeploymentFacts
from laminabench.util.json import JsonObject, to_json

_ABOUT = {"term", "device", "set", "kind", "source"}


def provenance(each: Shown) -> Markup:
    manifest, document = each.manifest, to_json(each.manifest)
    sections = (
        *((title, table(title, ("", ""), _facts(facts))) for title, facts in (
            ("Trace", to_json(manifest.trace)),
            ("Changes to the trace", manifest.transforms),
            ("Workload and options", {**to_json(manifest.workload), "options": manifest.choices}),
        )),
        ("Deployment and prices", joined(_deployment(manifest.deployment))),
        ("Model", table("Model", ("", ""), _facts(manifest.model))),
        (f"Coefficients ({len(manifest.coefficients)})", _coefficients(manifest.coefficients, each)),
        ("Host", table("Host", ("", ""), _facts(to_json(manifest.host)))),
        ("run.json, whole", tag("pre", json.dumps(document, indent=1, ensure_ascii=False), tabindex="0")),
    )  # fmt: skip
    opening = [tag("details", tag("summary", title), inside) for title, inside in sections]
    return tag("article", tag("h3", swatch(each), " ", each.name, " ", badge(each)), _origin(each), *opening)


def _origin(each: Shown) -> Markup:
    manifest = each.manifest
    ours, trace = manifest.laminabench, manifest.trace
    facts = {
        "command": tag("code", manifest.command),
        "laminabench": f"{ours.version}, commit {ours.commit or 'not known'}",
        "trace": f"{trace.name}, sha256 {trace.sha256}",
        "requests": f"{trace.requests or len(each.run.output_tokens):,}",
        "seed": plain(manifest.seed),
        "replayed in": f"{manifest.wall_s or 0:,.2f} s",
        "folder": str(each.run.directory),
    }
    return table(f"Origin of {each.name}", ("", ""), facts.items())


def _deployment(deployment: DeploymentFacts) -> Iterator[Markup]:
    header = ("Device", "Count", "$ an hour each", "Basis", "Source", "Date")
    rows = []
    for device in deployment.devices or ():
        price = to_json(device.price) if device.price else {}
        more = (plain(price.get(name)) for name in ("usd", "basis", "source", "date"))
        rows.append((device.device, device.count, *more))
    yield table("Devices and prices", header, rows)
    rest = {name: fact for name, fact in to_json(deployment).items() if name != "devices"}
    yield table("Deployment", ("", ""), _facts(rest))


def _coefficients(terms: Sequence[JsonObject], each: Shown) -> Markup:
    if not terms:
        return tag(
            "p", "None: nothing was computed from coefficients." if each.measured else "None recorded."
        )
    header = ("Term", "Device", "Set", "Kind", "Source", "Values", "Range and errors")
    rows = []
    for term in terms:
        own = term.get("coefficients")
        values = dict(own) if isinstance(own, Mapping) else {}
        rest = {name: fact for name, fact in term.items() if name not in _ABOUT | {"coefficients"}}
        # A network says its numbers beside its name, not among coefficients.
        if not values:
            values, rest = rest, {}
        about = (plain(term.get(name)) for name in ("term", "device", "set", "kind", "source"))
        rows.append((*about, _lines(values), _lines(rest)))
    return table("Coefficients, each with its source", header, rows, "coefficients")


def _lines(facts: JsonObject) -> Markup:
    return joined(tag("div", f"{path}: {fact}") for path, fact in _facts(facts) if fact)


def _facts(facts: JsonObject, within: str = "") -> Iterator[tuple[str, str]]:
    """Nested facts as lines; an inner name follows those around it."""
    for name, fact in facts.items():
        path = f"{within}{name}".replace("_", " ")
        if isinstance(fact, Mapping):
            yield from _facts(fact, f"{path}: ")
        else:
            yield path, plain(fact)
