"""Paths of the tree's folders outside packages, and the user's data folder."""

from __future__ import annotations

import errno
import os
from pathlib import Path


def expanded(text: str) -> Path:
    """Return the path a person wrote, `~` and `~user` resolved.

    Where there is no such user, an OSError that holds the name; the command line prints it as a sentence.
    """
    path = Path(text)
    try:
        return path.expanduser()
    except RuntimeError:
        raise FileNotFoundError(errno.ENOENT, f"{path.parts[0]} is no user here", text) from None


def descriptors() -> Path:
    """Return the folder of trace descriptors and profiles."""
    return part_of_tree("traces")


def part_of_tree(name: str) -> Path:
    """Return a folder of the tree that is not imported: inside an installed package, or in the checkout."""
    package = Path(__file__).resolve().parents[1]
    installed = package / "_tree" / name
    return installed if installed.is_dir() else package.parent / name


def home() -> Path:
    """Return the folder of downloads and imports: $LAMINABENCH_HOME, else the platform's cache folder."""
    chosen = os.environ.get("LAMINABENCH_HOME")
    if chosen:
        return expanded(chosen)
    import platformdirs

    return Path(platformdirs.user_cache_dir("laminabench", appauthor=False))
