"""A nested dictionary as indented lines: for the `show` commands, whose --json is the same thing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console


def render_facts(console: Console, facts: dict[str, Any], indent: int = 0) -> None:
    """One line a value; nested ones below their key."""
    width = max((len(key) for key in facts), default=0) + 2
    for key, value in facts.items():
        label = f"{'  ' * indent}{key.replace('_', ' '):{width}}"
        if isinstance(value, dict):
            console.print(label.rstrip())
            render_facts(console, value, indent + 1)
        elif isinstance(value, list) and value and isinstance(value[0], dict):
            console.print(label.rstrip())
            for row in value:
                render_facts(console, row, indent + 1)
                console.print()
        else:
            console.print(f"{label}{_text(value)}", soft_wrap=True, markup=False)


def _text(value: object) -> str:
    if isinstance(value, float):
        return f"{value:,.6g}"
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: "-"}[value]
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, list):
        return ", ".join(map(_text, value))
    return str(value)
