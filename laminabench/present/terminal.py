"""Text for a terminal, by rich's markup and without importing rich, which takes longer than a replay."""

from __future__ import annotations

import re

# What rich takes for markup, after any backslashes.
_TAG = re.compile(r"(\\*)(\[[a-z#/@][^[]*?\])")


def literal(text: object) -> str:
    """Text that is not ours (names, paths, origins): rich must not take its brackets for markup."""
    escaped = _TAG.sub(r"\1\1\\\2", str(text))
    return escaped + "\\" if escaped.endswith("\\") and not escaped.endswith("\\\\") else escaped


def without_markup(text: str) -> str:
    """The text as rich prints it where there are no colours."""

    def shown(match: re.Match[str]) -> str:
        slashes, tag = match.groups()
        return "\\" * (len(slashes) // 2) + (tag if len(slashes) % 2 else "")

    return _TAG.sub(shown, text)
