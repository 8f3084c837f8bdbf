"""A command group that imports a command only when it runs, so that --help answers at once."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from typing import Any

import click


class LazyGroup(click.Group):
    """A group that lists its commands and examples from tables instead of from imports.

    `sections` maps titles to commands and their help. A command that was not added is the object
    of its name in the module in `places`, or else in the module of its name.
    """

    def __init__(
        self,
        *args: Any,
        sections: Mapping[str, Mapping[str, str]] | None = None,
        examples: Sequence[str] = (),
        places: Mapping[str, str] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        self.sections, self.examples, self.places = sections or {}, examples, places or {}

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        return [name for names in self.sections.values() for name in names] or list(self.commands)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name in self.commands or cmd_name not in self.list_commands(ctx):
            return super().get_command(ctx, cmd_name)
        # A place is a module, and a name in it if the command's name is a Python keyword.
        place, _, name = self.places.get(cmd_name, cmd_name).partition(":")
        command = getattr(importlib.import_module(f"laminabench.cli.{place}"), name or cmd_name)
        assert isinstance(command, click.Command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        names = self.list_commands(ctx)
        if args and args[0] not in names and not args[0].startswith("-"):
            from laminabench.util.suggest import nearest

            raise click.UsageError(f"no command is called '{args[0]}'; {nearest(args[0], names)}", ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        own = {name: (command.help or "").partition("\n")[0] for name, command in self.commands.items()}
        for title, commands in (self.sections or {"Commands": own}).items():
            with formatter.section(title):
                formatter.write_dl(list(commands.items()))
        with formatter.section("Examples"):
            for example in self.examples:
                formatter.write_text(example)
