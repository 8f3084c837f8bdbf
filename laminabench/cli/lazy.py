"""A command group that imports a command only when it runs, so that --help answers at once."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import Any

import click


@dataclass(frozen=True, slots=True)
class Lazy:
    """One line of help and where the command lives ("module:object")."""

    name: str
    where: str
    summary: str
    section: str = "Commands"
    example: str = ""


class LazyGroup(click.Group):
    """Shows its commands in sections, with an example each, from a table instead of from imports."""

    def __init__(self, *args: Any, table: tuple[Lazy, ...], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.table = {entry.name: entry for entry in table}

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        return list(self.table)

    def get_command(
        self,
        ctx: click.Context,  # noqa: ARG002
        cmd_name: str,
    ) -> click.Command | None:
        entry = self.table.get(cmd_name)
        if entry is None:
            return None
        module, _, attribute = entry.where.partition(":")
        command = getattr(importlib.import_module(module), attribute)
        assert isinstance(command, click.Command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in self.table and not args[0].startswith("-"):
            from laminabench.nearest import nearest

            raise click.UsageError(f"no command is called '{args[0]}'; {nearest(args[0], self.table)}", ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        sections: dict[str, list[Lazy]] = {}
        for entry in self.table.values():
            sections.setdefault(entry.section, []).append(entry)
        for title, entries in sections.items():
            with formatter.section(title):
                formatter.write_dl([(entry.name, entry.summary) for entry in entries])
        examples = [entry.example for entry in self.table.values() if entry.example]
        if examples:
            with formatter.section("Examples"):
                for example in examples:
                    formatter.write_text(example)
