"""What commands say that need the `engine` extra where it is not installed."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from laminabench.errors import UserError

PACKAGES = {"msgpack", "torch", "transformers", "safetensors"}


@contextlib.contextmanager
def needed() -> Iterator[None]:
    """Turn a missing package of the extra into a sentence that says how to get it."""
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name and error.name.split(".")[0] in PACKAGES:
            raise UserError(
                f"this needs {error.name}, which is not installed: pip install 'laminabench[engine]'"
            ) from error
        raise
