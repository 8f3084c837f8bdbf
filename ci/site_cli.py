"""The reference of the command line as Markdown, made from the commands: a page for each, and one of all."""

from __future__ import annotations

import inspect
import re
from html import escape

import click

from laminabench.cli.flags import FieldOption, GroupedCommand
from laminabench.cli.lazy import LazyGroup
from laminabench.cli.main import EXAMPLES, SECTIONS, main
from laminabench.requests.replay import GROUPS, OUTPUT


def pages() -> dict[str, str]:
    """Return the Markdown of each page, by its name in the site."""
    context = click.Context(main, info_name="laminabench")
    made = {"cli/index.md": _index()}
    for name in main.list_commands(context):
        command = main.get_command(context, name)
        assert command is not None, name
        made[f"cli/{name}.md"] = _page(command, click.Context(command, context, name))
    return made


def _index() -> str:
    """Return all commands, in the sections of `laminabench --help`."""
    lines = ["# The command line", "", inspect.cleandoc(main.help or ""), ""]
    for title, commands in SECTIONS.items():
        lines += [f"## {title}", "", "| command | |", "|---|---|"]
        lines += [f"| [`laminabench {name}`]({name}.md) | {_cell(text)} |" for name, text in commands.items()]
        lines += [""]
    lines += ["## Examples", "", "```sh", *EXAMPLES, "```", ""]
    lines += [
        "How commands end, and with which exit code: [architecture](../architecture.md#how-a-command-ends).",
        "",
    ]
    return "\n".join(lines)


def _page(command: click.Command, context: click.Context) -> str:
    """Return one command of `laminabench`, with those that it has."""
    lines = [f"# laminabench {context.info_name}", ""]
    lines += _body(command, context)
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            inner = command.get_command(context, name)
            assert inner is not None, name
            lines += [f"## {name}", "", *_body(inner, click.Context(inner, context, name))]
    return "\n".join(lines) + "\n"


def _body(command: click.Command, context: click.Context) -> list[str]:
    """Return a command's usage, description, arguments and options."""
    usage = " ".join([context.command_path, *command.collect_usage_pieces(context)])
    lines = ["```text", usage, "```", "", *_help_lines(command.help or "")]
    for title, rows in _options(command, context).items():
        lines += [f"**{title}**", "", "| option | |", "|---|---|", *rows, ""]
    if isinstance(command, LazyGroup) and command.examples:
        lines += ["```sh", *command.examples, "```", ""]
    return lines


def _help_lines(help_text: str) -> list[str]:
    """Return a command's help; paragraphs that click is not to wrap are commands or tables, and stay as they
    are.
    """
    lines: list[str] = []
    for paragraph in inspect.cleandoc(help_text).partition("\f")[0].split("\n\n"):
        if paragraph.startswith("\b\n"):
            body = paragraph.removeprefix("\b\n")
            language = "sh" if body.lstrip().startswith("laminabench") else "text"
            lines += [f"```{language}", body, "```", ""]
        else:
            lines += [_plain(paragraph), ""]
    return lines


def _options(command: click.Command, context: click.Context) -> dict[str, list[str]]:
    """Return the rows of all options, under the headings of the command's help."""
    grouped: dict[str, list[str]] = {}
    for parameter in command.get_params(context):
        row = _row(parameter, context)
        option = parameter.field.option if isinstance(parameter, FieldOption) else None
        title = (option.group if option else OUTPUT) if isinstance(command, GroupedCommand) else "Options"
        if row:
            grouped.setdefault(title, []).append(row)
    order = [*GROUPS, "Options"]
    return dict(sorted(grouped.items(), key=lambda item: order.index(item[0])))


def _row(parameter: click.Parameter, context: click.Context) -> str | None:
    """Return one row of a command's table; an argument has nothing but its name, which usage shows."""
    record = parameter.get_help_record(context)
    if record is None:
        return None
    names, text = record
    return f"| `` {_cell(names, raw=True)} `` | {_cell(text)} |"


def _cell(text: str, *, raw: bool = False) -> str:
    """Return text in a cell of a table."""
    one_line = " ".join(text.split())
    return one_line if raw else _plain(one_line)


def _plain(text: str) -> str:
    """Return text in which nothing is Markdown but code between backquotes."""
    parts = text.split("`")
    parts[::2] = [
        re.sub(r"([*_\[\]])", r"\\\1", escape(part, quote=False)).replace("|", "&#124;")
        for part in parts[::2]
    ]
    return "`".join(parts)


def navigation() -> list[str | dict[str, str]]:
    """Return the pages in the order of the index."""
    names = [name for commands in SECTIONS.values() for name in commands]
    return ["cli/index.md", *({name: f"cli/{name}.md"} for name in names)]
