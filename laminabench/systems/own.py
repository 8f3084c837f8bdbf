"""A class of the user's own, named as module:Class on the command line."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

from laminabench.util.errors import UserError


def made(code: str, flag: str, name: str, method: str, *arguments: Any) -> Any:
    """Return the method of an instance made with these arguments; raise a UserError if there is none."""
    module_name, _, class_name = name.partition(":")
    try:
        # As `python -m` does: the user's own module is in the folder they stand in.
        sys.path.insert(0, str(Path.cwd()))
        try:
            one: Any = getattr(importlib.import_module(module_name), class_name)(*arguments)
        finally:
            sys.path.pop(0)
        return getattr(one, method)
    except (Exception, SystemExit) as error:
        raise UserError(code, f"{flag} {name}: {type(error).__name__}: {error}") from error
