"""`lb.sweep`: a replay for each combination of values, and one table of all."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Unpack

from laminabench.api.frames import pandas
from laminabench.api.keywords import with_keywords
from laminabench.api.messages import MessageLog
from laminabench.api.replay import checked_request, named
from laminabench.render.sheets.replay import describe
from laminabench.requests.replay import ReplayRequest
from laminabench.traces.resolve import cut, transforms_of
from laminabench.traces.table import Trace
from laminabench.util.errors import CheckFailedError, UserError
from laminabench.util.json import JsonObject, json_safe
from laminabench.util.parallel import spread
from laminabench.util.progress import SILENT
from laminabench.workflows.replay.run import run
from laminabench.workflows.sweep.rows import row

if TYPE_CHECKING:
    import pandas as pd

    from laminabench.api.keyword_types import ReplayKeywords
    from laminabench.api.replay import TraceLike

MOST_POINTS = 100_000


@with_keywords(ReplayRequest)
def sweep(
    trace: TraceLike,
    vary: Mapping[str, Sequence[Any]],
    *,
    jobs: int | None = None,
    progress: bool = False,
    **choices: Unpack[ReplayKeywords],
) -> pd.DataFrame:
    """Replay a trace once for each combination of values of some choices.

    Args:
        trace: As for `replay`.
        vary: Values by choice, such as `{"batches": (1, 2), "deployment": ("2xh100+4xh20", "4xh100")}`.
        jobs: Replays at once; as many as there are cores by default, and one where they are live.
        progress: Show on stderr how far it is.
        **choices: Those of `replay` that all points have in common.

    Returns:
        A row a point: what was varied, every number under its dotted name (`tbt_ms.p99`), and `error` with
        what was wrong where a point could not be replayed.

    Examples:
        >>> import laminabench as lb
        >>> few = {"num_requests": 200, "system": "lamina", "jobs": 1}
        >>> table = lb.sweep("profile:azure-conv", {"batches": (1, 2)}, **few)
        >>> list(table["batches"]), bool((table["tbt_ms.p99"] > 0).all())
        ([1, 2], True)
    """
    count = math.prod(map(len, vary.values()))
    if not count or not vary:
        raise UserError("sweep-vary-value", "sweep(): vary names no values; such as vary={'batches': (1, 2)}")
    if count > MOST_POINTS:
        raise UserError(
            "sweep-too-large", f"sweep(): {count:,} points are more than {MOST_POINTS:,}; take larger steps"
        )
    messages = MessageLog(progress=progress)
    _, given = named(trace)
    points = [dict(zip(vary, values, strict=True)) for values in itertools.product(*vary.values())]
    requests = []
    for point in points:
        # Whatever is refused is refused before the first of them begins.
        where = f"sweep(), {', '.join(f'{name}={value}' for name, value in point.items())}"
        request, _ = checked_request(
            trace if given is None else given, {**choices, **point}, messages, where, no_out=True
        )
        requests.append(request)
    live = any(request.live for request in requests)
    rows: dict[int, dict[str, object]] = {}
    with messages.progress("sweeping", unit="points") as report:
        for place, each in spread(_replayed, requests, given, jobs=1 if live else jobs):
            rows[place] = row(points[place], each)
            report(len(rows), len(points))
    frame: pd.DataFrame = pandas().DataFrame([rows[place] for place in range(len(points))])
    return frame


def _replayed(given: Trace | None, request: ReplayRequest) -> JsonObject:
    """Return the documented keys of a replay, or its error; runs in any process."""
    try:
        result = run(request, trace=None if given is None else cut(given, transforms_of(request), SILENT))
        result.require_complete()
    except (UserError, CheckFailedError) as error:
        return {"error": str(error)}
    described: JsonObject = json_safe(describe(result, result.wall_s))
    return described
