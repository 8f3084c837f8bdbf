"""One benchmark of a tool's file, and checked access to what such files contain."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from laminabench.interchange.calls import Calls
from laminabench.runs.read import LATEST_S
from laminabench.sim.spec import Mode
from laminabench.traces.table import MAX_TOKENS
from laminabench.util import safe_parse
from laminabench.util.errors import UserError

Table = dict[str, Any]
MARK = "laminabench_"
# The latest Unix time, whatever its unit: in the year 5138.
_LATEST_CLOCK_S = 1e11
# Exceptions that a damaged file raises while it is read.
DAMAGE = (ArithmeticError, AttributeError, KeyError, TypeError, ValueError, IndexError)


@dataclass(frozen=True, slots=True)
class Benchmark:
    """One benchmark of a file."""

    tool: str
    version: str  # of the tool, empty if unknown
    calls: Calls
    model: str
    mode: Mode
    concurrency: int | None
    duration_s: float | None  # by the tool's definition
    stated: Mapping[str, float]  # the tool's own summary, by the tool's names
    recounted: Mapping[str, float]  # the same by the tool's definitions, from the requests
    url: str = ""
    began_at_s: float | None = None  # of the Unix clock
    platform: str | None = None
    partial: str = ""  # why it ended early
    part: str = ""  # its name, if the file has several benchmarks
    more: Mapping[str, Any] = field(default_factory=dict)  # other facts to store
    notes: Sequence[str] = ()
    marks: Mapping[str, str] = field(default_factory=dict)  # of the Run, if laminabench exported it

    def __post_init__(self) -> None:
        """Raise a ValueError for times that no benchmark can have had."""
        calls, pieces = self.calls, self.calls.pieces
        if self.duration_s is not None:
            seconds(self.duration_s, "the duration")
        known = {"sent": calls.sent_s, "answered": calls.last_s, "pieces came": pieces.at_s}
        for what, at_s in known.items():
            if (np.isinf(at_s) | (at_s < 0) | (at_s > LATEST_S)).any():
                raise ValueError(
                    f"requests were {what} before the first was sent, or more than 29 years later"
                )
        if (calls.first_s < calls.sent_s).any() or (pieces.gaps()[1] < 0).any():
            raise ValueError("tokens came before their request, or before those that precede them")

    @property
    def called(self) -> str:
        return f"{self.tool} {self.version}".strip()

    def differences(self) -> list[str]:
        """Return sentences about numbers of the tool's summary that its requests do not reproduce."""
        return [
            f"{self.tool} states {name} {self.stated[name]:.6g}, and its requests give {ours:.6g}"
            for name, ours in self.recounted.items()
            if name in self.stated and abs(self.stated[name] - ours) > 1e-3 * max(abs(ours), 1e-3)
        ]


def marks_in(table: Table) -> dict[str, str]:
    """Return the marks of an export of ours; none if the tool wrote the file."""
    return {name: str(value) for name, value in table.items() if name.startswith(MARK)}


def read_text(path: Path) -> str:
    try:
        return safe_parse.text(path, safe_parse.RESULTS_BYTES)
    except OSError as error:
        raise UserError("file-not-readable", f"cannot read {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise UserError("import-not-json", f"{path} is not text, so no result of a load generator") from error


def read_json(text: str, where: str) -> Any:
    try:
        return safe_parse.json_value(text)
    except ValueError as error:
        raise UserError("import-not-json", f"{where} is not JSON ({error})") from error


def count(value: Any, name: str) -> int:
    """Return a number of tokens or requests; raise a ValueError for what is none."""
    return int(_number(value, name, MAX_TOKENS))


def seconds(value: Any, name: str, unit_s: float = 1.0) -> float:
    """Return a length of time in seconds; raise a ValueError for what is none."""
    return float(_number(value, name, LATEST_S / unit_s) * unit_s)


def moment(value: Any, name: str, unit_s: float = 1.0) -> Any:
    """Return a time of any clock unchanged; raise a ValueError for what is none."""
    return _number(value, name, _LATEST_CLOCK_S / unit_s)


def _number(value: Any, name: str, most: float) -> Any:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= most:
        raise ValueError(f"{name} is {last_line(repr(value), 40)}, which is no number from 0 to {most:g}")
    return abs(value)  # -0.0 would be printed as such


def unlike(where: object, tool: str, why: object) -> UserError:
    """Return the error for a file whose content is not what the tool writes."""
    return UserError("import-damaged", f"{where} is not as {tool} writes it: {why}")


def last_line(text: object, most: int = 200) -> str:
    """Return the last line of a traceback."""
    lines = str(text).strip().splitlines()
    return lines[-1].strip()[:most] if lines else ""
