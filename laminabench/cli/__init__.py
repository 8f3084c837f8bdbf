"""The command line: commands parse, call and print; other packages do the work."""

from __future__ import annotations

import sys
from types import TracebackType


def _print_uncaught(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    # Of Ctrl-C before a command has begun there is nothing to print; Python ends with the signal.
    if not issubclass(kind, KeyboardInterrupt):
        sys.__excepthook__(kind, error, trace)


sys.excepthook = _print_uncaught
