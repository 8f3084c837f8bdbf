"""`laminabench compare --live`: replays that take turns, round after round, and what their Runs say."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from laminabench.catalog.deployment import AUTO
from laminabench.cli.compare.answers import Answer, answer_of_runs, shared
from laminabench.cli.compare.kept import require_new
from laminabench.cli.flags import changed, parsed_line
from laminabench.cli.output import Output
from laminabench.requests.replay import CHOICES, CUTS, NOT_OF_MANY
from laminabench.systems.registry import prepare
from laminabench.util.errors import CheckFailedError, Interrupted, UserError
from laminabench.util.progress import Once
from laminabench.util.redact import line
from laminabench.workflows.compare.rounds import compare_runs
from laminabench.workflows.replay import ReplayRequest, run
from laminabench.workflows.replay.run import free_directory
from laminabench.workflows.replay.turns import in_turns


@dataclass(frozen=True, slots=True)
class _Side:
    """One --live: what takes turns with the others."""

    said: str
    request: ReplayRequest


def of_live(flags: Mapping[str, Any], workload: ReplayRequest, out: Output) -> Answer:
    """The sides of the command line, replayed in turns; their Runs are kept, and compared."""
    for flag, values in (("--trace", flags["traces"]), ("--model", flags["models"])):
        if len(values) > 1 or not (values or flag == "--model"):
            raise UserError(
                "compare-live-one-workload", f"--live takes one {flag}, and {len(values)} are given"
            )
    sides = [_side(said, flags, workload) for said in flags["live"]]
    _require_apart(sides)
    base = _place(flags["base"], len(sides))
    directory: Path = flags["directory"] or free_directory(f"compare-{Path(flags['traces'][0]).name}")
    require_new(directory)
    # Whatever is refused is refused before the first of them begins.
    for side in sides:
        with _named(side):
            side.request.require_valid()
            prepare(side.request)
    rounds, listener = flags["rounds"], Once(out)
    paths: list[list[Path]] = [[] for _ in sides]
    for turn, place in in_turns(len(sides), rounds):
        path = directory / f"{turn + 1}-{place + 1}"
        out.note(f"round {turn + 1} of {rounds}: {sides[place].said}")
        with _named(sides[place]):
            found = run(changed(sides[place].request, {"directory": str(path)}), listener=listener)
            if found.replayed.interrupted:
                raise Interrupted(f"the Runs so far are in {directory}")
            found.require_sound()
        if sides[place].request.deployment == AUTO:  # once for all rounds
            settled = {"deployment": found.prepared.request.deployment}
            sides[place] = replace(sides[place], request=changed(sides[place].request, settled))
        paths[place].append(path)
    all_paths = [path for side in paths for path in side]
    compared, doubts = compare_runs(
        all_paths,
        base=paths[base][0],
        slo_tbt_ms=flags["slo_tbt_ms"],
        slo_ttft_ms=flags["slo_ttft_ms"],
    )
    return answer_of_runs(compared, [f"Runs are kept in {directory}", *doubts], all_paths)


def _side(said: str, flags: Mapping[str, Any], workload: ReplayRequest) -> _Side:
    """One --live, read by replay's own parser; the comparison's flags hold for it too."""
    given, said = said, line(said)
    try:
        own = parsed_line(given)
    except ValueError as error:
        raise UserError("compare-live-syntax", f"--live {said!r}: {error}") from error
    for name in own:
        choice = CHOICES[name]
        if choice.key in NOT_OF_MANY or name == "trace" or choice.group == CUTS:
            why = NOT_OF_MANY.get(choice.key, "all sides have the comparison's")
            raise UserError(
                "compare-live-flag", f"--live {said!r}: {choice.spelled} does not belong to one side: {why}"
            )
    if own.get("backend", "live") != "live":
        raise UserError(
            "compare-live-modelled", f"--live {said!r}: what is modelled takes no turns; leave --backend out"
        )
    common = shared(flags)
    if "mode" in own:
        common.pop("concurrency", None)  # it is of the comparison's mode
    if flags["models"]:
        common["model"] = flags["models"][0]
    common |= {"trace": flags["traces"][0], "backend": "live"}
    return _Side(said, changed(workload, {**common, **own}))


@contextlib.contextmanager
def _named(side: _Side) -> Iterator[None]:
    """Whose error it is."""
    try:
        yield
    except (UserError, CheckFailedError) as error:
        raise error.within(f"--live {side.said!r}") from error


def _require_apart(sides: Sequence[_Side]) -> None:
    """A UserError where rounds of two sides would be taken for rounds of one."""
    if len(sides) < 2:
        raise UserError("compare-too-few", "one --live is nothing to compare; give at least two")
    for place, side in enumerate(sides):
        for other in sides[:place]:
            if other.request == side.request:
                raise UserError(
                    "compare-live-same",
                    f"--live {side.said!r} is the same as --live {other.said!r}; vary a flag",
                )


def _place(base: str | None, sides: int) -> int:
    """Which --live ratios are to: the first, or the one of that number."""
    if base is None:
        return 0
    if not base.isdecimal() or not 1 <= int(base) <= sides:
        raise UserError("compare-base-unknown", f"--base {base}: of --live give its number, 1 to {sides}")
    return int(base) - 1
