"""Inputs of the papers' figures: traces, cost sets and measurements of this project."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from laminabench.catalog.cost_file import load_costs
from laminabench.catalog.costs import CostSet
from laminabench.papers.entries import entry_of
from laminabench.traces.resolve import resolve
from laminabench.traces.table import Trace

# Sets measured on real devices by others; the range between them is the uncertainty.
COST_SETS = ("vllm-0.14", "vidur-2024")
# v2 Table 4's.
TRACES = ("azure-conv", "azure-code", "kimi-conv", "kimi-ta")
# v1 section 6.4's.
V1_TRACES = ("sharegpt",)


def saved_results() -> Path | None:
    """Return the folder of this project's measurements: in the working folder, or in the checkout."""
    checkout = Path(__file__).parents[2] / "results"
    return next((folder for folder in (Path("results"), checkout) if folder.is_dir()), None)


@dataclass(frozen=True, slots=True)
class Context:
    """The options of one call of `figures`."""

    results: Path | None = None  # a folder of measurements
    num_requests: int | None = None  # of each trace, from its beginning; all, if None
    offline: bool = False
    cost_sets: tuple[str, ...] = field(default=COST_SETS)
    # Worker processes get what was loaded before them.
    _loaded: dict[str, Trace] = field(default_factory=dict, repr=False, compare=False)

    def trace(self, name: str) -> Trace:
        """Return the trace of that name, or its beginning."""
        if name not in self._loaded:
            trace = resolve(name, offline=self.offline)
            self._loaded[name] = trace if self.num_requests is None else trace.first(self.num_requests)
        return self._loaded[name]

    def published(self, name: str) -> dict[str, Any]:
        """Return the published values of a figure's claims by their ids."""
        return entry_of(name).published

    @property
    def draft(self) -> bool:
        """Whether traces are shortened."""
        return self.num_requests is not None

    def costs(self) -> list[CostSet]:
        """Return the sets that gains are a band over."""
        return [load_costs(name) for name in self.cost_sets]

    @property
    def sets(self) -> str:
        """The names of the cost sets, for a sentence."""
        return " and ".join(self.cost_sets)

    def source_of(self, *names: str) -> str:
        """Describe where these traces are from."""
        made = [name for name in names if self.trace(name).meta.source != "file"]
        if not made:
            return "real traces"
        others = "" if len(made) == len(names) else ", the others real"
        return f"{', '.join(made)} generated from fitted profiles{others}"

    def fetch(self) -> list[str]:
        """Load all traces that figures use, so that no two processes do; return those that are generated."""
        return [name for name in (*TRACES, *V1_TRACES) if self.trace(name).meta.source != "file"]

    def measured(self, name: str) -> Path | None:
        """Return a measurement of this project, if there is one at hand."""
        path = None if self.results is None else self.results / name
        return path if path is not None and path.exists() else None
