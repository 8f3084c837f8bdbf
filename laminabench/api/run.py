"""A Run in Python: of a replay just made, or read from its folder."""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import UNSET

from laminabench.api import frames, html
from laminabench.api.html import Picture
from laminabench.render.format import number4, share
from laminabench.render.html import sentences
from laminabench.render.sheets.replay import SOURCES, lines, on_boards
from laminabench.render.terminal import without_markup
from laminabench.runs.format import MANIFEST
from laminabench.runs.manifest import NUMBERS, Manifest
from laminabench.runs.read import Run as Table
from laminabench.runs.read import read_run
from laminabench.runs.schema import TABLES
from laminabench.runs.summary import Attainment, Cost, Percentiles, Summary
from laminabench.util.errors import UserError

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

    from laminabench.util.json import JsonObject
    from laminabench.workflows.replay import Result

# What a line or two has of the lines that the command prints.
_IN_SHORT = ("throughput", "TTFT in ms", "TBT in ms", "within", "both limits", "cost", "requests")


class Run:
    """The result of one replay: its numbers, its tables, its pictures.

    Made by `replay` and `read`. Numbers are of the steady window, as docs/metrics.md defines them; names
    carry units, and times between tokens are in milliseconds.

    Examples:
        >>> import laminabench as lb
        >>> run = lb.replay("profile:azure-conv", system="lamina", num_requests=200)
        >>> run.measured, run.tbt.p99 > run.tbt.p50 > 0
        (False, True)
        >>> int(run.requests.output_tokens.sum()) == run.summary.tokens_generated
        True
    """

    def __init__(
        self,
        table: Table,
        *,
        path: Path | None,
        result: Result | None = None,
        notes: Sequence[str] = (),
    ) -> None:
        self._table = table
        self._result = result
        self.path = path
        """Folder of the Run; None if it is in memory only."""
        self.notes = tuple(notes)
        """What a reader of the numbers should know, a sentence each."""

    @property
    def manifest(self) -> Manifest:
        """All that run.json says: the trace, the request, every coefficient with its source."""
        return self._table.manifest

    @property
    def summary(self) -> Summary:
        """Every number, typed; docs/metrics.md has their formulas."""
        return self.manifest.summary

    @property
    def measured(self) -> bool:
        """Whether it was measured, live on a machine; else it is modelled, or emulated."""
        return self.manifest.backend == "live"

    @property
    def tbt(self) -> Percentiles:
        """Time between tokens in ms: `mean, p50, p90, p99, p99_9, max`."""
        return self.summary.tbt_ms

    @property
    def ttft(self) -> Percentiles | None:
        """Time to the first token in ms; None where prompts were there already."""
        return None if self.summary.ttft_ms is UNSET else self.summary.ttft_ms

    @property
    def throughput_tokens_per_s(self) -> float | None:
        """Output tokens a second."""
        return self.summary.throughput_tokens_per_s

    @property
    def goodput_tokens_per_s(self) -> float | None:
        """Output tokens a second that came within the limit."""
        return self.summary.slo.goodput_tokens_per_s

    @property
    def attainment(self) -> Attainment:
        """Shares of 1 within the limit: `token_attainment`, `request_attainment`."""
        return self.summary.slo

    @property
    def cost(self) -> Cost:
        """`usd_per_hour`, `usd_per_million_tokens`, `tokens_per_usd`; None where a device has no price."""
        return self.summary.cost

    @functools.cached_property
    def requests(self) -> pd.DataFrame:
        """A row a request, in the trace's order; `attrs["columns"]` says what each column is."""
        return frames.requests(self._table)

    @functools.cached_property
    def iterations(self) -> pd.DataFrame:
        """A row an iteration of decoding, in the order of their starts."""
        return frames.iterations(self._table)

    def plot(self) -> Picture:
        """Plot tokens a second and time between tokens over time, as `laminabench replay --plot` does."""
        return Picture(self._figure)

    def report(self, path: str | os.PathLike[str], *, title: str | None = None) -> Path:
        """Write one HTML page that needs no network, as `laminabench report`."""
        from laminabench.render.report import report, write_page
        from laminabench.render.shown import shown

        target = Path(path)
        write_page(report(shown([self._table]), title, None), target)
        return target

    def timeline(self, path: str | os.PathLike[str], window: tuple[float, float] | None = None) -> Path:
        """Write the work of some seconds for ui.perfetto.dev: .json or .json.gz."""
        from laminabench.sim.timeline import check_suffix

        target = Path(path)
        check_suffix(target)
        if self._result is None or self._result.replayed.draw is None:
            raise UserError(
                "timeline-unknown",
                "a timeline is drawn right after a replay of lamina, vllm or afd, and "
                f"{self.path or self.manifest.system} is none: replay again, then call timeline()",
            )
        self._result.draw_timeline(target, None if window is None else f"{window[0]}:{window[1]}")
        return target

    def save(self, path: str | os.PathLike[str]) -> Run:
        """Save as a folder that every command reads, and return the saved Run."""
        from laminabench.runs.write import write_run

        target = Path(path)
        other_files = self._result.replayed.files if self._result else _other_files(self._table.directory)
        write_run(target, self._table.outcome, self._table, self.manifest, other_files)
        return Run(self._table, path=target, result=self._result, notes=self.notes)

    def table(self, name: str) -> Table:
        """Return the Run as internal functions take it, named by its folder or else `name`."""
        table = self._table
        folder = self.path or Path(name)
        return Table(folder, table.manifest, table.outcome, table.prompt_tokens, table.output_tokens)

    def __repr__(self) -> str:
        short = [f"{label:15}{line}" for label, line in self._lines() if label.startswith(_IN_SHORT)]
        return "\n".join((f"{self._headline()} ({self._how()})", *short, *self._partial()))

    def _repr_html_(self) -> str:
        summary = self.summary
        facts = [
            (number4(summary.throughput_tokens_per_s), "tokens/s"),
            (number4(summary.tbt_ms.p99), "ms TBT p99"),
            *([(number4(self.ttft.p99), "ms TTFT p99")] if self.ttft else []),
            (share(summary.slo.token_attainment), f"of tokens within {summary.slo.tbt_ms:g} ms"),
            (number4(summary.cost.usd_per_million_tokens), "$ a million tokens"),
        ]
        badges = [
            NUMBERS[self.manifest.backend],
            *(["partial"] if self.manifest.partial else []),
        ]
        partial = sentences(list(self._partial()), "verdicts")
        notes = [*self.notes, *([f"saved in {self.path}"] if self.path else [])]
        title = f"{self._headline()} ({self._how()})"
        return html.block(
            title, partial, html.cards(facts), html.lines(self._lines()), sentences(notes), badges=badges
        )

    def _facts(self) -> JsonObject:
        return self.manifest.deployment.facts or {}

    def _headline(self) -> str:
        trace, manifest = self.manifest.trace, self.manifest
        count = f"{trace.requests or len(self._table.prompt_tokens):,} requests"
        on = f"on {manifest.system} {manifest.deployment.name} with {manifest.model_name}"
        return f"{trace.name}, {SOURCES.get(trace.source, trace.source)}, {count} {on}"

    def _how(self) -> str:
        boards = on_boards(self.manifest.deployment.name, self._facts())
        costs = self.manifest.choices.get("costs")
        how = "live, measured" if self.measured else NUMBERS[self.manifest.backend]
        return ", ".join((self.manifest.workload.mode, *boards, how, *([f"costs {costs}"] if costs else [])))

    def _lines(self) -> Iterator[tuple[str, str]]:
        for label, line in lines(self.summary, self._facts()):
            yield label, without_markup(line)

    def _partial(self) -> Iterator[str]:
        if self.manifest.partial:
            yield self.manifest.partial.sentence

    def _figure(self) -> Figure:
        from laminabench.render.static.pictures import replay_picture

        manifest = self.manifest
        partial = ", PARTIAL" if manifest.partial else ""
        boards = ", ".join(on_boards(manifest.deployment.name, self._facts()))
        what = f"{manifest.trace.name} on {manifest.system} {manifest.deployment.name}"
        how = "live, measured" if self.measured else NUMBERS[self.manifest.backend]
        title = f"{what}{f' ({boards})' if boards else ''} with {manifest.model_name}, {how}{partial}"
        return replay_picture(self._table, title)


def read(path: str | os.PathLike[str]) -> Run:
    """Read the Run in a folder, as `laminabench replay` and `Run.save` write it.

    Examples:
        >>> import laminabench as lb
        >>> try:
        ...     lb.read("no/such/folder")
        ... except lb.UserError as error:
        ...     print(f"{error.code}: {error}")
        run-not-a-run: no/such/folder is not a Run: it is not a directory
    """
    folder = Path(path)
    return Run(read_run(folder), path=folder)


def _other_files(directory: Path) -> dict[str, bytes]:
    """Return the contents of a Run's other files, which are copied unread."""
    parts = (MANIFEST, *(f"{name}.parquet" for name in TABLES))
    files = (each for each in directory.iterdir() if each.is_file() and each.name not in parts)
    return {each.name: each.read_bytes() for each in files}
