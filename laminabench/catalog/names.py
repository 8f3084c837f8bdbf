"""Pick an entry by name; a wrong name gets one sentence with the nearest right ones."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

from laminabench.errors import UserError
from laminabench.nearest import nearest

Entry = TypeVar("Entry")

# Catalogues are short: a wrong name that is near nothing gets all of them.
ALL = 10_000


def pick(kind: str, name: str, entries: Mapping[str, Entry], *, hint: str = "") -> Entry:
    """`entries[name]`, whatever the case; else a UserError that suggests what was meant."""
    key = name.strip().lower()
    if key in entries:
        return entries[key]
    meant = nearest(key, sorted(entries), ALL)
    end = "" if meant.endswith("?") or hint.startswith("(") else "."
    raise UserError("catalogue-unknown-name", f"no {kind} named {name!r}; {meant}{hint and f'{end} {hint}'}")
