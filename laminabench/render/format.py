"""How numbers are written, wherever they are read. `-` is what is not known."""

from __future__ import annotations


def number(value: float | None) -> str:
    """Three digits: of a summary, where numbers are read one by one."""
    if value is None:
        return "-"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def number4(value: float | None) -> str:
    """Four digits: of tables, where numbers stand beside others of their kind. Whole ones are whole."""
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
