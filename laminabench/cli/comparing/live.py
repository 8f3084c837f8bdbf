"""`laminabench compare --live`: replays that take turns, round after round, and what their Runs say."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from laminabench.cli.comparing.answers import OfRuns
from laminabench.cli.output import Output
from laminabench.cli.replay import Call, free_directory, replay
from laminabench.cli.replay_flags import NOT_OF_MANY
from laminabench.cli.traces.options import TraceOptions
from laminabench.compare.rounds import compare_runs
from laminabench.errors import CheckFailedError, UserError
from laminabench.runs.replace import require_writable

if TYPE_CHECKING:
    from rich.console import Console

# Flags of the comparison that every side has too, by the names that both commands have for them.
COMMON = ("mode", "concurrency", "slo_tbt_ms", "admission", "prices", "powers", "price_basis")
_HOW_TOLD = ("as_json", "quiet", "verbose")


class _Quietly(Output):
    """The rounds' voice: what several have to note is told once, and their results stand side by side."""

    def __init__(self, out: Output) -> None:
        super().__init__(as_json=out.as_json, quiet=out.quiet, verbose=out.verbose)
        self._told: set[str] = set()

    def note(self, sentence: str) -> None:
        if sentence not in self._told:
            super().note(sentence)
        self._told.add(sentence)

    def result(self, data: Mapping[str, object], render: Callable[[Console], None]) -> None:
        del data, render


@dataclass(frozen=True, slots=True)
class _Side:
    """One --live: what takes turns with the others."""

    said: str
    given: frozenset[str]
    parameters: dict[str, Any]
    options: TraceOptions

    def call(self, out: Output, directory: Path) -> Call:
        """The replay of one round."""
        parameters = self.parameters | {"directory": directory}
        not_calls = {*_of_trace(self.options), *_HOW_TOLD}
        return Call(
            out=out,
            workload=self.options,
            given=set(self.given) | {"directory"},
            parameters=parameters,
            **{name: value for name, value in parameters.items() if name not in not_calls},
        )


def of_live(flags: dict[str, Any], given: set[str], options: TraceOptions, out: Output) -> OfRuns:
    """The sides of the command line, replayed in turns; their Runs are kept, and compared."""
    for flag, values in (("--trace", flags["traces"]), ("--model", flags["models"])):
        if len(values) > 1 or not (values or flag == "--model"):
            raise UserError(
                "compare-live-one-workload", f"--live takes one {flag}, and {len(values)} are given"
            )
    sides = [_side(said, flags, given, options) for said in flags["live"]]
    _require_apart(sides)
    base = _place(flags["base"], len(sides))
    directory: Path = flags["directory"] or free_directory(f"compare-{Path(flags['traces'][0]).name}")
    _require_new(directory)
    require_writable(directory / "1-1")
    # Whatever is refused is refused before the first of them begins.
    for side in sides:
        _named(side, side.call(out, directory / "1-1").backend)
    rounds, voice = flags["rounds"], _Quietly(out)
    paths: list[list[Path]] = [[] for _ in sides]
    for round_ in range(1, rounds + 1):
        places = range(len(sides))
        # There and back: a machine that slows down slows no side more than another.
        for place in places if round_ % 2 else reversed(places):
            path = directory / f"{round_}-{place + 1}"
            out.note(f"round {round_} of {rounds}: {sides[place].said}")
            _named(sides[place], sides[place].call(voice, path).run)
            paths[place].append(path)
    compared, doubts = compare_runs(
        [path for side in paths for path in side], base=paths[base][0], slo_tbt_ms=flags["slo_tbt_ms"]
    )
    return OfRuns(compared, [f"Runs are kept in {directory}", *doubts])


def _of_trace(options: TraceOptions) -> dict[str, Any]:
    return {"offline": options.offline, **asdict(options.transforms)}


def _side(said: str, flags: Mapping[str, Any], given: set[str], options: TraceOptions) -> _Side:
    """One --live, read by replay's own parser; the comparison's flags hold for it too."""
    try:
        context = replay.make_context("laminabench replay", shlex.split(said))
    except click.UsageError as error:
        raise UserError(
            "compare-live-syntax", f"--live {said!r}: {error.format_message().rstrip('.')}"
        ) from error
    except ValueError as error:
        raise UserError("compare-live-syntax", f"--live {said!r}: {error}") from error
    own = {
        name
        for name in context.params
        if context.get_parameter_source(name) not in (None, ParameterSource.DEFAULT)
    }
    trace = _of_trace(options)
    for option in context.command.params:
        flag = option.opts[0].removeprefix("--")
        if option.name in own and (flag in NOT_OF_MANY or option.name in ("trace", *trace)):
            why = NOT_OF_MANY.get(flag, "all sides have the comparison's")
            raise UserError(
                "compare-live-flag", f"--live {said!r}: --{flag} does not belong to one side: {why}"
            )
    if "backend" in own and context.params["backend"] != "live":
        raise UserError(
            "compare-live-modelled", f"--live {said!r}: what is modelled takes no turns; leave --backend out"
        )
    shared = {name: flags[name] for name in COMMON if name in given and name not in own}
    if "mode" in own:
        shared.pop("concurrency", None)  # it is of the comparison's mode
    if "model_name" not in own and flags["models"]:
        shared["model_name"] = flags["models"][0]
    shared |= {"trace": flags["traces"][0], "backend": "live"}
    cut = {name for name in trace if name in given}
    return _Side(said, frozenset({*own, *shared, *cut}), {**context.params, **shared, **trace}, options)


def _named(side: _Side, deed: Callable[[], Any]) -> None:
    try:
        deed()
    except UserError as error:
        raise UserError(error.code, f"--live {side.said!r}: {error}") from error
    except CheckFailedError as error:
        raise CheckFailedError(error.code, f"--live {side.said!r}: {error}") from error


def _require_apart(sides: Sequence[_Side]) -> None:
    """A UserError where rounds of two sides would be taken for rounds of one."""
    if len(sides) < 2:
        raise UserError("compare-too-few", "one --live is nothing to compare; give at least two")
    for place, side in enumerate(sides):
        for other in sides[:place]:
            if other.parameters == side.parameters:
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


def _require_new(directory: Path) -> None:
    if directory.exists() and any(directory.iterdir()):
        raise UserError(
            "output-exists", f"{directory} is not empty, and rounds of another day are no rounds of this one"
        )
