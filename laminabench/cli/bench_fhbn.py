"""`laminabench bench fhbn`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from laminabench.cli.output import Output, reporting
from laminabench.cli.verdict import device_option, seconds_option, verdict
from laminabench.errors import UserError
from laminabench.present.terminal import literal

if TYPE_CHECKING:
    from rich.console import Console


@click.command()
@click.option(
    "--engines",
    metavar="LIST",
    default="shm,verbs,gloo,nccl",
    show_default=True,
    help="Some of auto, shm, verbs, mlx5, softnic, gloo, nccl; those that cannot be used here are skipped. "
    "softnic is a test bench; mlx5 and nccl are not verified on hardware. With --device cuda: shm (unless "
    "asked for others), mlx5, softnic.",
)
@click.option(
    "--sizes",
    metavar="LIST",
    default="64:16M",
    show_default=True,
    help="Of messages: FIRST:LAST in steps of four, or a list such as 64,4K,1M.",
)
@device_option("operations on a GPU's stream")
@click.option("--plot", type=click.Path(path_type=Path), help="Draw it into this .svg, .png or .pdf.")
@click.option("--out", "directory", type=click.Path(path_type=Path), help="Write what was measured here.")
@seconds_option("20", "; each size takes at least three rounds")
@reporting
@click.pass_context
def fhbn(context: click.Context, /, device: str, out: Output, **asked: Any) -> None:
    """Ping-pong between two processes over each network engine, beside what a copy of the bytes takes.

    As figure 13 of the Lamina paper: round trips of a message, and the bandwidth of its way out. At the end
    of that the receiver has the message, and has not read it; "GB/s read" is with one that reads it once.
    """
    given = {
        option.opts[0]
        for option in context.command.params
        if option.name in asked and context.get_parameter_source(option.name) is ParameterSource.COMMANDLINE
    }
    if device == "cpu":
        _between_processes(out, named="--engines" in given, **asked)
    elif given - {"--engines"}:
        options = ", ".join(sorted(given - {"--engines"}))
        raise UserError("fhbn-options", f"--device cuda measures in a way of its own: leave out {options}")
    else:
        _on_a_gpu(out, asked["engines"] if given else "shm")


def _on_a_gpu(out: Output, engines: str) -> None:
    from laminabench.cli.engine_extra import needed

    with needed():
        from laminabench.bench.fhbn_cuda import run
    with needed(), out.progress("sizes", unit="sizes") as progress:
        result = run(engines, progress=progress)
    out.result(result, lambda console: _render_cuda(console, result))


def _between_processes(
    out: Output,
    engines: str,
    sizes: str,
    plot: Path | None,
    directory: Path | None,
    seconds: float,
    *,
    named: bool,
) -> None:
    from laminabench.cli.engine_extra import needed

    if plot is not None:
        from laminabench.figures.drawn import check_target

        check_target(plot)
    with needed():
        from laminabench.bench.fhbn import run
        from laminabench.bench.fhbn_asked import engines_of, sizes_of
    asked, wanted = engines_of(engines, named=named), sizes_of(sizes)
    if directory is not None:
        from laminabench.bench.fhbn_run import check_replaceable

        check_replaceable(directory)
    if asked.auto:
        out.note(f"auto is {asked.auto} here")

    def started(pid: int, cores: tuple[int, int] | None) -> None:
        out.detail(f"the echoing process is {pid}")
        if cores is None:
            out.note("this process may use one core, which the two share: times are of taking turns")

    with out.progress("sizes", unit="sizes") as progress:
        measured = run(asked, wanted, seconds, progress, started)
    # Said first: a file that cannot be written does not take it away.
    out.result(measured.result, lambda console: _render(console, measured.result))
    if directory is not None:
        from laminabench.bench.fhbn_run import write

        write(directory, measured, ["laminabench", *sys.argv[1:]])
        out.note(f"wrote {directory}")
    if plot is not None:
        from laminabench.figures.fig13 import draw

        draw(measured.result, plot)
        out.note(f"drew {plot}")


def _render(console: Console, result: dict[str, Any]) -> None:
    from rich.table import Table

    from laminabench.bench.fhbn_asked import size_text
    from laminabench.bench.fhbn_rows import SHARE_FROM

    table = Table(box=None, pad_edge=False)
    table.add_column("engine")
    for title in (
        *("size", "round trip,\np50", "p99", "GB/s\none way", "GB/s\nread"),
        *("of\nmemcpy", "of the\nfastest copy", "target"),
    ):
        table.add_column(title, justify="right")
    table.add_column("")
    for row in result["rows"]:
        large = row["bytes"] >= SHARE_FROM
        table.add_row(
            row["engine"] + ("*" if row["caveat"] else ""),
            size_text(row["bytes"]),
            _us(row["rtt_us_p50"]),
            _us(row["rtt_us_p99"]),
            _three_digits(row["gb_per_s"]),
            _three_digits(row["read_gb_per_s"]) if large else "-",
            *(_share(row[name] if large else None) for name in ("share_of_memcpy", "share_of_limit")),
            _target(row["target"]),
            verdict(row["met"]) if row["target"] else "",
        )
    console.print(table)
    _say_what_else(console, result)
    limits, largest = result["limits"], max(result["sizes"])
    memcpy, copy = (
        _three_digits(limits[f"{name}_gb_per_s"][str(largest)]) for name in ("memcpy", "channel_copy")
    )
    line = limits["cache_line_round_trip_us"]
    console.print(f"a copy of {size_text(largest)}: memcpy {memcpy} GB/s, as a channel copies {copy} GB/s")
    if line is not None:
        console.print(f"a cache line there and back between the two cores: {line:.2f} us")


def _render_cuda(console: Console, result: dict[str, Any]) -> None:
    from rich.table import Table

    from laminabench.bench.fhbn_asked import size_text

    console.print(f"{literal(result['device'])}; {result['path']}; not verified on hardware")
    table = Table(box=None, pad_edge=False)
    for title in ("engine", "size", "what", "way", "median", "min to max"):
        table.add_column(title, justify="right" if title in ("median", "min to max") else "left")
    for row in result["rows"]:
        for what in ("one_way", "round_trip"):
            for way, took in row[f"{what}_s"].items():
                low, median, high = (_us(took[name] * 1e6) for name in ("min", "median", "max"))
                engine = row["engine"] + ("*" if row["caveat"] else "")
                size = size_text(row["bytes"])
                table.add_row(engine, size, what.replace("_", " "), way, median, f"{low} to {high}")
    console.print(table)
    _say_what_else(console, result)


def _say_what_else(console: Console, result: dict[str, Any]) -> None:
    for name, caveat in {row["engine"]: row["caveat"] for row in result["rows"]}.items():
        if caveat:
            console.print(f"* {name}: {caveat}")
    for name, reason in result["skipped"].items():
        console.print(f"{name} skipped: {literal(reason)}")


def _three_digits(number: float) -> str:
    return f"{number:#.3g}" if number < 99.95 else f"{number:,.0f}"


def _share(share: float | None) -> str:
    if share is None:
        return "-"
    return f"{share:.0%}" if share >= 0.01 else "< 1%"


def _us(microseconds: float) -> str:
    return f"{microseconds:,.2f} us" if microseconds < 100 else f"{microseconds:,.0f} us"


def _target(target: dict[str, float] | None) -> str:
    if target is None:
        return ""
    if "rtt_us_p50" in target:
        return f"p50 {target['rtt_us_p50']:g} us"
    return f"{target['share_of_memcpy']:.0%} of memcpy"
