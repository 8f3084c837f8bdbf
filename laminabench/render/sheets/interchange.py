"""An imported Run: the tool's own numbers, those recomputed from its requests, and ours."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from laminabench.render.terminal import literal
from laminabench.util.json import Json, to_json

if TYPE_CHECKING:
    from rich.console import Console

    from laminabench.interchange.importing import Imported

# The main numbers of each tool by its names, with their names here.
_SHOWN = {
    "aiperf": {
        "time_to_first_token avg": "TTFT mean, ms",
        "time_to_first_token p99": "TTFT p99, ms",
        "inter_token_latency avg": "ITL mean of a request (our TPOT), ms",
        "inter_token_latency p99": "ITL p99",
        "inter_chunk_latency avg": "ICL mean (our ITL), ms",
        "output_token_throughput avg": "output tokens/s",
        "request_throughput avg": "requests/s",
    },
    "vllm bench serve": {
        "mean_ttft_ms": "TTFT mean, ms",
        "p99_ttft_ms": "TTFT p99, ms",
        "mean_tpot_ms": "TPOT mean, ms",
        "p99_tpot_ms": "TPOT p99, ms",
        "mean_itl_ms": "ITL mean, ms",
        "p99_itl_ms": "ITL p99, ms",
        "output_throughput": "output tokens/s",
        "request_throughput": "requests/s",
    },
    "guidellm": {
        "time_to_first_token_ms mean": "TTFT mean, ms",
        "time_to_first_token_ms p99": "TTFT p99, ms",
        "inter_token_latency_ms mean": "ITL mean by tokens (our mean TBT), ms",
        "inter_token_latency_ms p99": "ITL p99 (of request means), ms",
        "output_tokens_per_second mean": "output tokens/s",
    },
}


def described(each: Imported, place: Path) -> dict[str, Json]:
    """Return the object for --json."""
    benchmark, summary = each.benchmark, each.summary
    return {
        "run_dir": str(place),
        "tool": benchmark.tool,
        "version": benchmark.version or None,
        "model": each.manifest.model_name,
        "backend": each.manifest.backend,
        "mode": benchmark.mode,
        "concurrency": benchmark.concurrency,
        "requests": to_json(summary.requests),
        "tokens_generated": summary.tokens_generated,
        "stated": dict(benchmark.stated),
        "recounted": dict(benchmark.recounted),
        "differences": benchmark.differences(),
        "notes": each.notes,
        "summary": to_json(summary),
    }


def render(console: Console, results: Iterable[tuple[Imported, Path]]) -> None:
    for result, place in results:
        _render(console, result, place)


def _render(console: Console, result: Imported, place: Path) -> None:
    benchmark, summary = result.benchmark, result.summary
    how = f"{result.manifest.backend}, {benchmark.mode}"
    counts = ", ".join(f"{count:,} {end}" for end, count in to_json(summary.requests).items() if count)
    console.print(
        f"{literal(str(place))}: {literal(result.manifest.model_name)}, {benchmark.called}, {how}, {counts}",
        soft_wrap=True,
    )
    shown = _SHOWN[benchmark.tool]
    width = max(map(len, shown.values()))
    console.print(f"  {'':<{width}}  {'as stated':>12}  {'recounted':>12}", soft_wrap=True)
    for name, title in shown.items():
        stated, recounted = (_number(each.get(name)) for each in (benchmark.stated, benchmark.recounted))
        console.print(f"  {title:<{width}}  {stated:>12}  {recounted:>12}", soft_wrap=True)
    tbt, whole_run = summary.tbt_ms, summary.whole_run
    assert whole_run is not None
    console.print(
        f"  ours: TBT of tokens mean {_number(tbt.mean)}, p99 {_number(tbt.p99)} ms in the window "
        f"({summary.window.kind.replace('_', ' ')}); {_number(whole_run.throughput_tokens_per_s)} "
        "tokens/s of the whole run",
        soft_wrap=True,
    )


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:,.4g}" if abs(value) < 1000 else f"{value:,.0f}"
