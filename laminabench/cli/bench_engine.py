"""`laminabench bench engine`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from laminabench.cli.output import Output, reporting
from laminabench.cli.traces.options import COUNT
from laminabench.cli.verdict import verdict
from laminabench.errors import UserError

if TYPE_CHECKING:
    from rich.console import Console


@click.command()
@click.option("--batch", type=COUNT, default=64, show_default=True, help="Requests that decode together.")
@click.option("--context", type=COUNT, default=1024, show_default=True, help="Tokens of each, on average.")
@click.option("--rounds", type=COUNT, default=7, show_default=True, help="Rounds of the alternating run.")
@click.option(
    "--threads", type=click.IntRange(min=0), default=0, help="Of the attention worker; 0: one a core."
)
@click.option(
    "--backend",
    type=click.Choice(["python", "aot"]),
    default="python",
    show_default=True,
    help="How slices run; aot compiles for about a minute the first time.",
)
@click.option(
    "--compare",
    metavar="NAMES",
    help="Let serial, rotational, one-process and vllm decode in turns instead, as serial,rotational.",
)
@click.option(
    "--output-tokens", type=COUNT, default=64, show_default=True, help="With --compare: of each request."
)
@click.option(
    "--vllm",
    "vllm_python",
    type=click.Path(dir_okay=False, path_type=Path),
    help="With --compare: another Python than that of `baseline setup vllm`.",
)
@click.option(
    "--overlap/--no-overlap", default=False, show_default=True, help="Start attention before k and v."
)
@reporting
def engine(
    batch: int,
    context: int,
    rounds: int,
    threads: int,
    backend: str,
    compare: str | None,
    output_tokens: int,
    vllm_python: Path | None,
    overlap: bool,
    out: Output,
) -> None:
    """Time iterations of a 246 M-parameter LLaMA in bfloat16 with made-up weights and KV.

    Beside them, in turn: the same matrix products alone, and how fast the memory can be read at all. With
    --compare model worker and attention worker have a core each, and layouts of them take turns, with vLLM
    if that is wanted.
    """
    from laminabench.cli.engine_extra import needed

    # Read when torch is loaded. After each matrix product its threads would go on spinning for a millisecond,
    # on the cores that attention needs then; docs/engine.md tells users of the engine.
    os.environ.setdefault("GOMP_SPINCOUNT", "2000")
    with needed():
        from lamina.kv import ArenaError
        from lamina.serve import EngineError, RequestError
        from laminabench.bench.engine import run

    if compare:
        _compare(compare, batch, context, output_tokens, rounds, vllm_python, out)
        return
    options = {"threads": threads, "backend": backend, "overlap": overlap}
    try:
        with out.progress("rounds", unit="rounds") as progress:
            result = run(batch=batch, context=context, rounds=rounds, options=options, progress=progress)
    except (ArenaError, EngineError, RequestError) as error:
        raise UserError(
            "bench-load-impossible", f"batch {batch:,}, context {context:,}, {rounds:,} rounds: {error}"
        ) from error
    out.result(result, lambda console: _render(console, result))


def _compare(
    names: str,
    batch: int,
    context: int,
    output_tokens: int,
    rounds: int,
    vllm_python: Path | None,
    out: Output,
) -> None:
    from laminabench.cli.bench_engine_compare import CONTENDERS, render

    chosen = list(dict.fromkeys(name.strip() for name in names.split(",")))
    if unknown := [name for name in chosen if name not in CONTENDERS]:
        raise UserError(
            "bench-contender-unknown",
            f"--compare {names}: '{unknown[0]}' is unknown; known are {', '.join(CONTENDERS)}",
        )
    from lamina.fhbn import ChannelError
    from lamina.kv import ArenaError
    from lamina.serve import EngineError, RequestError
    from laminabench.bench.engine_compare import compare
    from laminabench.bench.engine_contenders import Load

    if vllm_python is None and "vllm" in chosen:
        from laminabench.baselines.vllm_environment import find

        vllm_python = find("cpu").python

    try:
        with out.progress("rounds", unit="rounds") as progress:
            result = compare(
                chosen,
                Load(batch, context, output_tokens),
                rounds=rounds,
                vllm_python=vllm_python,
                progress=progress,
            )
    except (ArenaError, ChannelError, EngineError, RequestError) as error:
        raise UserError(
            "bench-load-impossible", f"--compare {names}, batch {batch:,}, context {context:,}: {error}"
        ) from error
    out.result(result, lambda console: render(console, result))


def _render(console: Console, result: dict[str, Any]) -> None:
    from rich.table import Table

    options, threads = result["options"], result["threads"]
    console.print(
        f"{result['layers']} layers, {result['gemm_parameters'] / 1e6:,.0f} M parameters in matrix products, "
        f"batch {result['batch']}, context {result['context']:,}, {result['rounds']} rounds; threads: "
        f"{threads['model']} for the model, {threads['attention']} for attention; slices by "
        f"{options['backend']}, {'with' if options['overlap'] else 'no'} overlap"
    )
    table = Table(box=None, pad_edge=False)
    table.add_column("what")
    for title in ("median", "min to max", "target", ""):
        table.add_column(title, justify="right")
    parts = result["of_which"]
    _row(table, "iteration", result["iteration_s"])
    for name in ("model", "attention", "sampling"):
        _row(table, f"  {name}", parts[f"{name}_s"])
    _row(table, "  host", parts["host_s"], result["target_host_s"], result["host_met"])
    _row(table, "the same GEMMs alone", result["gemms_alone_s"])
    bandwidth = result["read_bandwidth_bytes_per_s"]["median"]
    what = f"{result['kv_bytes'] / 1e9:.2f} GB of KV at {bandwidth / 1e9:.1f} GB/s"
    _row(table, what, result["kv_read_s"])
    ratio = result["ratio"]
    table.add_row(
        "iteration / (GEMMs + KV)",
        f"{ratio['median']:.2f}",
        f"{ratio['min']:.2f} to {ratio['max']:.2f}",
        f"{result['target_ratio']:.2f}",
        verdict(result["ratio_met"]),
    )
    console.print(table)


def _row(
    table: Any, what: str, seconds: dict[str, float], target: float | None = None, met: bool | None = None
) -> None:
    table.add_row(
        what,
        _ms(seconds["median"]),
        f"{_ms(seconds['min'])} to {_ms(seconds['max'])}",
        "" if target is None else _ms(target),
        "" if met is None else verdict(met),
    )


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:,.2f} ms"
