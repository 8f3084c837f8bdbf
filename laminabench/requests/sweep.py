"""A sweep as it is requested: the options that are varied, and where its points are replayed."""

from __future__ import annotations

from typing import Annotated

from laminabench.requests.fields import Count, Option, Request, flag_key


class SweepRequest(Request, frozen=True, kw_only=True, forbid_unknown_fields=True, rename=flag_key):
    """Every option of a sweep, besides those of its replays."""

    vary: Annotated[
        tuple[str, ...],
        Option(
            "Repeatable: a flag of replay, model-workers or attention-workers; 1,2,3 or 2..8 or 2..16:2.",
            required=True,
            metavar="FLAG=VALUES",
        ),
    ] = ()
    jobs: Annotated[Count | None, Option("Replays at once; as many as cores by default.")] = None
    ray: Annotated[
        str | None,
        Option("Replay on this Ray cluster, auto or host:port.", metavar="ADDRESS", reach="network"),
    ] = None
    directory: Annotated[
        str | None,
        Option(
            "Where points and table go; under sweeps/ by default, the same for the same sweep.",
            kind="folder",
            also="-o",
            reach="writes",
        ),
    ] = None
    retry_failed: Annotated[bool | None, Option("Replay points again that failed.")] = None
    sort: Annotated[str | None, Option("Best first; as the grid by default.", reach="nothing")] = None
    flags: tuple[str, ...] = ()  # of `laminabench replay`, for all points
