"""Goldens: what a case came to when it was last looked at, with all that it came from; a JSON file each."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from laminabench.runs.format import manifest_in
from laminabench.util import safe_parse
from laminabench.util.atomic import replacing
from laminabench.util.errors import UserError

FORMAT = "laminabench-golden"
# A change that older readers would misread is a new version.
FORMAT_VERSION = 1
SUFFIX = ".json"

# A modelled metric is one number, or null where there is none; a measured one has a number of each round.
Value = float | None | list[float]


@dataclass(frozen=True, slots=True)
class Obtained:
    """The metrics of a case and how they were obtained: saved as a golden, or compared with one."""

    metrics: Mapping[str, Value]
    facts: Mapping[str, Any]


def golden_path(folder: Path, case: str) -> Path:
    """Return the path of that case's golden."""
    return folder / f"{case}{SUFFIX}"


def read_golden(folder: Path, case: str) -> Obtained | None:
    """Return the golden of that case; None if there is none."""
    path = golden_path(folder, case)
    if not path.exists():
        return None
    advice = "`laminabench check --update` writes it anew"
    try:
        stored = safe_parse.json_value(safe_parse.content(path))
        if (stored["format"], stored["format_version"]) != (FORMAT, FORMAT_VERSION):
            raise UserError(
                "golden-format", f"{path} is a golden of another format than this laminabench's; {advice}"
            )
        obtained = Obtained(stored["metrics"], stored["facts"])
        _check(obtained)
    except OSError as error:
        raise UserError("file-not-readable", f"cannot read {path}: {error.strerror}") from error
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise UserError("golden-damaged", f"{path} is damaged ({error!r}); {advice}") from error
    return obtained


def _check(obtained: Obtained) -> None:
    """Raise a KeyError, TypeError or ValueError if parts are missing that a verdict rests on."""
    for name, value in obtained.metrics.items():
        # A change of rounds is a ratio, and NaN could never be reported as moved.
        if isinstance(value, list):
            sound = bool(value) and all(math.isfinite(each) and each > 0 for each in value)
        else:
            sound = value is None or math.isfinite(value)
        if not sound:
            raise ValueError(f"{name} is {value}")
    needed = [
        obtained.facts["backend"],
        obtained.facts["laminabench"]["version"],
        obtained.facts["laminabench"]["commit"],
    ]
    if needed[0] == "live":
        needed += [obtained.facts["host"]["cpu"], obtained.facts["host"]["cores"]]


def write_golden(folder: Path, case: str, obtained: Obtained) -> None:
    """Write a golden atomically."""
    text = json.dumps(
        {"format": FORMAT, "format_version": FORMAT_VERSION, "case": case, **asdict(obtained)},
        indent=2,
        allow_nan=False,
    )
    with replacing(golden_path(folder, case)) as temporary:
        temporary.write_text(f"{text}\n", encoding="utf-8")


def goldens_in(folder: Path) -> list[str]:
    """Return the cases with goldens, by name; other files in the folder are ignored."""
    return sorted(path.stem for path in folder.glob(f"*{SUFFIX}") if manifest_in(folder, FORMAT, path.name))
