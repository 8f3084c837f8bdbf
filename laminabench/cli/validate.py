"""`laminabench validate`."""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from laminabench.cli.options import FILE, PATH, option
from laminabench.cli.output import Output, reporting
from laminabench.cli.record import set_up_options
from laminabench.util.errors import CheckFailedError, UserError
from laminabench.util.json import Json, JsonObject
from laminabench.util.redact import command_line, line

if TYPE_CHECKING:
    from rich.console import Console

    from laminabench.requests.replay import ReplayRequest
    from laminabench.workflows.validate.csv_rows import Refused
    from laminabench.workflows.validate.disaggregation import Predicted
    from laminabench.workflows.validate.percentiles import Compared
    from laminabench.workflows.validate.recording import Recording
    from laminabench.workflows.validate.serving import Judged
    from laminabench.workflows.validate.twin import Twin

STEPS = "disaggregation"
KINDS = ("recorded", "published", "serving", STEPS)
# Live replays of this machine: an engine in one process, with workers that take turns or overlap, and with
# two for attention, one of which shares its core with the model worker where there are only two.
ENGINES = ("1xcpu", "1xcpu+1xcpu --batches 1", "1xcpu+1xcpu --batches 2")
SHARED = (
    "1xcpu+2xcpu --batches 1 --oversubscribe",
    "1xcpu+2xcpu --batches 1 --oversubscribe --partition requests",
)
DECODING = "--num-requests 30 --scale-lengths 0.1 --trace"
PROMPTS = "--prefill model --num-requests 12 --scale-lengths 0.05 --max-num-seqs 4 --trace azure-conv"
LOADS = {
    f"{DECODING} azure-conv": (*ENGINES, *SHARED),
    f"{DECODING} azure-code": ENGINES,
    f"{DECODING} kimi-conv": ENGINES,
    PROMPTS: ENGINES,
}
SAME = "--model llama-mini --offline --kv-tokens 40000"
TWINS = {
    "lamina": [f"{SAME} {load} --deployment {each}" for load, engines in LOADS.items() for each in engines],
    "vllm": [
        f"{SAME} {load} --deployment 1xcpu --system vllm" for load in (f"{DECODING} azure-conv", PROMPTS)
    ],
}


