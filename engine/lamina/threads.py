"""The time that torch's threads spin before they sleep.

libgomp reads it from the environment, once, when it is loaded. Its own default is some milliseconds, on the
cores that attention's threads want as soon as a matrix product is done. So it is loaded here, before torch
does, with another number; the environment, and so what programs that are started get of it, stays as it was.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import importlib.util
import logging
import os
from pathlib import Path

VARIABLE = "GOMP_SPINCOUNT"
# Below 0.1 ms: longer than from one operator of a slice to its next, and too short to be in attention's way,
# or in another process, next to which libgomp's default makes an iteration several times as long.
SPINS = "2000"
# If the user sets one of them, that decides.
_DECIDED = (VARIABLE, "OMP_WAIT_POLICY")


def _of_torch() -> Path | None:
    """Return the libgomp that torch brings along; None where it has none, or is not there."""
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        return None
    package = Path(spec.origin).parent
    folders = (package / "lib", package.with_name("torch.libs"))
    return next((file for folder in folders for file in sorted(folder.glob("libgomp*.so*"))), None)


def _is_loaded(library: Path) -> bool:
    with contextlib.suppress(OSError):
        ctypes.CDLL(str(library), mode=os.RTLD_NOLOAD)
        return True
    return False


def _settled() -> str | None:
    """Return the number that torch's threads go by; None where it is not known."""
    if any(name in os.environ for name in _DECIDED):
        return os.environ.get(VARIABLE)
    library = _of_torch()
    if library is None or _is_loaded(library):
        return None
    os.environ[VARIABLE] = SPINS
    try:
        ctypes.CDLL(str(library))
    finally:
        del os.environ[VARIABLE]
    return SPINS


spins = _settled()


@functools.cache
def warn_if_late() -> None:
    """Warn once, if torch was imported first, that this costs speed."""
    if spins is None and _of_torch() and not any(name in os.environ for name in _DECIDED):
        logging.getLogger("lamina").warning(
            "torch was imported before lamina: its threads spin for milliseconds on the cores that "
            "attention needs; import lamina first, or set %s=%s",
            VARIABLE,
            SPINS,
        )
