"""What a replay against a server says where the packages for it are not installed."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from laminabench.errors import UserError

# Which extra brings what.
EXTRAS = {"httptools": "endpoint", "uvloop": "endpoint", "tokenizers": "tokenize"}


@contextlib.contextmanager
def needed() -> Iterator[None]:
    """Turn a missing package into a sentence that says how to get it."""
    try:
        yield
    except ModuleNotFoundError as error:
        extra = EXTRAS.get((error.name or "").split(".", maxsplit=1)[0])
        if extra is None:
            raise
        raise UserError(
            "package-missing",
            f"this needs {error.name}, which is not installed: pip install 'laminabench[{extra}]'",
        ) from error
