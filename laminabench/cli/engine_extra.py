"""What commands say that need the `engine` or `serve` extra where it is not installed."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from laminabench.errors import UserError

PACKAGES = {"msgpack", "torch", "transformers", "safetensors"}
SERVE_PACKAGES = {"fastapi", "httptools", "prometheus_client", "pydantic", "starlette", "uvicorn", "uvloop"}


@contextlib.contextmanager
def needed() -> Iterator[None]:
    """Turn a missing package of the extra into a sentence that says how to get it."""
    try:
        yield
    except ModuleNotFoundError as error:
        package = (error.name or "").split(".")[0]
        if package in PACKAGES | SERVE_PACKAGES:
            extra = "engine" if package in PACKAGES else "engine,serve"
            raise UserError(
                "package-missing",
                f"this needs {error.name}, which is not installed: pip install 'laminabench[{extra}]'",
            ) from error
        raise
