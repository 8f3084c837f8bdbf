"""The flags of `laminabench compare` that are not the trace's, and which of them go together."""

from __future__ import annotations

from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any, TypedDict

import click

from laminabench.cli.hardware import price_options
from laminabench.cli.ranges import COUNT, NumberRange
from laminabench.errors import UserError
from laminabench.sim.spec import Admission, Mode
from laminabench.systems.registry import MODULES


class CompareFlags(TypedDict):
    """What click makes of a command line, by the names below."""

    runs: tuple[Path, ...]
    no_group: bool
    traces: tuple[str, ...]
    models: tuple[str, ...]
    costs: tuple[str, ...]
    systems: str
    deployments: tuple[str, ...]
    equal_cost: bool
    equal_power: bool
    tolerance: float
    devices: str | None
    limits: tuple[str, ...]
    network: str | None
    host_async: str
    mode: Mode
    concurrency: int | None
    admission: Admission
    jobs: int | None
    prices: tuple[str, ...]
    powers: tuple[str, ...]
    price_basis: str | None
    live: tuple[str, ...]
    rounds: int
    directory: Path | None
    base: str | None
    slo_tbt_ms: float | None
    fail_on: tuple[str, ...]
    strict: bool
    markdown: Path | None
    plot: Path | None


_FILE = click.Path(dir_okay=False, path_type=Path)
_FOLDER = click.Path(file_okay=False, path_type=Path)

_FOR_RUNS = (
    click.option("--no-group", is_flag=True, help="Runs of one live thing apart, not as rounds of it."),
)
_FOR_SYSTEMS = (
    click.option("--trace", "traces", multiple=True, help="Repeatable; the four of v2 Table 4 by default."),
    click.option("--model", "models", multiple=True, help="Repeatable; the three of v2 Table 3 by default."),
    click.option("--costs", "costs", multiple=True, help="Repeatable; both measured sets by default."),
    click.option(
        "--systems",
        default="lamina,vllm",
        show_default=True,
        metavar="A,B,...",
        help=f"Of {', '.join(MODULES)}; prices, or watts, are held to the first one's.",
    ),
    click.option(
        "--deployment",
        "deployments",
        multiple=True,
        metavar="SYSTEM=DEPLOYMENT",
        help="Repeatable, as lamina=2xh100+4xh20; the papers' by default.",
    ),
    click.option(
        "--equal-cost", is_flag=True, help="Choose deployments within --tolerance of the first one's price."
    ),
    click.option(
        "--equal-power",
        is_flag=True,
        help="Choose deployments within --tolerance of the first one's rated watts.",
    ),
    click.option(
        "--tolerance",
        type=NumberRange(0, 1),
        default=0.1,
        show_default=True,
        help="How far apart prices at equal cost may be, or watts at equal power.",
    ),
    click.option(
        "--devices",
        metavar="A,B,...",
        help="Kinds to choose from at equal cost or power; the deployments' by default.",
    ),
    click.option(
        "--max-num-seqs",
        "limits",
        multiple=True,
        metavar="SYSTEM=N",
        help="Repeatable: requests in one batch, on each board of h2m2; each system's own limit by default.",
    ),
    click.option("--network", help="As for replay; each paper's own by default."),
    click.option(
        "--host-async",
        type=click.Choice(["neither", "both", *MODULES]),
        default="neither",
        show_default=True,
        help="Whose host prepares an iteration while the one before it runs; both is all.",
    ),
    click.option(
        "--mode",
        type=click.Choice(["saturate", "open", "closed"]),
        default="saturate",
        show_default=True,
        help="As for replay.",
    ),
    click.option("--concurrency", type=COUNT, help="With --mode closed: requests in the system at once."),
    click.option(
        "--admission",
        type=click.Choice(["reserve", "grow"]),
        default="reserve",
        show_default=True,
        help="As for replay.",
    ),
    price_options,
    click.option("--jobs", type=click.IntRange(min=1), help="Processes that replay; one a core by default."),
)
_FOR_LIVE = (
    click.option(
        "--live",
        multiple=True,
        metavar="'FLAGS OF REPLAY'",
        help="Repeatable: replays that take turns here, as '--system vllm --deployment 2xcpu'.",
    ),
    click.option(
        "--rounds",
        type=click.IntRange(1, 1000),
        default=3,
        show_default=True,
        help="With --live: how often each has its turn.",
    ),
    click.option(
        "--out",
        "directory",
        type=_FOLDER,
        help="With --live: where the Runs go; runs/compare-TRACE-TIME by default.",
    ),
)
_FOR_BOTH = (
    click.option(
        "--base",
        metavar="RUN, SYSTEM or N",
        help="What ratios are to: the first Run or --live; vllm, or the first system.",
    ),
    click.option(
        "--slo-tbt-ms",
        type=NumberRange(0, 1e9, min_open=True),
        help="One limit for all; each Run's own, or 100, by default.",
    ),
    click.option(
        "--fail-on",
        multiple=True,
        metavar="METRIC<RATIO",
        help="Repeatable: exit code 1 if a ratio to the base is below (<) or above (>) this.",
    ),
    click.option("--strict", is_flag=True, help="Gates judge measured ratios without their intervals."),
    click.option("--markdown", type=_FILE, help="Write the tables as Markdown."),
    click.option("--plot", type=_FILE, help="Draw throughput and TBT: .png, .svg or .pdf."),
)
# What can be said of Runs that are there; everything else is about replaying.
_SAID_OF_RUNS = {
    *("runs", "no_group", "base", "slo_tbt_ms", "fail_on", "strict", "markdown", "plot"),
    *("as_json", "quiet", "verbose"),
}

_OF_EQUAL = {"tolerance", "devices"}
_OF_LIVE = {"rounds", "directory"}
# What can be said of systems and not of replays that take turns: each of those says it itself.
_NOT_OF_LIVE = {
    *("costs", "systems", "deployments", "equal_cost", "equal_power", "tolerance"),
    *("devices", "network", "host_async", "jobs", "limits"),
}


def require_together(command: click.Command, given: Collection[str], flags: CompareFlags) -> None:
    """A UserError for a flag that nothing would come of beside the others."""
    if flags["runs"]:
        _refuse(command, set(given) - _SAID_OF_RUNS, "replaying systems, not for Runs that are there")
    else:
        _refuse(command, set(given) & {"no_group"}, "Runs, and none is given")
    if flags["live"]:
        _refuse(command, set(given) & _NOT_OF_LIVE, "modelled systems; a side of --live has flags of its own")
    else:
        _refuse(command, set(given) & _OF_LIVE, "--live, which is not given")
    if flags["equal_cost"] and flags["equal_power"]:
        raise UserError(
            "compare-equal-both",
            "--equal-cost and --equal-power: deployments are chosen by one of them; give either",
        )
    if not flags["equal_cost"] and not flags["equal_power"]:
        _refuse(command, set(given) & _OF_EQUAL, "--equal-cost or --equal-power, which are not asked for")


def _refuse(command: click.Command, wrong: set[str], what_for: str) -> None:
    flag = next((each.opts[0] for each in command.params if each.name in wrong), None)
    if flag:
        raise UserError("compare-flag-not-applicable", f"{flag} is for {what_for}")


def compare_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command the Runs and the flags of a comparison."""
    runs = click.argument("runs", nargs=-1, metavar="[RUN]...", type=_FOLDER)
    for option in reversed((runs, *_FOR_RUNS, *_FOR_SYSTEMS, *_FOR_LIVE, *_FOR_BOTH)):
        command = option(command)
    return command
