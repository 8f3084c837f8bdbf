"""The folder of stored conversions."""

from __future__ import annotations

import os
from pathlib import Path


def cache_folder(kind: str) -> Path:
    """Return a folder of the user's own: in $LAMINABENCH_HOME, else in the platform's cache folder."""
    chosen = os.environ.get("LAMINABENCH_HOME")
    if chosen:
        return Path(chosen).expanduser() / kind
    import platformdirs

    return Path(platformdirs.user_cache_dir("laminabench", appauthor=False)) / kind
