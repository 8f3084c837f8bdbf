"""`laminabench bench ...`: benchmarks of laminabench on this machine, with targets.

Commands parse their options and call a benchmark of `laminabench.bench`; how they print its report is written
once, in `measuring`.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

import click
from click.core import ParameterSource

from laminabench.cli.lazy import LazyGroup
from laminabench.cli.options import COUNT, FILE, PATH, POSITIVE, Decorator, NumberRange, option
from laminabench.cli.output import Output, reporting
from laminabench.render.terminal import literal, table
from laminabench.requests.fields import MAX_COUNT
from laminabench.util.errors import UserError
from laminabench.util.host import processor

if TYPE_CHECKING:
    from rich.console import Console

    from laminabench.bench.frame import Report, Text, Watcher

_EXAMPLES: list[str] = []
_VERDICTS = {None: "[dim]not judged[/dim]", True: "[green]met[/green]", False: "[red]missed[/red]"}


@click.group(cls=LazyGroup, examples=_EXAMPLES)
def bench() -> None:
    """Measure laminabench itself on this machine."""


def report_command(measure: Callable[..., Report], unit: str) -> click.Command:
    """Make a command of a function that takes options and a `watcher`, and returns a Report.

    The command has --json, -q and -v; `unit` is what its progress counts.
    """

    @reporting
    @functools.wraps(measure)
    def run(out: Output, **options: Any) -> None:
        from laminabench.bench.frame import Watcher

        with out.progress(unit, unit=unit) as progress:
            report = measure(watcher=Watcher(progress, out.note, out.detail), **options)
        cpu = f"{processor()}, {os.cpu_count()} cores"
        # Print first, so that the result survives a file that cannot be written.
        out.result(report.json() | {"cpu": cpu}, lambda console: render(console, [*report.text, cpu]))
        for sentence in report.write():
            out.note(sentence)
        if report.failed:
            click.get_current_context().exit(1)

    return click.command(measure.__name__)(run)


def measuring(unit: str, example: str) -> Callable[[Callable[..., Report]], click.Command]:
    """Register a benchmark as a command of `bench`; the first line of its docstring is its help."""

    def register(measure: Callable[..., Report]) -> click.Command:
        _EXAMPLES.append(f"laminabench bench {example}")
        command = report_command(measure, unit)
        bench.add_command(command)
        return command

    return register


def render(console: Console, text: Sequence[Text]) -> None:
    """Print a report's sentences, verdicts and tables."""
    from laminabench.bench.frame import Table

    def shown(cell: str | bool | None) -> str:
        return literal(cell) if isinstance(cell, str) else _VERDICTS[cell]

    for part in text:
        if not isinstance(part, Table):
            cells = [part] if isinstance(part, str) else part
            console.print(": ".join(map(shown, cells)), soft_wrap=True)
            continue
        titles = (title.removeprefix("<") if title.startswith("<") else f">{title}" for title in part.titles)
        console.print(table(list(titles), (map(shown, row) for row in part.rows)))


def seconds_option(default: float, least: str = "") -> Decorator:
    """Return the option for the time to measure; `least` is the minimum in the help."""
    return option("--seconds", POSITIVE, f"Approximate time to measure{least}.", default)


@measuring("cases", "attention")
@seconds_option(60, "; each case takes at least five rounds")
@option(
    "--kv-mb",
    POSITIVE,
    "Keys and values of one call, in MiB: more than the caches hold, or they are measured; by default 256 "
    "or twice the last one.",
)
@option("--vllm vllm_python", FILE, "Python with vLLM; default: that of `baseline setup vllm`.")
def attention(watcher: Watcher, seconds: float, kv_mb: float | None, vllm_python: Path | None) -> Report:
    """Decode attention against the memory's bandwidth and vLLM's kernel.

    In turns: what the same threads read when they only read, our kernel, the same fetching ahead into another
    cache, and, where vLLM's CPU build is, its kernel, called directly.
    """
    from laminabench.bench.attention import run

    return run(seconds, int(kv_mb * (1 << 20)) if kv_mb else None, vllm_python, watcher)


@measuring("loads", "endpoint")
@option("--request-rate", NumberRange(1, 1e6), "Requests offered per second.", 2000.0)
@option("--output-tokens", COUNT, "Output tokens of each request.", 50)
@option("--prompt-tokens", COUNT, "Prompt tokens of each request.", 256)
@option("--tokens-a-chunk", COUNT, "Tokens per chunk. Repeatable: a load for each.", (1, 5), multiple=True)
@option("--gap-ms", NumberRange(1, 1e4), "Time between the chunks of a stream.", 10.0)
@option("--seconds", NumberRange(1, 3600), "Time during which requests are offered.", 5.0)
@option("--client-workers", click.IntRange(1, 64), "Client processes.", 1)
def endpoint(
    watcher: Watcher,
    request_rate: float,
    output_tokens: int,
    prompt_tokens: int,
    tokens_a_chunk: tuple[int, ...],
    gap_ms: float,
    seconds: float,
    client_workers: int,
) -> Report:
    """Measure the requests and streamed tokens a second of the client for servers.

    They are offered to a mock server over loopback, to see how late the client itself sends them. The server
    is another process on this machine: where the two have no core each, it is measured how they share one.
    """
    from laminabench.bench.endpoint import Load, run

    loads = [
        Load(request_rate, seconds, prompt_tokens, output_tokens, min(tokens, output_tokens), gap_ms / 1e3)
        for tokens in tokens_a_chunk
    ]
    return run(loads, client_workers, watcher)


