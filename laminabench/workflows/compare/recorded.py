"""Runs to compare: each summarised anew with how sure its numbers are, and why they may not be comparable."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from msgspec import UNSET, structs

from laminabench.analysis.bootstrap import resamples
from laminabench.analysis.estimate import Estimate, of_resamples
from laminabench.analysis.metrics import summarise
from laminabench.analysis.metrics_table import SUMMARISED, THROUGHPUT
from laminabench.analysis.window import window
from laminabench.runs.manifest import Backend, Manifest
from laminabench.runs.read import Run, read_run
from laminabench.runs.summary import Summary, number_at
from laminabench.sim.spec import Float64, Mode
from laminabench.util.json import to_json
from laminabench.workflows.compare.sides import modelled_estimates

# Flags that change what is written, not what is measured.
_ABOUT_FILES = ("trace", "timeline", "timeline_window", "plot", "seed")
# Where tokens were observed.
ENGINE, CLIENT = "in the engine", "by the client"


@dataclass(frozen=True, slots=True)
class Facts:
    """The facts of a Run that decide whether it can be compared with others."""

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
    costs: str  # the set that modelled times are of; empty, where there are none
    what: str  # equal for Runs that did the same thing, whenever they did


@dataclass(frozen=True, slots=True)
class Recorded:
    """A Run's summary, estimates and facts, without its tables."""

    path: Path
    facts: Facts
    summary: Summary
    estimates: dict[str, Estimate]
    client_only: str  # where its tokens were observed

    @property
    def measured(self) -> bool:
        return self.facts.backend != "modelled"


def recorded(path: Path, slo_tbt_ms: float | None, slo_ttft_ms: float | None = None) -> Recorded:
    return of_run(read_run(path), slo_tbt_ms, slo_ttft_ms)


def of_run(run: Run, slo_tbt_ms: float | None, slo_ttft_ms: float | None = None) -> Recorded:
    """Summarise a Run within these limits or its own, with the uncertainty of measured numbers."""
    path, facts, prices = run.directory, _facts(run.manifest), run.manifest.deployment
    own = run.manifest.summary
    limit = facts.slo_tbt_ms if slo_tbt_ms is None else slo_tbt_ms
    first = None if own.ttft_ms is UNSET else slo_ttft_ms or own.slo.ttft_ms or None
    summary = summarise(
        run.outcome,
        run,
        mode=facts.mode,
        slo_tbt_ms=limit,
        slo_ttft_ms=first,
        prompts=own.ttft_ms is not UNSET and run.outcome.chunks is None,
        usd_per_hour=prices.usd_per_hour,
        power_w=prices.power_w,
    )
    if facts.backend == "modelled":
        return Recorded(path, facts, summary, modelled_estimates(summary), ENGINE)
    observed = ENGINE if run.outcome.chunks is None else CLIENT
    drawn = resamples(run.outcome, window(run.outcome, facts.mode), limit)
    return Recorded(path, facts, summary, _measured_estimates(summary, drawn), observed)


def of_manifest(directory: Path, manifest: Manifest, slo_tbt_ms: float) -> Recorded | None:
    """Summarise a manifest alone; None where the tables are needed: for measured Runs, and other limits."""
    if manifest.backend != "modelled" or manifest.summary.slo.tbt_ms != slo_tbt_ms:
        return None
    estimates = modelled_estimates(manifest.summary)
    return Recorded(directory, _facts(manifest), manifest.summary, estimates, ENGINE)


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
        costs=str(manifest.choices.get("costs") or ""),
        what=json.dumps(
            [*names, *where, trace.sha256, offered, options, transforms, partial], sort_keys=True
        ),
    )


def _on_boards(manifest: Manifest) -> tuple[str, str]:
    """Return the type of weights and KV on boards, and a note on the boards' prices."""
    facts = manifest.deployment.facts or {}
    if "board" not in facts:
        return "", ""
    return str(facts.get("weights_and_kv") or ""), manifest.deployment.price_note or ""


def _measured_estimates(summary: Summary, drawn: dict[str, Float64]) -> dict[str, Estimate]:
    estimates = {
        metric.name: of_resamples(metric.of(summary), drawn.get(metric.key)) for metric in SUMMARISED
    }
    rate = estimates[THROUGHPUT.name]
    for metric in SUMMARISED:
        if metric.certainty == "fixed":
            estimates[metric.name] = Estimate(metric.of(summary))
        elif metric.certainty == "throughput":
            estimates[metric.name] = Estimate(metric.of(summary), rate.error, rate.freedom)
    return estimates


