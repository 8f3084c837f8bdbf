"""Tables of `laminabench compare`, for terminals and Markdown."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from laminabench.analysis.binding import binding_of
from laminabench.analysis.estimate import Estimate, Interval
from laminabench.analysis.metrics_table import Metric
from laminabench.catalog.models import DTYPE_BYTES
from laminabench.render.format import gigabytes, number, share
from laminabench.render.model import Cell as Written
from laminabench.render.model import Sheet
from laminabench.render.sheets.planned import sheet_of_load
from laminabench.render.terminal import literal, print_answer, print_sheet
from laminabench.runs.summary import number_at
from laminabench.systems.registry import system
from laminabench.util import markdown
from laminabench.util.atomic import replacing
from laminabench.workflows.compare.assumptions import assumptions
from laminabench.workflows.compare.cells import Cell
from laminabench.workflows.compare.sides import Row as MetricRow
from laminabench.workflows.compare.sides import Side, SideBySide
from laminabench.workflows.compare.spec import types_in
from laminabench.workflows.compare.systems import Compared

if TYPE_CHECKING:
    from rich.console import Console

_NARROW_KV = (
    "cost sets measured attention on 16 bits: its share of the memory's bandwidth is taken to be as high"
)


def sheet_of_runs(compared: SideBySide) -> Sheet:
    """Return metrics by Runs."""
    notes = []
    if any(side.backend != "modelled" for side in compared.sides):
        notes.append("in brackets: 95 % intervals of what was measured; what was modelled is exact")
    return _by_metric(compared, "Runs side by side", notes)


def sheets_of_systems(compared: Compared) -> list[Sheet]:
    """Return one cell by its metrics, several as a grid, or what each system needs under each load."""
    if compared.loads:
        return list(_sheets_of_loads(compared))
    if len(compared.cells) == 1:
        return [sheet_of_cell(compared.cells[0], compared.base)]
    return sheets_of_grid(compared.cells, compared.base, as_published=not compared.request.deployments)


def _sheets_of_loads(compared: Compared) -> Iterator[Sheet]:
    """Yield a table for each load; notes that several have are under the first."""
    cells = {(cell.costs, cell.load): cell for cell in compared.cells}
    noted: set[str] = set()
    for load in compared.loads:
        cell = cells.get((load.question.costs.name, load.name))
        if cell:
            notes = [note for note in _under([cell], compared.base) if note not in noted]
            noted.update(notes)
            yield sheet_of_load(load, cell, compared.base, notes)


def sheet_of_cell(cell: Cell, base: str) -> Sheet:
    """Return metrics by systems."""
    left_out = f"{cell.dropped:,} requests" if cell.dropped else "no request"
    title = f"{cell.model} on {cell.trace}, modelled with {cell.label}, {left_out} left out"
    binds = [f"what binds {name}: {binding_of(summary)}" for name, summary in cell.summaries.items()]
    return _by_metric(cell.sides(base), title, [*binds, *_under([cell], base)])


def _under(cells: list[Cell], base: str) -> list[str]:
    """Return the notes under a cell's table."""
    return [*behind(cells, base), *_assumed(cells, [*cells[0].summaries])]


def sheets_of_grid(cells: list[Cell], base: str, *, as_published: bool) -> list[Sheet]:
    """Return a line for each cell, then gains by model and trace, the layout of v2 Figure 10."""
    others = [name for name in cells[0].summaries if name != base]
    # Hypothetical cells (equal hosts) are only in the notes under the gains.
    sourced = [cell for cell in cells if not cell.same_host]
    return [_lines(sourced, [base, *others]), *(_gains(cells, base, name, as_published) for name in others)]


def _lines(cells: list[Cell], names: list[str]) -> Sheet:
    """Return the numbers of Figure 10 for each cell, the base system first."""
    prompts = (">TTFT p99 ms",) if _ttft(cells[0], names) else ()
    numbers = (">tokens/s", ">mean batch", ">ratio", ">TBT p50 ms", *prompts, ">left out")
    deployed = dict.fromkeys(_deployed(cell, names) for cell in cells)
    title = f"{' / '.join(names)}, modelled"
    notes = (*deployed, *behind(cells, names[0]))
    rows = [_line(cell, names) for cell in cells]
    first = "reading" if any(cell.reading for cell in cells) else "costs"
    return Sheet(title, (first, "model", "trace", *numbers), rows, notes=notes)


