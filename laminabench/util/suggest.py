"""Suggestions for a wrong name, as the end of a sentence."""

from __future__ import annotations

from collections.abc import Iterable


def nearest(word: str, known: Iterable[str], limit: int = 120) -> str:
    """Return `did you mean a or b?` with the closest known names in any case, or else all names."""
    import difflib

    known = list(known)
    by_lower = {name.lower(): name for name in known}
    close = difflib.get_close_matches(word.lower(), by_lower, n=3, cutoff=0.5)
    if close:
        return f"did you mean {' or '.join(by_lower[name] for name in close)}?"
    return f"there are: {listed(known, limit)}"


def listed(names: Iterable[str], limit: int = 120) -> str:
    """Return the names as a list in a sentence, cut at `limit` characters."""
    names = list(names)
    text = ", ".join(names)
    while len(text) > limit:
        names.pop()
        text = ", ".join([*names, "…"])
    return text or "none"
