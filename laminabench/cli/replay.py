"""`laminabench replay`."""

from __future__ import annotations

import contextlib
import functools
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import click

from laminabench.cli.flags import GroupedCommand, changed, given_in, with_fields
from laminabench.cli.options import PATH, option
from laminabench.cli.output import Output, reporting
from laminabench.requests.replay import FIELDS, ReplayRequest, of_file, of_manifest, require_given
from laminabench.util.errors import Interrupted, UserError

if TYPE_CHECKING:
    from laminabench.util.json import Json, JsonObject
    from laminabench.workflows.replay import Result
    from laminabench.workflows.replay.journal import ReplayJournal


@click.command(cls=GroupedCommand)
@functools.partial(with_fields, names=FIELDS)
@option("--config", PATH, "Flags from a TOML file.", metavar="FILE")
@click.option("--print-config", is_flag=True, help="Print this call as such a file, and exit.")
@option("--again", PATH, "Repeat a Run; flags change it.", metavar="RUN")
@option("--resume", PATH, "Resume an interrupted live replay from its journal.", metavar="RUN")
@reporting
def replay(
    out: Output,
    config: Path | None,
    print_config: bool,
    again: Path | None,
    resume: Path | None,
    **flags: Any,
) -> None:
    """Replay a trace against a system: on modelled hardware, or live on this machine's cores.

    \b
    laminabench replay --trace azure-conv --system lamina
    laminabench replay --trace azure-conv --system vllm --deployment 4xh100
    laminabench replay --trace azure-code --backend live --num-requests 200
    laminabench replay --resume runs/azure-code-lamina-llama-mini-20260101-120000
    """
    from laminabench.runs.read import read_manifest
    from laminabench.workflows.replay.journal import ReplayJournal

    given = given_in(flags)
    if sum(each is not None for each in (config, again, resume)) > 1:
        raise click.UsageError("--config, --again and --resume each say what to replay; give one of them")
    if resume:
        journal = ReplayJournal.reopened(resume, out)
        with contextlib.closing(journal):
            _replay(journal.in_force(given), out, journal)
        return
    base = ReplayRequest()
    if config:
        base = of_file(config)
        require_given(base, str(config), given)
    elif again:
        base = of_manifest(read_manifest(again).request, str(again), given)
    request = changed(base, given)
    if print_config:
        click.echo(request.text(), nl=False)
        return
    _replay(request, out)


def _replay(request: ReplayRequest, out: Output, journal: ReplayJournal | None = None) -> None:
    """Replay, save and print; then raise what makes the numbers unsound."""
    from laminabench.render.sheets.replay import describe, render
    from laminabench.render.static.drawn import check_target
    from laminabench.sim.timeline import check_suffix
    from laminabench.workflows.replay import run

    began = time.perf_counter()
    # Refuse undrawable figures before replaying.
    if request.timeline:
        check_suffix(Path(request.timeline))
    if request.plot:
        check_target(Path(request.plot))
    result = run(request, listener=out, resumed=journal)
    drawn: dict[str, Json] = {}
    undrawn = None
    try:
        if request.timeline:
            drawn["timeline"] = _timeline(result, request.timeline, request.timeline_window, out)
        if request.plot:
            _plot(result, request, out)
            drawn["plot"] = request.plot
    except UserError as error:  # raised after the results are printed
        undrawn = error
    wall_s = time.perf_counter() - began
    out.result(describe(result, wall_s, **drawn), lambda console: render(console, result, wall_s))
    if undrawn:
        raise undrawn
    if result.replayed.interrupted:
        raise Interrupted("what had been replayed is above, and is a partial Run")
    if result.replayed.tail:
        click.echo(result.replayed.tail, err=True)
    result.require_sound()


def _timeline(result: Result, path: str, window: str | None, out: Output) -> JsonObject:
    """Draw one window, and return the JSON entry."""
    drawn = result.draw_timeline(Path(path), window)
    first, last = cast("list[float]", drawn["window_s"])
    out.note(f"drew {first:.3f} to {last:.3f} s into {path}: open it in ui.perfetto.dev")
    return drawn


def _plot(result: Result, request: ReplayRequest, out: Output) -> None:
    """Draw the replay over time."""
    from laminabench.api.run import Run

    assert request.plot
    Run(result.as_run(request), path=None).plot().save(request.plot)
    out.note(f"drew {request.plot}")
