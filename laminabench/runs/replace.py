"""Atomic replacement of directories: they appear complete or not at all, in one step where the system can."""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from laminabench.util.atomic import alone, force, make_folder, os_message, partial
from laminabench.util.errors import UserError

_AT_FDCWD = -100
_RENAME_EXCHANGE = 2


def require_replaceable(directory: Path, is_ours: Callable[[], bool], what: str) -> None:
    """Raise a UserError unless the path is free, an empty directory, or what this would replace."""
    require_writable(directory)
    try:
        if not directory.exists() and not directory.is_symlink():
            return
        if directory.is_dir() and (not any(directory.iterdir()) or is_ours()):
            return
    except OSError as error:
        raise UserError("file-not-writable", f"cannot write {directory}: {error.strerror}") from error
    raise UserError(
        "output-exists", f"{directory} exists and is not {what}; it is left alone, name another directory"
    )


def require_writable(target: Path) -> None:
    """Raise a UserError early if `target` could not be written. Other failures remain possible."""
    parent = Path(os.path.realpath(target)).parent
    try:
        while not parent.exists():
            parent = parent.parent
    except OSError as error:
        raise UserError("file-not-writable", f"cannot write {target}: {error.strerror}") from error
    if not parent.is_dir():
        raise UserError("file-not-writable", f"cannot write {target}: {parent} is not a directory")
    if not os.access(parent, os.W_OK | os.X_OK):
        raise UserError("file-not-writable", f"cannot write {target}: {parent} is not yours to write to")


@contextlib.contextmanager
def replacing_directory(target: Path) -> Iterator[Path]:
    """Yield a temporary directory that becomes `target` if the block succeeds, and is removed if not.

    It is forced to the disk first. The caller decides whether `target` may be replaced.
    """
    target = Path(os.path.realpath(target))
    try:
        make_folder(target.parent)
        with alone(target):
            temporary = target.with_name(partial(target.name))
            try:
                temporary.mkdir()
                yield temporary
                for folder, _, names in os.walk(temporary):
                    for name in names:
                        force(Path(folder, name))
                    force(Path(folder))
                _put(temporary, target)
            finally:
                # After an exchange this is the predecessor.
                shutil.rmtree(temporary, ignore_errors=True)
    except OSError as error:
        raise UserError("file-not-writable", f"cannot write {target}: {os_message(error)}") from error


def _put(temporary: Path, target: Path) -> None:
    if not target.exists() or not any(target.iterdir()):
        temporary.rename(target)
    elif not _exchange(temporary, target):
        # Two steps; a crash between them leaves the predecessor under its temporary name, complete.
        old = temporary.with_name(f"{temporary.name}-old")
        target.rename(old)
        try:
            temporary.rename(target)
        except BaseException:
            old.rename(target)
            raise
        force(target.parent)
        shutil.rmtree(old, ignore_errors=True)
        return
    force(target.parent)


def _exchange(one: Path, other: Path) -> bool:
    """Swap two directories in one step; False where the system or the file system cannot."""
    if not sys.platform.startswith("linux"):
        return False
    try:
        renameat2 = ctypes.CDLL(None, use_errno=True).renameat2
    except (AttributeError, OSError):
        return False
    done = renameat2(_AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other), _RENAME_EXCHANGE)
    return bool(done == 0)
