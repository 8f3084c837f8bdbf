"""Formats of numbers for every back-end; `-` stands for unknown."""

from __future__ import annotations


def number(value: float | None) -> str:
    """Format a number of a summary with three digits."""
    if value is None:
        return "-"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def number4(value: float | None) -> str:
    """Format a number of a table with four digits; whole numbers stay whole."""
    if value is None:
        return "-"
    return f"{value:,.0f}" if isinstance(value, int) or abs(value) >= 1000 else f"{value:#.4g}".rstrip(".")


def share(value: float | None) -> str:
    return "-" if value is None else f"{value:.1%}"


def with_unit(value: float | None, unit: str) -> str:
    return "-" if value is None else f"{number(value)} {unit}"


def milliseconds(seconds: float | None) -> str:
    return with_unit(None if seconds is None else seconds * 1000, "ms")


def gigabytes(size_bytes: float | None) -> str:
    return with_unit(None if size_bytes is None else size_bytes / 1e9, "GB")


def plain(value: object) -> str:
    """Format any value as in a list of facts."""
    if isinstance(value, float):
        return f"{value:,.6g}"
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: "-"}[value]
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, list | tuple):
        return ", ".join(map(plain, value))
    return str(value)


def short(value: object) -> str:
    """Format any value as it is typed in queries and links."""
    return f"{value:.6g}" if isinstance(value, float) else str(value) if _is_number(value) else plain(value)


def _is_number(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
