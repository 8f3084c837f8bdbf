"""A Run as the page shows it, in one name and colour, and what is to be known before Runs are compared."""

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

# Three to one against white and against the page's dark.
COLOURS = colours(page=True)
OTHERS = (PURPLE, "#8a7f2d", "#a0643c")
# Runs of one system have its colour, so the line tells them apart, and in bars the pattern.
DASHES = ("solid", "dash", "dot", "dashdot", "longdash")
PATTERNS = ("", "/", "x", ".", "-")

# What a name has beside system and deployment, where Runs are alike in these.
_TELLING: tuple[Callable[[Manifest], object], ...] = (
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
    recorded: Recorded  # what it comes to at the page's limit, and how sure that is
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
        """What was in time; worked out again where the page's limit is not the Run's."""
        return self.recorded.summary.slo

    def number_at(self, key: str) -> float | None:
        """A number of its summary, at the page's limit."""
        return number_at(self.recorded.summary if key.startswith(("slo.", "memory.")) else self.summary, key)

    @property
    def measured(self) -> bool:
        return self.manifest.backend == "live"

    @property
    def backend(self) -> str:
        """Modelled, emulated and measured numbers are never shown without saying which."""
        return NUMBERS[self.manifest.backend]

    @property
    def partial(self) -> str | None:
        """What it did, to follow its name, where it ended before its trace did."""
        return self.manifest.partial.ended if self.manifest.partial else None

    @property
    def seen_by_client(self) -> bool:
        """Its chunks are known and its iterations are not."""
        return self.run.outcome.chunks is not None

    @property
    def unfinished(self) -> int:
        """Requests that a Run was stopped before, or in the middle of."""
        return self.summary.requests.unfinished

    @property
    def window(self) -> Window:
        return self.summary.window


def shown(runs: Sequence[Run], slo_tbt_ms: float | None = None) -> list[Shown]:
    """The Runs in their order, at one limit, by default the first's; told apart by name, colour and line."""
    limit = runs[0].manifest.summary.slo.tbt_ms if slo_tbt_ms is None else slo_tbt_ms
    return told_apart([(run, of_run(run, limit)) for run in runs])


def told_apart(recorded: Sequence[tuple[Run, Recorded]]) -> list[Shown]:
    """The same of Runs that are summarised already."""
    runs = [run for run, _ in recorded]
    names, seen = _names([run.manifest for run in runs]), Counter[str]()
    names = [
        f"{name} (PARTIAL)" if run.manifest.partial else name
        for name, run in zip(_unique(names, [run.directory.name for run in runs]), runs, strict=True)
    ]
    strangers = [
        system for system in dict.fromkeys(run.manifest.system for run in runs) if system not in COLOURS
    ]
    found = []
    for number, ((run, summarised), name) in enumerate(zip(recorded, names, strict=True)):
        system = run.manifest.system
        colour = COLOURS.get(system) or OTHERS[strangers.index(system) % len(OTHERS)]
        nth = seen[colour]
        seen[colour] += 1
        dash, pattern = DASHES[nth % len(DASHES)], PATTERNS[nth % len(PATTERNS)]
        found.append(Shown(run, summarised, number, name, colour, dash, pattern))
    return found


def _names(manifests: Sequence[Manifest]) -> list[str]:
    """System and deployment, and of the rest as much as it takes to tell the Runs apart."""
    names = [f"{manifest.system} {manifest.deployment.name}" for manifest in manifests]
    for telling in _TELLING:
        facts = [telling(manifest) for manifest in manifests]
        if len(set(names)) < len(names) and len(set(facts)) > 1:
            names = [f"{name}, {fact}" if fact else name for name, fact in zip(names, facts, strict=True)]
    return names


def _unique(names: Sequence[str], folders: Sequence[str]) -> list[str]:
    """Equal ones with the name of their folder, or else with a number."""
    times = Counter(names)
    found = [
        f"{name} ({folder})" if times[name] > 1 else name for name, folder in zip(names, folders, strict=True)
    ]
    times, nth = Counter(found), Counter[str]()
    for place, name in enumerate(found):
        nth[name] += 1
        if times[name] > 1:
            found[place] = f"{name} {nth[name]}"
    return found


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
            "does not know which tokens a chunk had: they were dealt evenly, so TBT of "
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
