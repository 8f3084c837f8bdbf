"""The fields of a request's head that a user gives, and the key, which is never shown."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path

from laminabench.errors import UserError

KEYS = ("LAMINABENCH_API_KEY", "OPENAI_API_KEY")
_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
# What the client has to say itself.
_OURS = ("host", "content-length", "transfer-encoding", "content-type", "connection", "accept")


def fields_of(headers: Sequence[str], key_file: str | None) -> tuple[tuple[str, str], ...]:
    """Every --header, and the key as the field that servers look for it in."""
    fields = tuple(_field(header) for header in headers)
    if any(name.lower() == "authorization" for name, _ in fields):
        if key_file is not None:
            raise UserError(
                "endpoint-header", "--header Authorization and --api-key-file contradict each other"
            )
        return fields
    key = _key(key_file)
    return fields if key is None else (*fields, ("Authorization", f"Bearer {key}"))


def _field(header: str) -> tuple[str, str]:
    name, colon, value = header.partition(":")
    name, value = name.strip(), value.strip()
    if not colon or not _NAME.fullmatch(name):
        raise UserError("endpoint-header", "--header: write it as 'Name: value'")
    if not _printable(value):
        raise UserError(
            "endpoint-header", f"--header {name}: there are characters in its value that no header has"
        )
    if name.lower() in _OURS:
        raise UserError("endpoint-header", f"--header {name}: the client says that itself")
    return name, value


def _key(file: str | None) -> str | None:
    """From the file, else from the environment; a UserError never shows what it has read."""
    where, text = _found(file)
    if text is None:
        return None
    key = text.strip()
    if not key or not _printable(key) or " " in key:
        raise UserError(
            "api-key-invalid", f"{where}: there is no key in it; it is one line of printable characters"
        )
    return key


def _found(file: str | None) -> tuple[str, str | None]:
    if file is not None:
        try:
            return f"--api-key-file {file}", Path(file).read_text(encoding="utf-8")
        except OSError as error:
            raise UserError("api-key-unreadable", f"--api-key-file {file}: {error.strerror}") from error
        except UnicodeDecodeError:
            raise UserError("api-key-invalid", f"--api-key-file {file}: it is not text") from None
    return next(((name, os.environ[name]) for name in KEYS if os.environ.get(name)), ("", None))


def _printable(text: str) -> bool:
    return all(" " <= character <= "~" for character in text)
