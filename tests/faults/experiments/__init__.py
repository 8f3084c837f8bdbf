"""Fault experiments: kills, floods, damage and power cuts; each takes seeds of cases and returns a Tally."""

import os
from collections.abc import Mapping
from pathlib import Path


def child_environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the environment of a child process, which can import this package as pytest can."""
    environment = {**os.environ, **(extra or {})}
    paths = (str(Path(__file__).parents[1]), environment.get("PYTHONPATH"))
    return environment | {"PYTHONPATH": os.pathsep.join(filter(None, paths))}