# Servers whose chunks differ by less send them in the same way.
SIMILAR = 1.1
_SPLIT = "they were split evenly, so TBT of single tokens is a guess"


def comparability_warnings(entries: list[Recorded], groups: list[list[Recorded]]) -> list[str]:
    """Return warnings on comparing these Runs; each group has the rounds of one deployment."""
    return [*_of_single_runs(entries), *differences(entries), *_of_intervals(groups)]


def differences(entries: list[Recorded]) -> Iterator[str]:
    """Yield the differences between Runs that make their numbers incomparable."""
    uniform: dict[str, Callable[[Facts], str]] = {
        "traces": lambda facts: facts.trace,
        "cuts of the trace": lambda facts: facts.transforms,
        "models": lambda facts: facts.model,
        "modes": lambda facts: facts.mode,
        "backends": lambda facts: facts.backend,
    }
    for what, of in uniform.items():
        values = dict.fromkeys(of(each.facts) for each in entries)
        if len(values) > 1:
            yield f"the Runs are of different {what}{_listed(values)}: they are not comparable as such"
    if len(dict.fromkeys(each.client_only for each in entries)) > 1:
        yield (
            "some Runs saw their tokens in the engine and some as a client: a client's TBT has the network "
            "and the server's front end in it, and is 0 for a token that came in a chunk with the one before"
        )
    sizes = [size for each in entries if (size := number_at(each.summary, "tokens_per_chunk.mean"))]
    if sizes and max(sizes) > SIMILAR * min(sizes):
        text = ", ".join(f"{size:.3g}" for size in sizes)
        yield f"chunks have {text} tokens on average: TBT is of tokens, 0 within a chunk; ITL is of chunks"
    if len({each.summary.ttft_ms is UNSET for each in entries}) > 1:
        yield "some Runs have their prompts computed and some find them there: only those have a TTFT"
    sets = dict.fromkeys(each.facts.costs for each in entries if each.facts.costs)
    if len(sets) > 1:
        yield (
            f"times are of different cost sets ({', '.join(sets)}), which measured different versions: "
            "replay with the same --costs"
        )
    yield from _boards([each.facts for each in entries])
    limits = dict.fromkeys(each.summary.slo.tbt_ms for each in entries)
    if len(limits) > 1:
        text = ", ".join(f"{limit:g}" for limit in limits)
        yield f"attainment and goodput are of different TBT limits ({text} ms): --slo-tbt-ms sets one"
    firsts = dict.fromkeys(each.summary.slo.ttft_ms or None for each in entries)
    if len(firsts) > 1:
        text = ", ".join("none" if limit is None else f"{limit:g} ms" for limit in firsts)
        yield f"first tokens have different limits ({text}): --slo-ttft-ms sets one"


def _boards(all_facts: list[Facts]) -> Iterator[str]:
    """Yield differences between the types of boards and other devices, and assumed prices of boards."""
    models = dict.fromkeys(facts.boards_type or facts.model_type for facts in all_facts)
    if len(models) > 1 and any(facts.boards_type for facts in all_facts):
        yield f"weights and KV are not of one type ({', '.join(models)}): boards hold them in their own"
    yield from dict.fromkeys(facts.boards_prices for facts in all_facts if facts.boards_prices)


def _of_single_runs(entries: list[Recorded]) -> Iterator[str]:
    """Yield warnings on single Runs."""
    for each in entries:
        if each.facts.partial:
            yield f"{each.path} is {each.facts.partial}"
        if failed := each.summary.requests.failed:
            yield f"{each.path} has {failed:,} requests that failed: tokens they lack are in no percentile"
        if number_at(each.summary, "tokens_per_chunk.even_share"):
            yield f"{each.path} does not know which tokens a chunk had: {_SPLIT}"


def _of_intervals(groups: list[list[Recorded]]) -> Iterator[str]:
    """Yield the limits of intervals of measured Runs."""
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
    return "" if any(value.startswith("{") for value in values) else f" ({', '.join(values)})"