@click.command()
@click.argument(
    "kinds", nargs=-1, type=click.Choice([*KINDS, "twin", "emulated", "all"]), metavar="[KIND]..."
)
@option("--recorded own", PATH, "A live Run of yours, a file of --save, or LLMServingSim's folder.")
@option("--costs", None, "Cost set to predict with; default: each recording's own.")
@option("--model", None, "Model of your recording, if it names none.")
@set_up_options
@click.option(
    "--twin",
    "twins",
    multiple=True,
    metavar="'FLAGS OF REPLAY'",
    help="A live replay here and its modelled twin; repeatable; default: of llama-mini.",
)
@option("--rounds", click.IntRange(1, 1000), "Rounds of all twins.", 3)
@option("--rows", FILE, "Rows of a CSV instead: loads of `serving`, or steps of `disaggregation`.")
@option("--fit-on", None, "Of `serving`: fit hosts to this device's loads, and judge the others: b200.")
@option("--audit", FILE, "CSV of published decode steps, to hold against physical floors.")
@option("--save", FILE, "File of your recording's numbers (.toml).")
@option("-o --out --output folder", PATH, "Folder for validation.json and the pictures.")
@option("--against", FILE, "Exit code 1 where a mean is over 0.5 points worse than in this validation.json.")
@reporting
def validate(
    kinds: tuple[str, ...],
    own: Path | None,
    costs: str | None,
    twins: tuple[str, ...],
    rounds: int,
    rows: Path | None,
    fit_on: str | None,
    audit: Path | None,
    save: Path | None,
    folder: Path | None,
    against: Path | None,
    out: Output,
    **settings: Any,
) -> None:
    """Compare predictions with recorded runs of vLLM, published numbers and servers' loads.

    \b
    laminabench validate
    laminabench validate recorded -o results/validation
    laminabench validate serving --costs vllm-0.24
    laminabench validate serving --rows loads.csv --json
    laminabench validate all -o mine
    laminabench validate disaggregation --rows mine.csv
    laminabench validate --audit published.csv
    laminabench validate emulated
    laminabench calibrate -o here.toml && laminabench validate twin --costs here.toml
    laminabench validate --recorded runs/mine --costs mine.toml --deployment 1xrtx-4090 --max-num-seqs 256
    """
    from laminabench.render.sheets.disaggregation import disaggregation_sheets
    from laminabench.render.sheets.validate import moved_sheet, sheets_of
    from laminabench.render.terminal import print_sheet
    from laminabench.workflows.validate import (
        disaggregation,
        emulated,
        gate,
        published,
        recorded,
        twin,
    )
    from laminabench.workflows.validate.board import described_board, samples_of
    from laminabench.workflows.validate.recording import names, packaged_recording
    from laminabench.workflows.validate.stored import validation_of

    if audit is not None:
        _audit(audit, out)
        return
    if own is None and (save or any(value is not None for value in settings.values())):
        raise click.UsageError("--save and what your recording was set up with go with --recorded")
    if (rows is not None and STEPS not in kinds) or fit_on is not None:
        kinds = (*kinds, "serving")
    saved = None if against is None else gate.read_stored(against)
    chosen = set((*KINDS, "twin", "emulated") if "all" in kinds else kinds or (() if own or twins else KINDS))
    live = _twins(twins, costs, rounds, folder, out) if twins or "twin" in chosen else []
    agreed = emulated.agreements(_emulated(), out) if "emulated" in chosen else []
    recordings = [packaged_recording(name) for name in names()] if "recorded" in chosen else []
    if own is not None:
        recordings.append(_own(own, costs, settings, save, out))
    result: dict[str, Json] = {}
    # This machine's set lacks the devices of the other kinds.
    elsewhere = None if live else costs
    judged = recorded.judged(recordings, elsewhere)
    printed = published.rows(elsewhere) if "published" in chosen else []
    served = _served(elsewhere, None if STEPS in kinds else rows, out) if "serving" in chosen else Served()
    if judged:
        result["recorded"] = [each.describe() for each in judged]
    if printed:
        result |= {
            "published": [row.describe() for row in printed],
            "published_mean_error_percent": published.mean_error(printed),
        }
    if served.loads:
        result["serving"] = _described(served, fit_on, elsewhere, out)
    predicted = disaggregation.predictions(rows, elsewhere) if STEPS in chosen else []
    steps = disaggregation.described(predicted, elsewhere) if predicted else {}
    # Alone they are the object; among others they have a key.
    result |= steps if chosen == {STEPS} else {STEPS: steps} if steps else {}
    result |= described_board(
        samples_of(judged, published.with_other_sets(printed), served.loads, predicted, served.tails)
    )
    if live:
        result |= {
            "twin": [each.describe() for each in live],
            "twin_same_order": twin.same_order(live),
        }
    if agreed:
        result["emulated"] = [each.describe() for each in agreed]
    changes = [] if saved is None else gate.moved(saved, result)
    if folder is not None:
        _keep(folder, result, judged, served.loads, predicted, out)

    def render(console: Console) -> None:
        sheets = [*sheets_of(validation_of(result)), *disaggregation_sheets(steps)]
        for sheet in (*sheets, *([moved_sheet(changes)] if changes else [])):
            print_sheet(console, sheet)

    moved = [change._asdict() | {"worse": change.worse} for change in changes]
    out.result({**result, **({"moved": moved} if saved is not None else {})}, render)
    if worse := [change.what for change in changes if change.worse]:
        raise CheckFailedError(
            "validation-worse",
            f"{len(worse)} errors are over {gate.ALLOWED:g} points worse than in {against}: "
            f"{'; '.join(worse)}; if that is meant, `validate -o` keeps them",
        )


def _audit(path: Path, out: Output) -> None:
    """Print whether published steps are possible on their devices."""
    from laminabench.render.sheets.disaggregation import audit_sheet
    from laminabench.render.terminal import print_sheet
    from laminabench.workflows.validate.audit import audited
    from laminabench.workflows.validate.disaggregation import read_rows

    steps = audited(read_rows(path))
    rows = [each.describe() for each in steps]
    out.result({"audit": rows}, lambda console: print_sheet(console, audit_sheet(steps)))


class Served(NamedTuple):
    """Predicted loads, rows of a file that are none, and the packaged loads with percentiles."""

    loads: Sequence[Judged] = ()
    refused: Sequence[Refused] = ()
    tails: Sequence[Compared] = ()


def _described(served: Served, fit_on: str | None, costs: str | None, out: Output) -> JsonObject:
    """Describe predicted loads, and how those of other devices come out with hosts fitted to one."""
    from laminabench.workflows.validate import judges, serving
    from laminabench.workflows.validate.refit import refit
    from laminabench.workflows.validate.serving_rows import unpriced

    described: dict[str, Json] = {
        "groups": [group.describe() for group in serving.grouped(served.loads)],
        "standings": [each.describe() for each in judges.standings(served.loads)],
        "points": [each.describe() for each in served.loads],
        **unpriced(served.refused, served.loads),
        **({"percentiles": [each.describe() for each in served.tails]} if served.tails else {}),
    }
    if fit_on is not None:
        with out.progress("fitting", unit="loads"):
            described["refit"] = refit([each.point for each in served.loads], fit_on, costs).describe()
    return described


