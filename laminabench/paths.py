"""Where things are: the committed trace descriptors, and the user's own folder of data."""

from __future__ import annotations

import os
from pathlib import Path


def descriptors() -> Path:
    """The folder of trace descriptors and profiles: inside an installed package, or in the checkout."""
    package = Path(__file__).resolve().parent
    installed = package / "_traces"
    return installed if installed.is_dir() else package.parent / "traces"


def home() -> Path:
    """Where downloads and imports live: $LAMINABENCH_HOME, else the platform's cache folder."""
    chosen = os.environ.get("LAMINABENCH_HOME")
    if chosen:
        return Path(chosen).expanduser()
    import platformdirs  # noqa: PLC0415 - costs more than the rest of --help

    return Path(platformdirs.user_cache_dir("laminabench", appauthor=False))
