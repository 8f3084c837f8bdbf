"""The names of processes and channels."""

from __future__ import annotations

_MOST = 200


def sound_name(name: str, of: str = "a process") -> str:
    """A name that an error can carry; ValueError if it is none."""
    if not 0 < len(name) <= _MOST or not name.isprintable():
        raise ValueError(f"{of}'s name has 1 to {_MOST} printable characters, not {name[:40]!r}")
    return name
