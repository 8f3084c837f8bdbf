"""The description of a Run in a file for another tool: its label, marks and origin."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from laminabench.runs.manifest import NUMBERS, Manifest
from laminabench.util.version import __version__

# The Unix time of a Run without one: the second day, as readers take 0 for "no time".
UNKNOWN_BEGAN_S = 86_400.0


def mark_of(manifest: Manifest) -> str:
    """Return a mark in capitals for numbers that were not measured."""
    return "" if manifest.backend == "live" else NUMBERS[manifest.backend].upper()


@dataclass(frozen=True, slots=True)
class RunInfo:
    """The facts of one Run that a tool's file states."""

    name: str
    manifest: Manifest
    duration_s: float

    @property
    def mark(self) -> str:
        return mark_of(self.manifest)

    @property
    def label(self) -> str:
        """A label that says whether the numbers were measured."""
        trace, manifest = self.manifest.trace, self.manifest
        of = f"{manifest.system} {manifest.deployment.name}, {trace.name} ({trace.source})"
        how = f"{self.mark}, not measured: computed" if self.mark else "measured"
        partial = f"; {manifest.partial.sentence}" if manifest.partial else ""
        return f"{how} by laminabench {__version__}: {of}{partial}"

    @property
    def marks(self) -> dict[str, str]:
        """The parts of the label, for fields that take any key."""
        manifest = self.manifest
        return {
            "laminabench_backend": manifest.backend,
            "laminabench_version": __version__,
            "laminabench_run": self.name,
            "laminabench_system": manifest.system,
            "laminabench_deployment": manifest.deployment.name,
            "laminabench_trace": f"{manifest.trace.name} ({manifest.trace.source})",
        }

    @property
    def model(self) -> str:
        return self.manifest.model_name

    @property
    def mode(self) -> str:
        return self.manifest.workload.mode

    @property
    def concurrency(self) -> int | None:
        return self.manifest.workload.concurrency

    @property
    def url(self) -> str:
        """The server's URL, or an invalid host name where there was no server."""
        url = self.manifest.deployment.url
        return (
            url
            if isinstance(url, str) and url
            else f"http://{self.mark.lower()}.invalid"
            if self.mark
            else "http://unknown.invalid"
        )

    @property
    def began_at_s(self) -> float:
        """The Unix time of the beginning, as far as an imported file stated it."""
        facts: Any = self.manifest.deployment.facts or {}
        known = facts.get("imported", {}).get("began_at_s") if isinstance(facts, dict) else None
        return float(known) if known else UNKNOWN_BEGAN_S

    @property
    def command(self) -> str:
        return f"laminabench export (of: {self.manifest.command})"
