"""Numbers as the summary of a replay writes them."""

from __future__ import annotations


def number(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def share(value: float | None) -> str:
    return "-" if value is None else f"{value:.1%}"


def milliseconds(seconds: float | None) -> str:
    return "-" if seconds is None else f"{number(seconds * 1000)} ms"
