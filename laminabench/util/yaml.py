"""YAML of plain data, written so that people can read it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence

# Texts that every reader of YAML takes for texts as they are.
_PLAIN = re.compile(r"(?!(?:true|false|null|yes|no|on|off|y|n)$)[A-Za-z/][\w./-]*", re.IGNORECASE)


def to_yaml(value: Mapping[str, object]) -> str:
    """Return a document of mappings, lists, texts, whole numbers and truth values."""
    return "".join(f"{line}\n" for line in _lines(value))


def _lines(value: object) -> Iterator[str]:
    if isinstance(value, Mapping):
        for key, each in value.items():
            nested = isinstance(each, Mapping | list | tuple) and bool(each)
            yield f"{_scalar(key)}:" if nested else f"{_scalar(key)}: {_scalar(each)}"
            if nested:
                yield from (f"  {line}" for line in _lines(each))
    elif isinstance(value, Sequence) and not isinstance(value, str):
        for each in value:
            first, *rest = _lines(each)
            yield f"- {first}"
            yield from (f"  {line}" for line in rest)
    else:
        yield _scalar(value)


def _scalar(value: object) -> str:
    return value if isinstance(value, str) and _PLAIN.fullmatch(value) else json.dumps(value)
