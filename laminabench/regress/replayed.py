"""A case as replays: what its metrics come to now, and what they come from."""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable, Sequence
from typing import cast

from laminabench.errors import CheckFailedError, UserError
from laminabench.json_safe import Json, to_json
from laminabench.nearest import nearest
from laminabench.regress.case_file import Case
from laminabench.regress.facts import facts_of
from laminabench.regress.golden import Obtained, Value
from laminabench.regress.verdict import require_samples
from laminabench.replay import ReplayRequest, run
from laminabench.request import typed
from laminabench.runs.manifest import Manifest


def replayed(_: None, case: Case, done: Callable[[], None] = lambda: None) -> tuple[Obtained, float]:
    """What the case comes to now, and the seconds it took; `done` is called after each measured replay."""
    began = time.perf_counter()
    try:
        found = _measured(case, done) if case.measured else _modelled(case)
    except (UserError, CheckFailedError) as error:
        raise error.within(f"case '{case.name}'") from error
    return found, time.perf_counter() - began


def _modelled(case: Case) -> Obtained:
    manifest = _manifest(case.requests[0])
    metrics: dict[str, Value] = dict(_metrics(case, manifest))
    return Obtained(metrics, facts_of(case, _command(case), manifest))


def _measured(case: Case, done: Callable[[], None]) -> Obtained:
    """Rounds one after another. What is measured beside takes turns, each first in every other round, so that
    a machine that slows down meanwhile slows both down; their ratio is then the metric.
    """
    sides = case.requests
    values: list[list[dict[str, float | None]]] = [[] for _ in sides]
    for turn in range(case.rounds):
        for side in range(len(sides))[:: -1 if turn % 2 else 1]:
            manifest = _manifest(sides[side])
            values[side].append(_metrics(case, manifest))
            if side == 0:
                facts = facts_of(case, _command(case), manifest)
            done()
    metrics: dict[str, Value] = {}
    for metric in case.metrics:
        samples = [require_samples(metric, [each[metric] for each in rounds]) for rounds in values]
        metrics[metric] = samples[0] if len(samples) == 1 else _ratios(*samples)
    return Obtained(metrics, facts)


def _ratios(of: Sequence[float], over: Sequence[float]) -> list[float]:
    return [one / other for one, other in zip(of, over, strict=True)]


def _command(case: Case) -> str:
    """As a person would type it."""
    words = [word for key, value in case.flags.items() for word in typed(key, value)]
    return shlex.join(["laminabench", "replay", *words, "--no-out"])


def _manifest(request: ReplayRequest) -> Manifest:
    """Replay; what its Run would say of itself."""
    found = run(request)
    if found.replayed.interrupted:
        raise KeyboardInterrupt
    found.require_sound()
    if partial := found.replayed.partial:
        raise CheckFailedError("check-partial", f"its Run cannot be judged, it is {partial.sentence}")
    return found.manifest(request)


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
