"""`laminabench bench fhbn`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from laminabench.cli.output import Output, literal, reporting
from laminabench.cli.verdict import seconds_option, verdict

if TYPE_CHECKING:
    from rich.console import Console


@click.command()
@click.option(
    "--engines",
    metavar="LIST",
    default="shm,gloo,nccl",
    show_default=True,
    help="Some of auto, shm, gloo, nccl; those that cannot be used here are skipped.",
)
@click.option(
    "--sizes",
    metavar="LIST",
    default="64:16M",
    show_default=True,
    help="Of messages: FIRST:LAST in steps of four, or a list such as 64,4K,1M.",
)
@click.option(
    "--device",
    type=click.Choice(["cpu", "cuda"]),
    default="cpu",
    show_default=True,
    help="cuda measures operations on a GPU's stream, over sizes of its own; not verified on hardware.",
)
@click.option("--plot", type=click.Path(path_type=Path), help="Draw it into this .svg, .png or .pdf.")
@click.option("--out", "directory", type=click.Path(path_type=Path), help="Write what was measured here.")
@seconds_option("20")
@reporting
def fhbn(device: str, out: Output, **asked: Any) -> None:
    """Ping-pong between two processes over each network engine, beside what a copy of the bytes takes.

    As figure 13 of the Lamina paper: round trips of a message, and the bandwidth of its way out.
    """
    if device == "cuda":
        _on_a_gpu(out)
    else:
        _between_processes(out, **asked)


def _on_a_gpu(out: Output) -> None:
    from laminabench.bench.fhbn_cuda import run  # noqa: PLC0415
    from laminabench.cli.engine_extra import needed  # noqa: PLC0415

    with needed(), out.progress("sizes", unit="sizes") as progress:
        result = run(progress=progress)
    out.result(result, lambda console: _render_cuda(console, result))


def _between_processes(
    out: Output, engines: str, sizes: str, plot: Path | None, directory: Path | None, seconds: float
) -> None:
    from laminabench.cli.engine_extra import needed  # noqa: PLC0415 - reads what --help does without
    from laminabench.figures.converted_layer import check_suffix  # noqa: PLC0415

    if plot is not None:
        check_suffix(plot)
    with needed():
        from laminabench.bench.fhbn import run  # noqa: PLC0415
        from laminabench.bench.fhbn_asked import engines_of, sizes_of  # noqa: PLC0415
        from laminabench.bench.fhbn_run import check_replaceable, write  # noqa: PLC0415
    asked, wanted = engines_of(engines), sizes_of(sizes)
    if directory is not None:
        check_replaceable(directory)
    if asked.auto:
        out.note(f"auto is {asked.auto} here")

    def started(pid: int, cores: tuple[int, int] | None) -> None:
        out.detail(f"the echoing process is {pid}")
        if cores is None:
            out.note("this machine has one core, which the two processes share: times are of taking turns")

    with out.progress("sizes", unit="sizes") as progress:
        measured = run(asked, wanted, seconds, progress, started)
    if directory is not None:
        write(directory, measured, ["laminabench", *sys.argv[1:]])
        out.note(f"wrote {directory}")
    if plot is not None:
        from laminabench.figures.fig13 import draw  # noqa: PLC0415

        draw(measured.result, plot)
        out.note(f"drew {plot}")
    out.result(measured.result, lambda console: _render(console, measured.result))


def _render(console: Console, result: dict[str, Any]) -> None:
    from rich.table import Table  # noqa: PLC0415 - not for --json

    from laminabench.bench.fhbn_asked import size_text  # noqa: PLC0415

    table = Table(box=None, pad_edge=False)
    table.add_column("engine")
    for title in ("size", "round trip, p50", "p99", "GB/s one way", "of a copy", "target"):
        table.add_column(title, justify="right")
    table.add_column("")
    for row in result["rows"]:
        table.add_row(
            row["engine"],
            size_text(row["bytes"]),
            _us(row["rtt_us_p50"]),
            _us(row["rtt_us_p99"]),
            _three_digits(row["gb_per_s"]),
            _share(row["share_of_limit"]),
            _target(row["target"]),
            verdict(row["met"]) if row["target"] else "",
        )
    console.print(table)
    for name, reason in result["skipped"].items():
        console.print(f"{name} skipped: {literal(reason)}")
    limits = result["limits"]
    line = limits["cache_line_round_trip_us"]
    largest = str(max(result["sizes"]))
    console.print(
        f"a copy of {size_text(int(largest))}: {limits['memcpy_gb_per_s'][largest]:.1f} GB/s"
        + ("" if line is None else f"; a cache line there and back between the two cores: {line:.2f} us")
    )


def _render_cuda(console: Console, result: dict[str, Any]) -> None:
    from rich.table import Table  # noqa: PLC0415 - not for --json

    from laminabench.bench.fhbn_asked import size_text  # noqa: PLC0415

    console.print(f"{result['device']}; {result['path']}")
    table = Table(box=None, pad_edge=False)
    for title in ("size", "what", "way", "median", "min to max"):
        table.add_column(title, justify="right" if title in ("median", "min to max") else "left")
    for row in result["rows"]:
        for what in ("one_way", "round_trip"):
            for way, took in row[f"{what}_s"].items():
                low, median, high = (_us(took[name] * 1e6) for name in ("min", "median", "max"))
                table.add_row(
                    size_text(row["bytes"]), what.replace("_", " "), way, median, f"{low} to {high}"
                )
    console.print(table)


def _three_digits(number: float) -> str:
    return f"{number:#.3g}" if number < 100 else f"{number:,.0f}"


def _share(share: float) -> str:
    return f"{share:.0%}" if share >= 0.01 else "< 1%"


def _us(microseconds: float) -> str:
    return f"{microseconds:,.2f} us" if microseconds < 100 else f"{microseconds:,.0f} us"


def _target(target: dict[str, float] | None) -> str:
    if target is None:
        return ""
    if "rtt_us_p50" in target:
        return f"p50 {target['rtt_us_p50']:g} us"
    return f"{target['share_of_limit']:.0%} of a copy"
