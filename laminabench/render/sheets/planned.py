"""Tables of a comparison whose deployments a plan has chosen: what each needs under each load, and curves."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from laminabench.analysis.binding import binding_of
from laminabench.render.format import number, share
from laminabench.render.model import Cell as Written
from laminabench.render.model import Row, Sheet
from laminabench.runs.summary import number_at
from laminabench.workflows.compare.cells import Cell
from laminabench.workflows.compare.curves import Curve, CurvePoint
from laminabench.workflows.compare.planned import Load


def sheet_of_load(load: Load, cell: Cell, base: str, notes: Iterable[str]) -> Sheet:
    """Return a row for each system, the cheapest tokens first."""
    prompts = cell.slo_ttft_ms is not None or load.question.prompts
    columns = [
        *("system", "needs", ">$/h", ">tokens/s", ">TBT p50 ms", ">p99 ms", ">in limit"),
        *((">TTFT p99 ms",) if prompts else ()),
        *(">$/M tokens", f">tokens/$ over {base}"),
    ]
    names = sorted(cell.summaries, key=lambda name: number_at(cell.summaries[name], _COST) or 0.0)
    rows = [_row(load, cell, name, base, prompts=prompts) for name in names]
    binds = (f"what binds {name}: {binding_of(cell.summaries[name])}" for name in names)
    return Sheet(_title(load, cell), columns, rows, [*binds, *notes])


_COST = "cost.usd_per_million_tokens"


def _title(load: Load, cell: Cell) -> str:
    first = f" and TTFT p99 of {cell.slo_ttft_ms:g} ms" if cell.slo_ttft_ms else ""
    return (
        f"{cell.model} on {cell.trace}, {load.name}, modelled with {cell.costs}: the cheapest of each system "
        f"within a TBT p99 of {cell.slo_tbt_ms:g} ms{first}, for at most ${load.plan.budget:.2f} an hour"
    )


def _row(load: Load, cell: Cell, name: str, base: str, *, prompts: bool) -> Row:
    summary, candidate = cell.summaries[name], load.best[name].candidate
    of_others = str(candidate).removeprefix(f"{candidate.system} ")
    p50, p99, ttft, cost, attained = (
        number_at(summary, key)
        for key in ("tbt_ms.p50", "tbt_ms.p99", "ttft_ms.p99", _COST, "slo.token_attainment")
    )
    gain = cell.gain_per_dollar_of(name, base)
    written = [
        Written(name),
        Written(of_others),
        Written(f"{cell.usd_per_hour[name]:.2f}", cell.usd_per_hour[name]),
        Written(number(cell.throughput_tokens_per_s[name]), cell.throughput_tokens_per_s[name]),
        Written(number(p50), p50),
        _limited(p99, cell.slo_tbt_ms),
        Written(share(attained), attained),
        *([_limited(ttft, cell.slo_ttft_ms)] if prompts else []),
        Written("-" if cost is None else f"{cost:.3f}", cost),
        Written("-" if name == base else f"{gain:+.1%}", gain),
    ]
    return [each._replace(tone="strong") for each in written] if name == load.winner else written


def _limited(time_ms: float | None, limit_ms: float | None) -> Written:
    """Return a time, marked where it is over the limit."""
    over = time_ms is not None and limit_ms is not None and time_ms > limit_ms
    return Written(number(time_ms), time_ms, tone="bad" if over else "")


def curves_sheet(named: Sequence[tuple[str, Curve]]) -> Sheet:
    """Return a row a point, curve by curve."""
    columns = (
        "",
        ">at most",
        ">mean batch",
        ">TBT p50 ms",
        ">TBT p99 ms",
        ">tokens/s",
        ">$ a million tokens",
    )
    rows: list[Row] = [[name, *_numbers(each)] for name, curve in named for each in curve.points]
    return Sheet("Cost and time between tokens by requests at once, modelled, saturated", columns, rows)


def _numbers(point: CurvePoint) -> list[Written]:
    times = (1000 * point.tbt_p50_s, 1000 * point.tbt_s)
    values = (point.batch, point.mean_batch, *times, point.tokens_per_s, point.dollars_per_million)
    return [Written(number(each), each) for each in values]
