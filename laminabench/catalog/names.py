"""Pick an entry by name; a wrong name gets one sentence with the nearest right ones."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import TypeVar

from laminabench.errors import UserError

Entry = TypeVar("Entry")


def pick(kind: str, name: str, entries: Mapping[str, Entry], *, hint: str = "") -> Entry:
    """`entries[name]`, whatever the case; else a UserError that suggests what was meant."""
    key = name.strip().lower()
    if key in entries:
        return entries[key]
    near = difflib.get_close_matches(key, entries, n=3, cutoff=0.5)
    meant = f"did you mean {' or '.join(near)}?" if near else f"there are: {', '.join(sorted(entries))}"
    raise UserError(f"no {kind} named {name!r}; {meant}{hint and f' {hint}'}")
