"""What the papers' figures stand on: traces, models, cost sets and kept measurements, each loaded once."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from laminabench.catalog.cost_file import load_costs
from laminabench.catalog.costs import CostSet
from laminabench.papers.entries import entry_of
from laminabench.traces.resolve import resolve
from laminabench.traces.table import Trace

# Measured on real devices by others: between them lies what is not known.
COST_SETS = ("vllm-0.14", "vidur-2024")
# v2 Table 4's.
TRACES = ("azure-conv", "azure-code", "kimi-conv", "kimi-ta")
# v1 section 6.4's.
V1_TRACES = ("sharegpt",)


def kept_results() -> Path | None:
    """Where this project keeps measurements: in the working folder, or beside the installed checkout."""
    beside = Path(__file__).parents[2] / "results"
    return next((folder for folder in (Path("results"), beside) if folder.is_dir()), None)


@dataclass(frozen=True, slots=True)
class Context:
    """The choices of one call of `figures`."""

    results: Path | None = None  # a folder of kept measurements
    num_requests: int | None = None  # of each trace, from its beginning; all, if None
    offline: bool = False
    cost_sets: tuple[str, ...] = field(default=COST_SETS)
    # Processes that draw get with the ground what was loaded before them.
    _loaded: dict[str, Trace] = field(default_factory=dict, repr=False, compare=False)

    def trace(self, name: str) -> Trace:
        """The trace of that name, or its beginning."""
        if name not in self._loaded:
            found = resolve(name, offline=self.offline)
            self._loaded[name] = found if self.num_requests is None else found.first(self.num_requests)
        return self._loaded[name]

    def published(self, name: str) -> dict[str, Any]:
        """Return the published values of a figure's claims by their ids."""
        return entry_of(name).published

    @property
    def draft(self) -> bool:
        """Whether traces are cut short."""
        return self.num_requests is not None

    def costs(self) -> list[CostSet]:
        """The sets that gains are a band over."""
        return [load_costs(name) for name in self.cost_sets]

    @property
    def sets(self) -> str:
        """Their names, for a sentence."""
        return " and ".join(self.cost_sets)

    def source_of(self, *names: str) -> str:
        """What to say of where these traces are from."""
        made = [name for name in names if self.trace(name).meta.source != "file"]
        if not made:
            return "real traces"
        others = "" if len(made) == len(names) else ", the others real"
        return f"{', '.join(made)} generated from fitted profiles{others}"

    def fetch(self) -> list[str]:
        """Get all traces that figures use, so that no two processes do; the names of those only generated."""
        return [name for name in (*TRACES, *V1_TRACES) if self.trace(name).meta.source != "file"]

    def measured(self, name: str) -> Path | None:
        """A kept measurement, if there is one at hand."""
        found = None if self.results is None else self.results / name
        return found if found is not None and found.exists() else None
