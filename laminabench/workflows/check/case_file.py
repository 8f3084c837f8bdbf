"""Case files: replays to check against goldens, their metrics, and tolerances."""

from __future__ import annotations

import re
import shlex
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, NoReturn

import msgspec
from msgspec import Meta

from laminabench.analysis.metrics_table import IN_GOLDENS
from laminabench.catalog.entries import from_path
from laminabench.requests.replay import BY_KEY, NOT_OF_MANY, ReplayRequest, acting, of_table
from laminabench.systems.registry import backend_of
from laminabench.util.errors import UserError
from laminabench.util.suggest import nearest

# A modelled metric is computed, in whole ticks: the same inputs and code give the same number.
EXACT = 0.0
MEASURED_TOLERANCE = 0.01
ROUNDS = 10
# Of four and four measurements only 2 of 70 orders have all of one set below all of the other.
LEAST_ROUNDS = 4

# What a case may choose for its replays.
FLAGS = tuple(key for key in BY_KEY if key not in NOT_OF_MANY)
# It is also the name of a file.
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


@dataclass(frozen=True, slots=True)
class Case:
    """One replay, or one measured alongside another, and the metrics to check."""

    name: str
    flags: Mapping[str, Any]  # of `laminabench replay`, by long name
    against: Mapping[str, Any] | None  # the flags of the replay it is measured against
    requests: tuple[ReplayRequest, ...]  # of these, and of those
    metrics: tuple[str, ...]
    tolerance: Mapping[str, float]  # of each metric, as a share
    rounds: int

    @property
    def measured(self) -> bool:
        """Whether its metrics are of this machine's clock."""
        return self.flags.get("backend") == "live"

    @property
    def replays(self) -> int:
        """The number of replays it takes."""
        return self.rounds * (2 if self.against else 1)


@dataclass(frozen=True, slots=True)
class CaseFile:
    """All cases of a file, and the folder of their goldens."""

    path: Path
    goldens: Path
    cases: tuple[Case, ...]

    def only(self, names: Collection[str]) -> tuple[Case, ...]:
        """Return the cases of these names, or all."""
        known = [case.name for case in self.cases]
        for name in names:
            if name not in known:
                raise UserError("case-unknown", f"{self.path} has no case '{name}'; {nearest(name, known)}")
        return tuple(case for case in self.cases if not names or case.name in names)


class _File(msgspec.Struct, forbid_unknown_fields=True):
    """The keys of a case file."""

    case: Annotated[dict[str, dict[str, Any]], Meta(min_length=1)]
    goldens: str = "golden"
    defaults: dict[str, Any] = {}


Share = Annotated[float, Meta(ge=0, lt=1)]


class _Own(msgspec.Struct):
    """A case's keys besides the flags of its replay; a tolerance of 0.01 is one per cent."""

    metrics: Annotated[tuple[str, ...], Meta(min_length=1)] = IN_GOLDENS
    tolerance: Share | dict[str, Share] = {}
    # Fewer do not distinguish a change from noise.
    rounds: Annotated[int, Meta(ge=LEAST_ROUNDS, le=1000)] = ROUNDS
    against: Annotated[dict[str, Any], Meta(min_length=1)] | None = None


def read_cases(path: Path) -> CaseFile:
    """Read the cases in this file."""
    try:
        file = msgspec.convert(from_path(path), _File)
    except msgspec.ValidationError as error:
        advice = "write a case as [case.NAME] with the flags of a replay"
        raise UserError("case-file-invalid", f"{path}: {_plain(error)}; {advice}") from error
    for name in file.case:
        if not _NAME.fullmatch(name):
            raise UserError(
                "case-file-invalid",
                f"{path}: '{name}' cannot be a case's name: letters, digits, '.', '_' and '-' can",
            )
    cases = (_case(path, name, file.defaults | own) for name, own in file.case.items())
    return CaseFile(path, path.parent / file.goldens, tuple(cases))


def _case(path: Path, name: str, keys: Mapping[str, Any]) -> Case:
    """Return a case from its keys, checked; an error names file and case."""
    where = f"{path}: case '{name}'"

    def fail(problem: str) -> NoReturn:
        raise UserError("case-invalid", f"{where} {problem}")

    def require_flags(flags: Mapping[str, Any], others: Sequence[str] = ()) -> None:
        for key, value in flags.items():
            if key not in FLAGS:
                fail(f"has '{key}', which is not known; {nearest(key, [*others, *FLAGS])}")
            values = value if isinstance(value, list) else [value]
            if not all(isinstance(each, str | int | float) for each in values):
                fail(f"has a '{key}' that is no value of a flag: a text, a number, true or false")

    flags = {key: value for key, value in keys.items() if key not in _Own.__struct_fields__}
    require_flags(flags, _Own.__struct_fields__)
    if "trace" not in flags:
        fail("has no trace; 'profile:NAME' is one that every machine has")
    measured = flags.get("backend") == "live"
    for key in ("rounds", "against"):
        if key in keys and not measured:
            fail(f"has '{key}', which is for what is measured: backend = \"live\"")
    try:
        own = msgspec.convert(keys, _Own)
    except msgspec.ValidationError as error:
        fail(f"is wrong: {_plain(error)}")
    against = None
    if own.against:
        require_flags(own.against)
        if "backend" in own.against:
            fail("has a 'backend' in 'against': both sides are measured in the same session")
        against = {**flags, **own.against}
    metrics = tuple(dict.fromkeys(own.metrics))
    one = MEASURED_TOLERANCE if measured else EXACT
    some = own.tolerance if isinstance(own.tolerance, dict) else dict.fromkeys(metrics, own.tolerance)
    for metric in some:
        if metric not in metrics:
            fail(f"has a tolerance for '{metric}', not one of its metrics; {nearest(metric, metrics)}")
    requests = tuple(_request(where, each) for each in (flags, against) if each)
    tolerance = {**dict.fromkeys(metrics, one), **some}
    return Case(name, flags, against, requests, metrics, tolerance, own.rounds if measured else 1)


def _request(where: str, flags: Mapping[str, Any]) -> ReplayRequest:
    """Return the replay of these flags; a repeatable flag with one value need not be a list."""
    lists = {
        key: [value] if BY_KEY[key].repeatable and not isinstance(value, list) else value
        for key, value in flags.items()
    }
    request = of_table(lists, where)
    if words := acting(request):
        raise UserError(
            "case-not-trusted",
            f"{where} has {shlex.join(words)}: code, addresses, credentials and files to write are taken "
            "from the command line only, so no case can have them",
        )
    try:
        request.require_valid()
        backend_of(request)
    except UserError as error:
        raise error.within(where) from error
    return msgspec.structs.replace(request, no_out=True)


def _plain(error: msgspec.ValidationError) -> str:
    """Return msgspec's sentence without its marks."""
    return str(error).replace("`", "").replace("$.", "")
