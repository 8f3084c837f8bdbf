"""Files appear whole or not at all: write to a temporary sibling, then rename."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

from laminabench.errors import UserError


@contextlib.contextmanager
def replacing(target: Path) -> Iterator[Path]:
    """Yield a temporary path that becomes `target` if the block succeeds, and is removed if it does not.

    Where `target` is a link, the file it leads to is replaced and the link stays.
    """
    if target.exists() and not target.is_file():
        raise UserError("file-not-regular", f"cannot write {target}: it is there and not a file")
    if target.is_symlink():
        target = Path(os.path.realpath(target))
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        # The name keeps the suffix: plotting libraries pick the format by it.
        handle, temporary = tempfile.mkstemp(
            prefix=f".{target.stem}-", suffix=target.suffix, dir=target.parent
        )
    except OSError as error:
        raise UserError("file-cannot-write", f"cannot write {target}: {error.strerror}") from error
    os.close(handle)
    try:
        yield Path(temporary)
        umask = os.umask(0)
        os.umask(umask)
        os.chmod(temporary, 0o666 & ~umask)  # noqa: PTH101 - mkstemp made it private
        os.replace(temporary, target)  # noqa: PTH105 - the atomic one, by name
    except OSError as error:
        raise UserError("file-cannot-write", f"cannot write {target}: {error.strerror or error}") from error
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)  # noqa: PTH108
