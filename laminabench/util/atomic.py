"""Files and folders appear whole or not at all, and stay when the power is cut once they have appeared.

They are written next to their place, forced to the disk, renamed, and then the folder that has their name is
forced to the disk too. Leftovers of a killed writer next to a folder are removed when that is written again.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path

from laminabench.util.errors import UserError

# What file systems say that know no such thing for folders, or no locks.
_UNKNOWN = {errno.EINVAL, errno.ENOTSUP, errno.ENOSYS, errno.ENOLCK}


@contextlib.contextmanager
def replacing(target: Path, *, durable: bool = True) -> Iterator[Path]:
    """Yield a temporary path that becomes `target` if the block succeeds, and is removed if it does not.

    Where `target` is a link, the file it leads to is replaced and the link stays. What can be made again
    need not be `durable`: after a power cut it is what it was, what it became, or empty.
    """
    if target.exists() and not target.is_file():
        raise UserError("file-not-regular", f"cannot write {target}: it exists and is not a file")
    if target.is_symlink():
        target = Path(os.path.realpath(target))
    temporary = None
    try:
        make_folder(target.parent)
        # The name keeps the suffix: plotting libraries pick the format by it.
        name = partial(target.stem, target.suffix)
        # With the mode of any new file, as the kernel makes it of this process' mask and the folder's rules.
        os.close(os.open(target.parent / name, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))
        temporary = target.parent / name
        yield temporary
        if durable:
            force(temporary)
        os.replace(temporary, target)  # noqa: PTH105 - the atomic one, by name
        if durable:
            force(target.parent)
    except OSError as error:
        raise UserError("file-cannot-write", f"cannot write {target}: {os_message(error)}") from error
    finally:
        if temporary is not None:
            with contextlib.suppress(OSError):
                temporary.unlink()


def os_message(error: OSError) -> str:
    """Return the system's message, without the text that libraries add."""
    return os.strerror(error.errno) if error.errno else " ".join(str(error).split())


def partial(name: str, suffix: str = "") -> str:
    """Return a unique temporary name for a file that will be called `name`."""
    return f".{name}.{secrets.token_hex(4)}.partial{suffix}"


def force(path: Path) -> None:
    """Flush a file's content, or a folder's names, to the disk."""
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno not in _UNKNOWN or path.is_file():
            raise
    finally:
        os.close(handle)


def make_folder(folder: Path) -> None:
    """Make it and those above it, each there for good."""
    if folder.is_dir():
        return
    make_folder(folder.parent)
    folder.mkdir(exist_ok=True)
    force(folder.parent)


@contextlib.contextmanager
def alone(target: Path) -> Iterator[None]:
    """Lock `target` against other writers, and remove what a killed writer left."""
    path = target.with_name(f".{target.name}.lock")
    handle = _locked(path, target)
    try:
        for left in _left_of(target):
            if left.is_dir():
                shutil.rmtree(left, ignore_errors=True)
            else:
                left.unlink(missing_ok=True)
        yield
    finally:
        # Removed before unlocking, so that a waiting process sees that the lock is another file.
        with contextlib.suppress(OSError):
            path.unlink()
        os.close(handle)


def _locked(path: Path, target: Path) -> int:
    while True:
        handle = os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o666)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.fstat(handle).st_nlink:
                return handle
        except BlockingIOError:
            os.close(handle)
            raise UserError(
                "output-in-use", f"{target} is being written by another process: name another --out"
            ) from None
        except OSError as error:
            if error.errno in _UNKNOWN:
                return handle
            os.close(handle)
            raise
        os.close(handle)


def _left_of(target: Path) -> list[Path]:
    named = re.compile(rf"\.{re.escape(target.name)}\.[0-9a-f]{{8}}\.partial")
    return [target.parent / name for name in os.listdir(target.parent) if named.fullmatch(name)]  # noqa: PTH208