@measuring("rounds", "engine")
@option("--batch", COUNT, "Requests that decode together.", 64)
@option("--context", COUNT, "Mean context tokens of a request.", 1024)
@option("--rounds", COUNT, "Rounds of the alternating run.", 7)
@option("--threads", click.IntRange(0, MAX_COUNT), "Threads of the attention worker; 0: one per core.", 0)
@option(
    "--backend",
    click.Choice(["python", "torch", "aot"]),
    "Executor of slices; torch has no native operators, aot first compiles for about a minute.",
    "python",
)
@option(
    "--compare",
    None,
    "Let serial, rotational, one-process, vllm and vllm-fp32 decode in turns instead, as serial,rotational; "
    "or tensor-parallel and expert-parallel, of a model with experts.",
    metavar="NAMES",
)
@option("--model", None, "With --compare: a model of the catalogue, with made-up weights.", "llama-mini")
@option("--output-tokens", COUNT, "With --compare: output tokens of each; default: 64, with experts 16.")
@option("--vllm vllm_python", FILE, "With --compare: Python with vLLM; default: `baseline setup vllm`'s.")
@option("--overlap/--no-overlap", None, "Start attention before k and v.", False)
@option("--kv-dtype", click.Choice(["auto", "fp8", "int8"]), "Rounding of KV; auto: none.", "auto")
def engine(
    watcher: Watcher,
    batch: int,
    context: int,
    rounds: int,
    threads: int,
    backend: str,
    compare: str | None,
    model: str,
    output_tokens: int | None,
    vllm_python: Path | None,
    overlap: bool,
    kv_dtype: Literal["auto", "fp8", "int8"],
) -> Report:
    """Measure an iteration of the engine against its GEMMs and its KV reads.

    The model is a LLaMA of 246 M parameters in bfloat16 with made-up weights and KV. Between its iterations,
    in turn: the same matrix products alone, and how fast the memory can be read at all. With --compare model
    worker and attention worker have a core each, and layouts of them take turns, with vLLM if it is named.
    """
    if compare:
        from laminabench.bench import engine_compare, engine_vllm

        output = output_tokens or engine_compare.usual_output(compare)
        load = engine_vllm.Load(batch, context, output, model)
        return engine_compare.run(compare, load, rounds=rounds, vllm_python=vllm_python, watcher=watcher)
    from laminabench.bench.engine import Options, run

    options = Options(threads, cast('Literal["python", "torch", "aot"]', backend), overlap, kv_dtype)
    return run(batch=batch, context=context, rounds=rounds, options=options, watcher=watcher)


@measuring("sizes", "fhbn --plot fig13.svg")
@option(
    "--engines",
    None,
    "Some of auto, shm, verbs, mlx5, softnic, gloo, nccl; those that cannot be used here are skipped. "
    "softnic is a test bench; mlx5 and nccl are not verified on hardware. With --device cuda: shm (unless "
    "requested), mlx5, softnic.",
    "shm,verbs,gloo,nccl",
    metavar="LIST",
)
@option(
    "--sizes",
    None,
    "Message sizes: FIRST:LAST in steps of four, or a list such as 64,4K,1M.",
    "64:16M",
    metavar="LIST",
)
@option(
    "--device",
    click.Choice(["cpu", "cuda"]),
    "cuda: operations on a GPU's stream.",
    "cpu",
)
@option("--plot", PATH, "Figure of the results: .svg, .png or .pdf.")
@option("-o --out directory", PATH, "Folder for the measurements.")
@seconds_option(20, "; each size takes at least three rounds")
def fhbn(
    watcher: Watcher,
    engines: str,
    sizes: str,
    device: str,
    plot: Path | None,
    directory: Path | None,
    seconds: float,
) -> Report:
    """Ping-pong over each network engine against a copy.

    Between two processes, as figure 13 of the Lamina paper: round trips of a message, and the bandwidth of
    its way out. At the end of that the receiver has the message, and has not read it; "GB/s read" is with one
    that reads it once.
    """
    context = click.get_current_context()
    given = {
        parameter.opts[-1]
        for parameter in context.command.params
        if context.get_parameter_source(parameter.name or "") is ParameterSource.COMMANDLINE
    }
    named = "--engines" in given
    if device == "cuda":
        if options := ", ".join(sorted(given & {"--sizes", "--plot", "--out", "--seconds"})):
            raise UserError(
                "fhbn-options", f"--device cuda measures in a way of its own: leave out {options}"
            )
        from laminabench.bench.fhbn import cuda

        return cuda.run(engines if named else "shm", watcher=watcher)
    from laminabench.bench.fhbn.options import engines_of, sizes_of
    from laminabench.bench.fhbn.pingpong import run
    from laminabench.bench.fhbn.results import check_replaceable, write
    from laminabench.papers.fig13 import draw
    from laminabench.render.static.drawn import check_target

    if plot is not None:
        check_target(plot)
    names, sizes_bytes = engines_of(engines, named=named), sizes_of(sizes)
    if directory is not None:
        check_replaceable(directory)
    if names.auto:
        watcher.note(f"auto is {names.auto} here")
    measured = run(names, sizes_bytes, seconds, watcher)
    result = measured.report.json()

    def write_files() -> Iterator[str]:
        if directory is not None:
            write(directory, result, measured.rounds, ["laminabench", *sys.argv[1:]])
            yield f"wrote {directory}"
        if plot is not None:
            draw(result, plot)
            yield f"drew {plot}"

    return replace(measured.report, write=write_files)


