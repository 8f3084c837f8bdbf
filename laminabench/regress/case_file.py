"""Case files: which replays are held against goldens, which of their metrics, and how far those may move."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import msgspec.structs

from laminabench.analysis.metrics_table import IN_GOLDENS
from laminabench.catalog.entries import from_path
from laminabench.errors import UserError
from laminabench.nearest import nearest
from laminabench.regress.interval import LEAST_ROUNDS
from laminabench.request import BY_KEY, NOT_OF_MANY, ReplayRequest, of_table
from laminabench.systems.registry import backend_of

# A modelled metric is computed, in whole ticks: the same inputs and code give the same number.
EXACT = 0.0
MEASURED_TOLERANCE = 0.01
ROUNDS = 10

# What a case may choose for its replays.
FLAGS = tuple(key for key in BY_KEY if key not in NOT_OF_MANY)
_OWN = ("metrics", "tolerance", "rounds", "against")
_TOP = ("goldens", "defaults", "case")
# It is also the name of a file.
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


@dataclass(frozen=True, slots=True)
class Case:
    """One replay, or one beside another, and what is asked of it."""

    name: str
    flags: Mapping[str, Any]  # of `laminabench replay`, by long name
    against: Mapping[str, Any] | None  # the flags of what it is measured beside
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
        """How many replays it takes."""
        return self.rounds * (2 if self.against else 1)


@dataclass(frozen=True, slots=True)
class CaseFile:
    """All cases of a file, and the folder of their goldens."""

    path: Path
    goldens: Path
    cases: tuple[Case, ...]

    def only(self, names: Collection[str]) -> tuple[Case, ...]:
        """The cases of these names, or all."""
        known = [case.name for case in self.cases]
        for name in names:
            if name not in known:
                raise UserError("case-unknown", f"{self.path} has no case '{name}'; {nearest(name, known)}")
        return tuple(case for case in self.cases if not names or case.name in names)


def read_cases(path: Path) -> CaseFile:
    """The cases in this file."""
    table = from_path(path)
    for key in table:
        if key not in _TOP:
            raise UserError(
                "case-file-invalid", f"{path} has '{key}', which is not known; {nearest(key, _TOP)}"
            )
    goldens = table.get("goldens", "golden")
    if not isinstance(goldens, str):
        raise UserError(
            "case-file-invalid", f"{path}: goldens must be a folder's path, beside the file's own"
        )
    defaults, cases = (_table(path, table.get(key, {}), key) for key in ("defaults", "case"))
    if not cases:
        raise UserError(
            "case-file-invalid", f"{path} has no case; write one as [case.NAME] with the flags of a replay"
        )
    found = []
    for name, own in cases.items():
        if not _NAME.fullmatch(name):
            raise UserError(
                "case-file-invalid",
                f"{path}: '{name}' cannot be a case's name: letters, digits, '.', '_' and '-' can",
            )
        keys = defaults | _table(path, own, f"case.{name}")
        found.append(_Reader(path, name, keys).case())
    return CaseFile(path, path.parent / goldens, tuple(found))


def _table(path: Path, value: Any, name: str) -> dict[str, object]:
    if not isinstance(value, dict):
        raise UserError("case-file-invalid", f"{path}: {name} must be a table, as in [{name}]")
    return value


class _Reader:
    """The keys of one case, checked; an error names file and case."""

    def __init__(self, path: Path, name: str, keys: Mapping[str, Any]) -> None:
        self.path, self.name, self.keys = path, name, keys

    def case(self) -> Case:
        flags = self.flags({key: value for key, value in self.keys.items() if key not in _OWN}, (*_OWN,))
        if "trace" not in flags:
            self.fail("has no trace; 'profile:NAME' is one that every machine has")
        measured = flags.get("backend") == "live"
        for key in ("rounds", "against"):
            if key in self.keys and not measured:
                self.fail(f"has '{key}', which is for what is measured: backend = \"live\"")
        metrics, against = self.metrics(), self.against(flags)
        return Case(
            self.name,
            flags,
            against,
            tuple(map(self.request, filter(None, (flags, against)))),
            metrics,
            self.tolerance(metrics, MEASURED_TOLERANCE if measured else EXACT),
            self.rounds() if measured else 1,
        )

    def fail(self, problem: str) -> NoReturn:
        raise UserError("case-invalid", f"{self.path}: case '{self.name}' {problem}")

    def flags(self, keys: Mapping[str, Any], others: tuple[str, ...]) -> dict[str, object]:
        for key, value in keys.items():
            if key not in FLAGS:
                self.fail(f"has '{key}', which is not known; {nearest(key, [*others, *FLAGS])}")
            values = value if isinstance(value, list) else [value]
            if not all(isinstance(each, str | int | float) for each in values):
                self.fail(f"has a '{key}' that is no value of a flag: a text, a number, true or false")
        return dict(keys)

    def request(self, flags: Mapping[str, Any]) -> ReplayRequest:
        """The replay of these flags; one value of what can be repeated need not be a list."""
        lists = {
            key: [value] if BY_KEY[key].repeatable and not isinstance(value, list) else value
            for key, value in flags.items()
        }
        found = of_table(lists, f"{self.path}: case '{self.name}'")
        try:
            found.require_valid()
            backend_of(found)
        except UserError as error:
            raise error.within(f"{self.path}: case '{self.name}'") from error
        return msgspec.structs.replace(found, no_out=True)

    def against(self, flags: Mapping[str, Any]) -> dict[str, object] | None:
        if "against" not in self.keys:
            return None
        keys = self.keys["against"]
        if not isinstance(keys, dict) or not keys:
            self.fail("has an 'against' that is no table of the flags that differ")
        if "backend" in keys:
            self.fail("has a 'backend' in 'against': both sides are measured in the same session")
        return {**flags, **self.flags(keys, ())}

    def metrics(self) -> tuple[str, ...]:
        names = self.keys.get("metrics", list(IN_GOLDENS))
        if not isinstance(names, list) or not names or not all(isinstance(name, str) for name in names):
            self.fail("has 'metrics' that are no list of names, such as [\"throughput_tokens_per_s\"]")
        return tuple(dict.fromkeys(names))

    def tolerance(self, metrics: tuple[str, ...], default: float) -> dict[str, float]:
        given = self.keys.get("tolerance", {})
        of_all = {} if isinstance(given, dict) else dict.fromkeys(metrics, given)
        some = given if isinstance(given, dict) else {}
        for name, share in {**of_all, **some}.items():
            if name not in metrics:
                self.fail(f"has a tolerance for '{name}', not one of its metrics; {nearest(name, metrics)}")
            if not isinstance(share, int | float) or isinstance(share, bool) or not 0 <= share < 1:
                self.fail(f"has the tolerance {share!r} for {name}; it is a share: 0.01 is one per cent")
        return {**dict.fromkeys(metrics, default), **of_all, **some}

    def rounds(self) -> int:
        rounds = self.keys.get("rounds", ROUNDS)
        if not isinstance(rounds, int) or isinstance(rounds, bool) or not LEAST_ROUNDS <= rounds <= 1000:
            self.fail(f"has {rounds!r} rounds; it takes {LEAST_ROUNDS} at least to tell a change from noise")
        return rounds
