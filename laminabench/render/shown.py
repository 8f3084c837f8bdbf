"""Runs as pages show them, with distinct names and colours, and caveats of comparing them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from laminabench.render.style import PURPLE
from laminabench.runs.manifest import NUMBERS, Manifest
from laminabench.runs.read import Run
from laminabench.runs.summary import Attainment, EngineSummary, Summary, Window, number_at
from laminabench.systems.registry import colours
from laminabench.workflows.compare.recorded import Recorded, differences, of_run

# Contrast 3:1 against white and against the page's dark.
COLOURS = colours(page=True)
OTHERS = (PURPLE, "#8a7f2d", "#a0643c")
# Runs of one system share its colour; lines differ in dash, bars in pattern.
DASHES = ("solid", "dash", "dot", "dashdot", "longdash")
PATTERNS = ("", "/", "x", ".", "-")

# Parts of a name that distinguish Runs of equal system and deployment.
_DISTINGUISHING: tuple[Callable[[Manifest], object], ...] = (
    lambda manifest: manifest.model_name,
    lambda manifest: manifest.trace.name,
    lambda manifest: manifest.choices.get("costs", manifest.choices.get("costs_name")),
    lambda manifest: manifest.workload.mode,
    lambda manifest: _fact(manifest, "board"),
    lambda manifest: _fact(manifest, "mapping"),
    lambda manifest: manifest.backend,
    lambda manifest: _fact(manifest, "prefill"),
)


def _fact(manifest: Manifest, fact: str) -> str | None:
    value = (manifest.deployment.facts or {}).get(fact)
    return f"{fact} {value}" if value and value != "off" else None


@dataclass(frozen=True, slots=True)
class Shown:
    run: Run
    recorded: Recorded  # summary at the page's limit, with intervals
    number: int
    name: str
    colour: str
    dash: str
    pattern: str

    @property
    def manifest(self) -> Manifest:
        return self.run.manifest

    @property
    def summary(self) -> Summary:
        return self.run.manifest.summary

    @property
    def slo(self) -> Attainment:
        """The attainment, recomputed if the page's limit is not the Run's."""
        return self.recorded.summary.slo

    def number_at(self, key: str) -> float | None:
        """Return a number of the summary, at the page's limit."""
        return number_at(self.recorded.summary if key.startswith(("slo.", "memory.")) else self.summary, key)

    @property
    def measured(self) -> bool:
        return self.manifest.backend == "live"

    @property
    def backend(self) -> str:
        """The label of modelled, emulated or measured numbers, which are never shown without it."""
        return NUMBERS[self.manifest.backend]

    @property
    def partial(self) -> str | None:
        """The time and reason of an early end; None for a complete Run."""
        return self.manifest.partial.ended if self.manifest.partial else None

    @property
    def client_only(self) -> bool:
        """Whether only chunks are known, and no iterations."""
        return self.run.outcome.chunks is not None

    @property
    def unfinished(self) -> int:
        """The number of requests that had not finished when the Run was stopped."""
        return self.summary.requests.unfinished

    @property
    def window(self) -> Window:
        return self.summary.window


def shown(runs: Sequence[Run], slo_tbt_ms: float | None = None) -> list[Shown]:
    """Summarise Runs at one TBT limit, the first's by default, with distinct names, colours and lines."""
    limit = runs[0].manifest.summary.slo.tbt_ms if slo_tbt_ms is None else slo_tbt_ms
    return labelled([(run, of_run(run, limit)) for run in runs])


def labelled(recorded: Sequence[tuple[Run, Recorded]]) -> list[Shown]:
    """Give summarised Runs distinct names, colours and lines."""
    runs = [run for run, _ in recorded]
    names, times = _names([run.manifest for run in runs]), Counter[str]()
    names = [
        f"{name} (PARTIAL)" if run.manifest.partial else name
        for name, run in zip(_unique(names, [run.directory.name for run in runs]), runs, strict=True)
    ]
    strangers = [
        system for system in dict.fromkeys(run.manifest.system for run in runs) if system not in COLOURS
    ]
    result = []
    for number, ((run, summarised), name) in enumerate(zip(recorded, names, strict=True)):
        system = run.manifest.system
        colour = COLOURS.get(system) or OTHERS[strangers.index(system) % len(OTHERS)]
        nth = times[colour]
        times[colour] += 1
        dash, pattern = DASHES[nth % len(DASHES)], PATTERNS[nth % len(PATTERNS)]
        result.append(Shown(run, summarised, number, name, colour, dash, pattern))
    return result


def _names(manifests: Sequence[Manifest]) -> list[str]:
    """Name each Run by system, deployment and as much else as distinguishes it."""
    names = [f"{manifest.system} {manifest.deployment.name}" for manifest in manifests]
    for describe in _DISTINGUISHING:
        facts = [describe(manifest) for manifest in manifests]
        if len(set(names)) < len(names) and len(set(facts)) > 1:
            names = [f"{name}, {fact}" if fact else name for name, fact in zip(names, facts, strict=True)]
    return names


def _unique(names: Sequence[str], folders: Sequence[str]) -> list[str]:
    """Distinguish equal names by their folder, or else by a number."""
    times = Counter(names)
    unique = [
        f"{name} ({folder})" if times[name] > 1 else name for name, folder in zip(names, folders, strict=True)
    ]
    times, nth = Counter(unique), Counter[str]()
    for place, name in enumerate(unique):
        nth[name] += 1
        if times[name] > 1:
            unique[place] = f"{name} {nth[name]}"
    return unique


def caveats(runs: Sequence[Shown]) -> list[str]:
    """Return sentences on differences other than system and deployment."""
    sentences = list(differences([each.recorded for each in runs]))
    costs = dict.fromkeys(_costs(each.manifest) for each in runs if not each.measured)
    if len(costs) > 1:
        sentences.append(f"the Runs were modelled with different cost coefficients ({'; '.join(costs)})")
    for each in runs:
        sentences += [f"{each.name} {what}" for what in _about(each)]
    return sentences


def _about(each: Shown) -> Iterator[str]:
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
    if each.number_at("tokens_per_chunk.even_share"):
        yield (
            "does not know which tokens a chunk had: they were split evenly, so TBT of "
            "single tokens is a guess"
        )
    if faults := each.summary.fault_costs:
        yield f"had workers replaced {len(faults):,} times while it ran"
    if resumed_s := each.summary.resumed_s:
        yield f"was interrupted and resumed {len(resumed_s):,} times"
    schedule = each.summary.schedule if isinstance(each.summary, EngineSummary) else None
    if schedule and schedule.violations:
        yield "left its schedule, which is a bug of the engine"


def _costs(manifest: Manifest) -> str:
    return ", ".join(sorted({str(term["set"]) for term in manifest.coefficients if "set" in term}))
