"""The gate that a change made the model no worse than the stored validation."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from laminabench.util import safe_parse
from laminabench.util.errors import UserError
from laminabench.util.json import JsonObject

# In percentage points, of a mean error.
ALLOWED = 0.5


class Moved(NamedTuple):
    """An error that is not as it was, in percent."""

    what: str
    was: float
    now: float | None

    @property
    def worse(self) -> bool:
        return self.now is None or abs(self.now) > abs(self.was) + ALLOWED


def read_stored(path: Path) -> JsonObject:
    """Read the output of `validate -o`."""
    try:
        stored = safe_parse.json_value(safe_parse.content(path))
        dict(_errors(stored))
    except OSError as error:
        raise UserError("validation-not-kept", f"cannot read {path}: {error.strerror}") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(
            "validation-not-kept", f"{path} is not a stored validation; `validate -o FOLDER` writes one"
        ) from error
    return dict(stored)


def moved(stored: Mapping[str, Any], now: Mapping[str, Any]) -> list[Moved]:
    """Yield every mean error that moved by more than rounding, and those now missing."""
    ours = dict(_errors(now))
    errors = [Moved(what, was, ours.get(what)) for what, was in _errors(stored) if what.split(" ")[0] in now]
    return [each for each in errors if each.now is None or abs(each.now - each.was) >= 0.005]


def _errors(validation: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    for each in validation.get("recorded", []):
        for metric, errors in each["errors_percent"].items():
            name = f"recorded {each['recording']}, constants from {each['constants']}: {metric}"
            yield name, float(errors["mean"])
    for each in validation.get("serving", {}).get("groups", []):
        for metric, errors in each["errors"].items():
            name = f"serving {each['what']} on {each['device']}: median {metric}"
            if not each["off"] and errors["points"]:
                yield name, float(errors["median"])
    for each in validation.get("board", []):
        of = f"{each['system']} on {each['device']}, {each['model']}, {each['costs']}"
        name = f"board {of}: median {each['metric']}"
        yield name, float(each["median"])
    for each in validation.get("published", []):
        if each["error_percent"] is not None:
            yield f"published {each['model']} on {each['deployment']}", float(each["error_percent"])