@measuring("measurements", "h2m2")
@option("--repeats", COUNT, None, 5)
def h2m2(watcher: Watcher, repeats: int) -> Report:  # noqa: ARG001 - it takes seconds
    """Decisions and replays a second of boards with two memories."""
    from laminabench.bench.sim import run_boards

    return run_boards(repeats=repeats)


@measuring("searches", "plan")
@option("--model", None, "Model, as for plan.", "llama3-70b")
@option("--devices", None, "Devices, as for plan; default: plan's.")
@option("--repeats", COUNT, None, 3)
@option("--jobs", COUNT, "Processes at once; default: one per core.")
def plan(watcher: Watcher, model: str, devices: str | None, repeats: int, jobs: int | None) -> Report:
    """Measure the candidates per second of the search for a plan, against the grid."""
    from laminabench.bench.plan import run

    return run(model, devices, repeats, jobs, watcher)


@measuring("rounds", "prefill")
@option(
    "--source",
    click.Choice(["traffic", "computed"]),
    "What the prefill worker sends: KV of made-up content, or prompts that it computes. By default "
    "computed with 3 cores, traffic with fewer.",
)
@option("--prompt-tokens-per-s", POSITIVE, "With traffic: prompt tokens per second.", 2000)
@option("--batch", COUNT, "Requests that decode together.", 8)
@option("--context", COUNT, "Context tokens of each request at first.", 1024)
@option("--prompt-tokens", COUNT, "Tokens of each prompt.", 1024)
@option("--rounds", COUNT, "Rounds of the alternating run.", 5)
@seconds_option(6, " in each of a round's four parts")
def prefill(
    watcher: Watcher,
    source: Literal["traffic", "computed"] | None,
    prompt_tokens_per_s: float,
    batch: int,
    context: int,
    prompt_tokens: int,
    rounds: int,
    seconds: float,
) -> Report:
    """Time between tokens while prompts come, and what short prompts gain by being computed together.

    Time between tokens once with a prefill worker, whose KV the attention worker pulls between its other
    work, and once with prompts that the model worker computes in the batch's turn. llama-mini in bfloat16
    with made-up weights, a model worker and an attention worker, one batch. And prompts of 32, 128 and 512
    tokens one by one and together, compared with the same matrix products alone.
    """
    from laminabench.bench.prefill import Offer, default_source, run

    offer = Offer(source or default_source(), prompt_tokens_per_s, batch, context, prompt_tokens, seconds)
    return run(offer, rounds=rounds, watcher=watcher)


@measuring("rounds", "sim --week")
@click.option("--week", is_flag=True, help="Include the 27-million-request week (over a minute).")
@option("--repeats", COUNT, None, 5)
def sim(watcher: Watcher, week: bool, repeats: int) -> Report:
    """Replays per second of the virtual cluster, and the whole command."""
    from laminabench.bench.sim import run

    return run(week=week, repeats=repeats, watcher=watcher)


@measuring("calls", "slab --json")
@seconds_option(3)
def slab(watcher: Watcher, seconds: float) -> Report:  # noqa: ARG001 - it takes seconds
    """Measure the token allocations per second of the KV slab allocator."""
    from laminabench.bench.slab import run

    return run(seconds)


@measuring("files", "traces")
@option("--csv-rows", COUNT, None, 1_000_000)
@option("--parquet-rows", COUNT, None, 27_000_000)
@option("--repeats", COUNT, None, 5)
def traces(watcher: Watcher, csv_rows: int, parquet_rows: int, repeats: int) -> Report:
    """Loading a large CSV and a huge parquet trace.

    The CSV is in Azure's format, and pandas loads it for comparison.
    """
    from laminabench.bench.traces import run

    return run(csv_rows, parquet_rows, repeats, watcher)


@measuring("rounds", "view")
@option("--runs", click.IntRange(1, 100_000), "Runs in the folder.", 10_000)
@option("--repeats", COUNT, None, 3)
def view(watcher: Watcher, runs: int, repeats: int) -> Report:
    """Open pages of the explorer over ten thousand Runs."""
    from laminabench.render.view.speed import run

    return run(runs, repeats, watcher)
