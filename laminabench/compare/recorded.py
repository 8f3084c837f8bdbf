"""A Run to compare: summarised anew from its tables, with how sure its numbers are if it was measured."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from msgspec import UNSET, structs

from laminabench.analysis.bootstrap import resamples
from laminabench.analysis.estimate import Estimate, of_resamples
from laminabench.analysis.metrics import summarise
from laminabench.analysis.metrics_table import SUMMARISED, THROUGHPUT
from laminabench.analysis.window import window
from laminabench.compare.sides import modelled_estimates
from laminabench.json_safe import to_json
from laminabench.runs.manifest import Backend, Manifest
from laminabench.runs.read import Run, read_run
from laminabench.runs.summary import Summary
from laminabench.sim.spec import Float64, Mode

# Flags that change what is written, not what is measured.
_ABOUT_FILES = ("trace", "timeline", "timeline_window", "plot", "seed")
# Where tokens were seen.
ENGINE, CLIENT = "in the engine", "by the client"


@dataclass(frozen=True, slots=True)
class Facts:
    """What a Run is the result of, as far as it matters for whether it can be compared."""

    system: str
    deployment: str
    model: str
    backend: Backend
    trace: str  # its name and the beginning of its checksum
    transforms: str
    mode: Mode
    slo_tbt_ms: float
    partial: str | None  # a sentence, where it ended before its trace did
    model_type: str  # of the weights that the model is published with
    boards_type: str  # what boards have in its place; empty, where there are none
    boards_prices: str  # a sentence, where a board's price or watts are assumed
    what: str  # equal for Runs that did the same thing, whenever they did


@dataclass(frozen=True, slots=True)
class Recorded:
    """One Run, read, summarised and let go of."""

    path: Path
    facts: Facts
    summary: Summary
    estimates: dict[str, Estimate]
    seen: str  # where its tokens were seen

    @property
    def measured(self) -> bool:
        return self.facts.backend != "modelled"


def recorded(path: Path, slo_tbt_ms: float | None) -> Recorded:
    """The Run in this directory, as `of_run` has it."""
    return of_run(read_run(path), slo_tbt_ms)


def of_run(run: Run, slo_tbt_ms: float | None) -> Recorded:
    """A Run within this limit or its own, and how sure it is of what it measured."""
    path, facts, prices = run.directory, _facts(run.manifest), run.manifest.deployment
    limit = facts.slo_tbt_ms if slo_tbt_ms is None else slo_tbt_ms
    summary = summarise(
        run.outcome,
        run,
        mode=facts.mode,
        slo_tbt_ms=limit,
        usd_per_hour=prices.usd_per_hour,
        power_w=prices.power_w,
    )
    if facts.backend == "modelled":
        return Recorded(path, facts, summary, modelled_estimates(summary), ENGINE)
    seen = ENGINE if run.outcome.chunks is None else CLIENT
    drawn = resamples(run.outcome, window(run.outcome, facts.mode), limit)
    return Recorded(path, facts, summary, _measured_estimates(summary, drawn), seen)


def _facts(manifest: Manifest) -> Facts:
    trace, workload = manifest.trace, manifest.workload
    options = {name: value for name, value in manifest.choices.items() if name not in _ABOUT_FILES}
    offered = to_json(structs.replace(workload, options=UNSET))
    transforms = {name: value for name, value in manifest.transforms.items() if name != "seed"}
    names = (manifest.system, manifest.deployment.name, manifest.model_name)
    # Another version, or another machine, is not another round.
    where = [to_json(manifest.laminabench), to_json(manifest.host)]
    # Nor is one that ended early: it would drag down the others' mean.
    partial = manifest.partial.sentence if manifest.partial else None
    boards_type, boards_prices = _on_boards(manifest)
    return Facts(
        *names,
        backend=manifest.backend,
        trace=f"{trace.name} {(trace.sha256 or 'without a checksum')[:12]}",
        transforms=json.dumps(transforms, sort_keys=True),
        mode=workload.mode,
        slo_tbt_ms=workload.slo_tbt_ms,
        partial=partial,
        model_type=str(manifest.model.get("dtype") or "another type"),
        boards_type=boards_type,
        boards_prices=boards_prices,
        what=json.dumps(
            [*names, *where, trace.sha256, offered, options, transforms, partial], sort_keys=True
        ),
    )


def _on_boards(manifest: Manifest) -> tuple[str, str]:
    """What boards hold weights and KV in whatever the model's type is, and what their prices are worth."""
    facts = manifest.deployment.facts or {}
    if "board" not in facts:
        return "", ""
    return str(facts.get("weights_and_kv") or ""), manifest.deployment.price_note or ""


def _measured_estimates(summary: Summary, drawn: dict[str, Float64]) -> dict[str, Estimate]:
    found = {metric.name: of_resamples(metric.of(summary), drawn.get(metric.key)) for metric in SUMMARISED}
    rate = found[THROUGHPUT.name]
    for metric in SUMMARISED:
        if metric.certainty == "fixed":
            found[metric.name] = Estimate(metric.of(summary))
        elif metric.certainty == "throughput":
            found[metric.name] = Estimate(metric.of(summary), rate.error, rate.freedom)
    return found
