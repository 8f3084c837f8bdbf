"""What commands say where a package of an extra is not installed."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from laminabench.errors import UserError

# Which extra brings what: for the engine and its server, and for replays against a server.
_ENGINE = dict.fromkeys(("msgpack", "torch", "transformers", "safetensors"), "engine")
_SERVE = dict.fromkeys(
    ("fastapi", "httptools", "prometheus_client", "pydantic", "starlette", "uvicorn", "uvloop"),
    "engine,serve",
)
_ENDPOINT = {"httptools": "endpoint", "uvloop": "endpoint", "tokenizers": "tokenize"}


@contextlib.contextmanager
def needed(extras: dict[str, str] = _ENGINE | _SERVE) -> Iterator[None]:
    """Turn a missing package into a sentence that says how to get it."""
    try:
        yield
    except ModuleNotFoundError as error:
        extra = extras.get((error.name or "").split(".", maxsplit=1)[0])
        if extra is None:
            raise
        raise UserError(
            "package-missing",
            f"this needs {error.name}, which is not installed: pip install 'laminabench[{extra}]'",
        ) from error


def endpoint_needed() -> contextlib.AbstractContextManager[None]:
    """As `needed`, of a replay against a server."""
    return needed(_ENDPOINT)
