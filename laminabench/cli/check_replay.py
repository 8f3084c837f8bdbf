"""A case of `laminabench check` as calls of `laminabench replay`: the same flags, the same manifest."""

from __future__ import annotations

import contextlib
import io
import shlex
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import click

from laminabench.cli.ending import Interrupted
from laminabench.cli.replay import replay
from laminabench.cli.replay_flags import flags_of_many
from laminabench.errors import CheckFailedError, UserError
from laminabench.json_safe import Json, to_json
from laminabench.nearest import nearest
from laminabench.regress.case_file import Case
from laminabench.regress.facts import facts_of
from laminabench.regress.golden import Obtained, Value
from laminabench.regress.verdict import require_samples
from laminabench.runs.manifest import Manifest
from laminabench.runs.read import read_manifest


def arguments(values: Mapping[str, Any]) -> list[str]:
    """The flags as they are typed."""
    known, out = flags_of_many(), []
    for name, value in values.items():
        if known[name].is_flag:
            # Of a flag that has no opposite, false is to leave it out.
            out += [f"--{name}"] if value else list(known[name].secondary_opts)
        else:
            for each in value if isinstance(value, list) else [value]:
                out += [f"--{name}", str(each)]
    return out


def require_flags(path: Path, case: Case) -> None:
    """Refuse what `laminabench replay` would not understand, before anything runs."""
    known = flags_of_many()
    for values in filter(None, (case.flags, case.against)):
        for name, value in values.items():
            option = known[name]
            if isinstance(value, list) and not option.multiple:
                what = "one value, not a list"
            elif option.is_flag != isinstance(value, bool):
                what = "true or false" if option.is_flag else "a value, not true or false"
            else:
                continue
            raise UserError(
                "case-value", f"{path}: case '{case.name}' has {name} = {value!r}; it takes {what}"
            )
        try:
            replay.make_context("laminabench replay", arguments(values))
        except click.UsageError as error:
            raise UserError("case-value", f"{path}: case '{case.name}': {_sentence(error)}") from None


def replayed(folder: Path, case: Case, told: Callable[[], None] = lambda: None) -> tuple[Obtained, float]:
    """What the case comes to now, and the seconds it took; Runs are kept in the folder for a moment.

    `told` is called after each of the replays of a measured case.
    """
    began = time.perf_counter()
    try:
        found = _measured(folder, case, told) if case.measured else _modelled(folder, case)
    except (UserError, CheckFailedError) as error:
        raise error.within(f"case '{case.name}'") from error
    except click.UsageError as error:
        raise UserError("case-value", f"case '{case.name}': {_sentence(error)}") from None
    except Interrupted:
        # What it says of going on is of a Run that nobody keeps.
        raise KeyboardInterrupt from None
    return found, time.perf_counter() - began


def _modelled(folder: Path, case: Case) -> Obtained:
    command, manifest = _manifest(folder, case.flags)
    metrics: dict[str, Value] = dict(_metrics(case, manifest))
    return Obtained(metrics, facts_of(case, command, manifest))


def _measured(folder: Path, case: Case, told: Callable[[], None]) -> Obtained:
    """Rounds one after another. What is measured beside takes turns, each first in every other round, so that
    a machine that slows down meanwhile slows both down; their ratio is then the metric.
    """
    sides = [case.flags] if case.against is None else [case.flags, case.against]
    values: list[list[dict[str, float | None]]] = [[] for _ in sides]
    for turn in range(case.rounds):
        for side in range(len(sides))[:: -1 if turn % 2 else 1]:
            command, manifest = _manifest(folder, sides[side])
            values[side].append(_metrics(case, manifest))
            if side == 0:
                facts = facts_of(case, command, manifest)
            told()
    metrics: dict[str, Value] = {}
    for metric in case.metrics:
        samples = [require_samples(metric, [each[metric] for each in rounds]) for rounds in values]
        metrics[metric] = samples[0] if len(samples) == 1 else _ratios(*samples)
    return Obtained(metrics, facts)


def _ratios(of: Sequence[float], over: Sequence[float]) -> list[float]:
    return [one / other for one, other in zip(of, over, strict=True)]


def _manifest(folder: Path, values: Mapping[str, Any]) -> tuple[str, Manifest]:
    """Replay; the command as a person would type it, and what the Run that it kept says of itself."""
    typed = arguments(values)
    with tempfile.TemporaryDirectory(dir=folder) as own:
        run = Path(own) / "run"
        with contextlib.redirect_stdout(io.StringIO()):
            replay.main([*typed, "--out", str(run), "-q"], "laminabench replay", standalone_mode=False)
        manifest = read_manifest(run)
        if manifest.partial:
            raise CheckFailedError(
                "check-partial", f"its Run cannot be judged, it is {manifest.partial.sentence}"
            )
        return shlex.join(["laminabench", "replay", *typed, "--no-out"]), manifest


def _metrics(case: Case, manifest: Manifest) -> dict[str, float | None]:
    """The metrics that the case names; a UserError with the nearest for what is none."""
    known = dict(_numbers(to_json(manifest.summary)))
    for metric in case.metrics:
        if metric not in known:
            raise UserError("metric-unknown", f"no metric is called '{metric}'; {nearest(metric, known)}")
    return {metric: known[metric] for metric in case.metrics}


def _numbers(summary: Json, path: str = "") -> list[tuple[str, float | None]]:
    """Every number of a summary by its dotted key; of lists by position."""
    if isinstance(summary, dict | list):
        pairs = summary.items() if isinstance(summary, dict) else enumerate(summary)
        return [row for key, value in pairs for row in _numbers(value, f"{path}.{key}".lstrip("."))]
    is_number = summary is None or (isinstance(summary, int | float) and not isinstance(summary, bool))
    return [(path, cast("float | None", summary))] if is_number else []


def _sentence(error: click.UsageError) -> str:
    return " ".join(error.format_message().split()).rstrip(".")
