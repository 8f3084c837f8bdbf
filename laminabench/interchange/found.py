"""What is found in a tool's file, beside what it says of each request."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from laminabench.interchange.calls import Calls
from laminabench.sim.spec import Mode
from laminabench.util.errors import UserError

Table = dict[str, Any]
MARK = "laminabench_"


@dataclass(frozen=True, slots=True)
class Found:
    """One benchmark of a file."""

    tool: str
    version: str  # of the tool, empty where its files do not say it
    calls: Calls
    model: str
    mode: Mode
    concurrency: int | None
    duration_s: float | None  # as the tool counts it
    stated: Mapping[str, float]  # the tool's own summary, by the tool's names
    recounted: Mapping[str, float]  # the same by the tool's definitions, from the requests
    url: str = ""
    began_at_s: float | None = None  # of the Unix clock
    platform: str | None = None
    partial: str = ""  # why it ended early
    part: str = ""  # which of a file's benchmarks it is, where there are several
    more: Mapping[str, Any] = field(default_factory=dict)  # what else is worth keeping
    notes: Sequence[str] = ()
    marks: Mapping[str, str] = field(default_factory=dict)  # what an export of ours says of its Run

    @property
    def called(self) -> str:
        return f"{self.tool} {self.version}".strip()

    def differences(self) -> list[str]:
        """Sentences about numbers of the tool's summary that its requests do not come to."""
        return [
            f"{self.tool} states {name} {self.stated[name]:.6g}, and its requests come to {ours:.6g}"
            for name, ours in self.recounted.items()
            if name in self.stated and abs(self.stated[name] - ours) > 1e-3 * max(abs(ours), 1e-3)
        ]


def marks_in(table: Table) -> dict[str, str]:
    """What an export of ours says of its Run; nothing where the tool itself wrote the file."""
    return {name: str(value) for name, value in table.items() if name.startswith(MARK)}


def read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise UserError("file-not-readable", f"cannot read {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise UserError("import-not-json", f"{path} is not text, so no result of a load generator") from error


def read_json(text: str, where: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UserError("import-not-json", f"{where} is not JSON ({error})") from error


def unlike(where: object, tool: str, why: object) -> UserError:
    """What it looks like is not what is in it."""
    return UserError("import-damaged", f"{where} is not as {tool} writes it: {why}")


def last_line(text: object, most: int = 200) -> str:
    """Of a traceback what it ends with."""
    lines = str(text).strip().splitlines()
    return lines[-1].strip()[:most] if lines else ""