def behind(cells: Sequence[Cell], base: str) -> Iterator[str]:
    """Yield the assumptions behind the numbers: types, prices, watts, and break-even prices."""
    for cell in cells:
        where = "" if len(cells) == 1 else f"{cell.model} on {cell.trace}, {cell.label}: "
        for name, others in cell.break_evens(base).items():
            for other, usd in others.items():
                even = f"{name} breaks even with {other} at ${usd:.2f} an hour a board"
                yield f"{where}{even}: as many tokens a dollar"
    narrow = dict.fromkeys(_narrow(cell) for cell in cells)
    yield from (each for each in narrow if each)
    yield from dict.fromkeys(itertools.chain.from_iterable(cell.assumed for cell in cells))


def _narrow(cell: Cell) -> str:
    """Return which weights and KV are not in 16 bits."""
    kinds: dict[str, list[str]] = {}
    for name, kind in cell.storage_types.items():
        kinds.setdefault(kind, []).append(name)
    types = {kind: types_in(kind) for kind in kinds}
    wide = [kind for kind, (dtypes, kv) in types.items() if {DTYPE_BYTES[t] for t in {*dtypes, kv}} == {2}]
    if len(wide) == len(kinds):
        return ""
    exceptions = "; ".join(f"{kind}: {', '.join(names)}" for kind, names in kinds.items())
    narrow = " (--model NAME@fp8 models the others' in 8 bits too)" if wide else ""
    of_sets = {types[kind][1] for name, kind in cell.storage_types.items() if name not in cell.boards}
    unmeasured = "" if all(DTYPE_BYTES[kv] == 2 for kv in of_sets) else f" ({_NARROW_KV})"
    return f"weights and KV of {cell.model} are in {exceptions}{narrow}{unmeasured}"


def _line(cell: Cell, names: list[str]) -> tuple[str, ...]:
    rate, batch, tbt = cell.throughput_tokens_per_s, cell.mean_batch, cell.tbt_ms
    return (
        *(cell.label, cell.model, cell.trace),
        " / ".join(f"{rate[name]:,.0f}" for name in names),
        " / ".join(number(batch[name]) for name in names),
        " / ".join(f"{batch[name] / batch[names[0]]:.2f}" for name in names[1:]),
        " / ".join(number(tbt[name]) for name in names),
        *_ttft(cell, names),
        f"{cell.dropped:,}",
    )


def _ttft(cell: Cell, names: list[str]) -> tuple[str, ...]:
    """Return the cell of TTFT where prompts are computed."""
    values = [number_at(cell.summaries[name], "ttft_ms.p99") for name in names]
    return () if all(each is None for each in values) else (" / ".join(map(number, values)),)


def _deployed(cell: Cell, names: list[str]) -> str:
    each = (f"{name} {cell.deployments[name]} for ${cell.usd_per_hour[name]:.2f} an hour" for name in names)
    return f"{cell.model}: {', '.join(each)}"


def _gains(cells: list[Cell], base: str, name: str, as_published: bool) -> Sheet:
    """Return gains over the base: models and eras or cost sets by trace."""
    models, bands, traces = (
        list(dict.fromkeys(names)) for names in zip(*((c.model, c.band, c.trace) for c in cells), strict=True)
    )
    groups: dict[tuple[str, str, str], list[Cell]] = {}
    for cell in cells:
        if not cell.same_host:
            groups.setdefault((cell.model, cell.band, cell.trace), []).append(cell)
    rows = itertools.product(models, bands)
    lines = [line for band in bands for line in _summaries(cells, band, name, base)]
    if as_published and base in (published := system(name).PUBLISHED):
        lines.append(published[base])
    first = "era" if any(cell.reading for cell in cells) else "costs"
    return Sheet(
        f"gain in throughput, {name} over {base} (in brackets: at exactly equal cost)",
        ("model", first, *(f">{trace}" for trace in traces)),
        [(*row, *(_gain(groups[(*row, trace)], name, base) for trace in traces)) for row in rows],
        notes=(*lines, *_assumed(cells, [base, name])),
    )


def _gain(ends: list[Cell], name: str, base: str) -> str:
    gains = [cell.gain_of(name, base) for cell in ends]
    per_dollar = [cell.gain_per_dollar_of(name, base) for cell in ends]
    return f"{_span(gains)} ({_span(per_dollar)})"


def _span(gains: Sequence[float]) -> str:
    """Format the lowest and the highest value, or the only one."""
    return " to ".join(dict.fromkeys(f"{end:+.1%}" for end in (min(gains), max(gains))))