def _served(costs: str | None, rows: Path | None, out: Output) -> Served:
    """Predict every measured load, or those of a file, on all cores."""
    from laminabench.workflows.validate.percentiles import compared, measured_loads
    from laminabench.workflows.validate.serving import judged, points
    from laminabench.workflows.validate.serving_rows import read_rows

    refused: list[Refused] = []
    loads = points() if rows is None else read_rows(rows, refused)
    with out.progress("predicting", unit="loads") as progress:
        predicted = judged(loads, costs, progress)
    tails = measured_loads() if rows is None else ()
    return Served(predicted, refused, compared(tails, costs))


def _twins(
    calls: Sequence[str], costs: str | None, rounds: int, folder: Path | None, out: Output
) -> list[Twin]:
    """Run twins with their own costs, these, or this machine's as calibrated now and saved."""
    from laminabench.systems.registry import DEFAULT
    from laminabench.workflows.validate.twin import twins

    with tempfile.TemporaryDirectory() as temporary:
        if calls or costs:
            replays = _parsed(calls or TWINS[DEFAULT], costs)
        else:
            replays = [
                each
                for system, costs in _calibrated(folder or Path(temporary), out)
                for each in _parsed(TWINS[system], costs)
            ]
        return twins(replays, rounds, out)


def _parsed(calls: Sequence[str], costs: str | None) -> list[tuple[str, ReplayRequest]]:
    from laminabench.cli.flags import parsed_line
    from laminabench.requests.replay import ReplayRequest

    replays = []
    for words in calls:
        try:
            replays.append((line(words), ReplayRequest(**{"costs": costs, **parsed_line(words)})))
        except ValueError as error:
            raise click.UsageError(f"--twin {line(words)!r}: {error}") from error
        if replays[-1][1].costs is None:
            raise click.UsageError("--twin goes with --costs: the set that `laminabench calibrate` wrote")
    return replays


def _emulated() -> list[tuple[str, ReplayRequest]]:
    from laminabench.cli.flags import parsed_line
    from laminabench.requests.replay import ReplayRequest
    from laminabench.workflows.validate.emulated import CASES

    return [(line(words), ReplayRequest(**parsed_line(words))) for words in CASES]


def _calibrated(folder: Path, out: Output) -> Iterator[tuple[str, str]]:
    """Yield each installed system with the set calibrated for it now."""
    from laminabench.baselines.environment import find
    from laminabench.cli.calibrate import NAMES, measured
    from laminabench.systems.registry import live_system

    folder.mkdir(parents=True, exist_ok=True)
    for system, name in NAMES.items():
        live = live_system(system)
        if live.ENVIRONMENT:
            try:
                find("cpu")
            except UserError as error:
                out.note(f"without live vLLM: {error}")
                continue
        target = folder / f"{name}.toml"
        out.note(f"measuring {system} on this machine; leave it alone meanwhile")
        measured(target, out, system, "1xcpu" if live.ENVIRONMENT else None)
        yield system, str(target)


def _own(
    path: Path, costs: str | None, settings: Mapping[str, Any], save: Path | None, out: Output
) -> Recording:
    from laminabench.workflows.validate.recording import read

    given = {name: value for name, value in settings.items() if value is not None}
    recording = read(path, **given, **({"costs": costs} if costs else {}))
    if why := recording.about.get("prefixes"):
        out.note(f"which prompts share a prefix is {why}; none hits the prefix cache")
    if save is not None:
        recording.write(save)
        out.note(f"wrote {save}")
    return recording


def _keep(
    folder: Path,
    result: Mapping[str, Any],
    judged: Any,
    served: Sequence[Judged],
    steps: Sequence[Predicted],
    out: Output,
) -> None:
    from laminabench.render.charts.validation import published_chart, twin_charts
    from laminabench.render.static.drawn import drawn
    from laminabench.render.static.pictures import errors_picture
    from laminabench.render.static.validated import draw_recorded, draw_serving, draw_steps
    from laminabench.util.atomic import replacing
    from laminabench.workflows.validate.stored import VALIDATION, marked, validation_of

    folder.mkdir(parents=True, exist_ok=True)
    with replacing(folder / VALIDATION.file) as temporary:
        # The results of each load are only in --json.
        loads = ("points", "percentiles")
        served_groups = {name: of for name, of in result.get("serving", {}).items() if name not in loads}
        saved = {**result, **({"serving": served_groups} if served else {})}
        if STEPS in result:
            saved[STEPS] = {name: of for name, of in result[STEPS].items() if "rows" not in (name, *of)}
        command = command_line(["laminabench", *sys.argv[1:]])
        temporary.write_text(json.dumps(marked(saved, command), indent=1) + "\n", encoding="utf-8")
    validation = validation_of(result)
    if judged:
        draw_recorded(judged, folder / "recorded.svg")
    if validation.published:
        drawn(lambda: errors_picture([published_chart(validation.published)]), folder / "published.svg")
    if served:
        draw_serving(served, folder / "serving.svg")
    if steps:
        draw_steps(steps, folder / "disaggregation.svg")
    if validation.twin:
        drawn(lambda: errors_picture(list(twin_charts(validation.twin))), folder / "twins.svg")
    out.note(f"saved in {folder}")
