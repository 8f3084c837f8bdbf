"""Numbers that stand beside others of their kind: four digits, which is more than they are good for."""

from __future__ import annotations

from laminabench.report.markup import Markup, tag


def number(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,.0f}" if isinstance(value, int) or abs(value) >= 1000 else f"{value:#.4g}".rstrip(".")


def share(value: float | None) -> str:
    return "-" if value is None else f"{value:.1%}"


def exactly(value: float | None, written: str) -> Markup:
    """A number as it is read, with what it is exactly for whoever reads the page by program."""
    return tag("span", written) if value is None else tag("data", written, value=repr(value))