def _summaries(cells: list[Cell], band: str, name: str, base: str) -> Iterator[str]:
    """Yield a band's gains, and the same with all hosts as slow as the era system's."""
    for same_host, title in ((False, band), (True, f"{band} with all hosts as slow")):
        own = [cell for cell in cells if cell.band == band and cell.same_host == same_host]
        if own:
            gains = [cell.gain_of(name, base) for cell in own]
            ratio = sum(cell.mean_batch[name] / cell.mean_batch[base] for cell in own) / len(own)
            count = len({(cell.model, cell.trace) for cell in own})
            yield (
                f"{title}: gain {min(gains):+.1%} to {max(gains):+.1%}, mean batch ratio {ratio:.2f} "
                f"over {count} cell{'s' * (count > 1)}"
            )


def _assumed(cells: Sequence[Cell], names: Sequence[str]) -> Iterator[str]:
    yield from assumptions(cells, names)
    if any(cell.reading for cell in cells):
        yield "where an era's numbers are from: laminabench costs eras"


def _by_metric(compared: SideBySide, title: str, notes: Sequence[str]) -> Sheet:
    if compared.slo_tbt_ms is not None:
        first = "" if compared.slo_ttft_ms is None else f", first tokens within {compared.slo_ttft_ms:g} ms"
        notes = [*notes, f"in time: within {compared.slo_tbt_ms:g} ms{first}"]
    heads = [_head(side) for side in compared.sides]
    return metric_sheet(title, heads, compared.rows(), compared.base, notes)


def metric_sheet(
    title: str, heads: Sequence[str], rows: Iterable[MetricRow], base: int, notes: Sequence[str] = ()
) -> Sheet:
    """Return metrics by what is compared: the base's value, then others' with their ratios to it."""
    others = [place for place in range(len(heads)) if place != base]
    columns = ["", f">{heads[base]}"]
    columns += [title for place in others for title in (f">{heads[place]}", ">over base")]
    lines: list[list[Written]] = []
    for row in rows:
        cells = [Written(row.metric.title), _value(row.metric, row.values[base])]
        for place in others:
            cells += [_value(row.metric, row.values[place]), _over(row.metric, row.ratios[place])]
        lines.append(cells)
    return Sheet(title, columns, lines, notes)


def _head(side: Side) -> str:
    rounds = f", {len(side.runs)} rounds" if len(side.runs) > 1 else ""
    on = "" if side.deployment in side.label else f" {side.deployment}"
    return f"{side.label}{on} ({side.backend}{rounds})"


def _value(metric: Metric, estimate: Estimate) -> Written:
    written = share if metric.is_share else gigabytes if metric.unit == "bytes" else number
    return _with_interval(estimate, metric.interval(estimate), written)


def _over(metric: Metric, ratio: Estimate) -> Written:
    """Return a ratio; only a difference that is shown and not chance is called better or worse."""
    cell = _with_interval(ratio, ratio.interval, lambda value: "-" if value is None else f"{value:.3f}")
    # Counts of requests by outcome have no better direction.
    sense = None if metric.key.startswith("requests.") else metric.better
    interval = ratio.interval
    sure = ratio.exact or (interval is not None and not interval.low <= 1 <= interval.high)
    if sense and sure and ratio.value is not None and cell.text != "1.000":
        return cell._replace(tone="good" if (ratio.value > 1) == (sense == "more") else "bad")
    return cell


def _with_interval(
    estimate: Estimate, interval: Interval | None, written: Callable[[float | None], str]
) -> Written:
    sure = f"({written(interval.low)} to {written(interval.high)})" if interval else ""
    return Written(written(estimate.value), estimate.value, more=sure)


def print_sheets(
    console: Console, sheets: Sequence[Sheet], answer: Sequence[str], failed: Sequence[str]
) -> None:
    """Print the answer, then the tables, then a line for every gate that failed."""
    print_answer(console, answer)
    for place, sheet in enumerate(sheets):
        if place:
            console.print()
        print_sheet(console, sheet)
    for line in failed:
        console.print(f"[red]failed[/red] {literal(line)}", soft_wrap=True)


def write_markdown(path: Path, sheets: Sequence[Sheet], notes: Sequence[str], failed: Sequence[str]) -> None:
    """Write the tables with the notes, for a comment or a page."""
    parts = [sheet.to_markdown() for sheet in sheets]
    paragraphs = [*map(markdown.plain, notes), *(f"**failed** {markdown.plain(line)}" for line in failed)]
    parts += [[f"- {line}" for line in paragraphs]] if paragraphs else []
    with replacing(path) as temporary:
        temporary.write_text("\n\n".join("\n".join(part) for part in parts) + "\n", encoding="utf-8")
