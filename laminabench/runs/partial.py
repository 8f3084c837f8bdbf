"""A Run that ended before its trace did: it is kept, and whoever shows its numbers says so."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypedDict


class Partial(TypedDict):
    """`partial` of a manifest, and of what a replay prints."""

    why: str  # a sentence
    at_s: float  # since the replay began


def ended_early(facts: Mapping[str, Any]) -> str | None:
    """What a Run with this manifest (or this printed result) did, to follow its name; None of a whole one."""
    found = facts.get("partial")
    if not found:
        return None
    why, at_s = (found.get("why"), found.get("at_s")) if isinstance(found, Mapping) else (None, None)
    when = f" after {at_s:,.1f} s" if isinstance(at_s, int | float) else " before its trace did"
    return f"ended{when}: {str(why or 'nobody knows why').rstrip('.')}"


def partial_sentence(facts: Mapping[str, Any]) -> str | None:
    """The same to stand by itself: what is to be read before any number."""
    ended = ended_early(facts)
    return None if ended is None else f"PARTIAL, it {ended}"
