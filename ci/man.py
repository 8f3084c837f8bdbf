"""Make share/man/man1/laminabench.1, the manual page, from the commands themselves.

python ci/man.py           writes it
python ci/man.py --check   fails if it is not what would be written
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import click

from laminabench.cli.main import EXAMPLES, SECTIONS, main
from laminabench.util.version import __version__

PAGE = Path(__file__).resolve().parents[1] / "share" / "man" / "man1" / "laminabench.1"
HELP = re.compile(r"Show this message and exit\.")
ENDINGS = {
    "0": "Done.",
    "1": "A check failed: a checksum, a gate, a regression.",
    "2": "Wrong use or bad input; one sentence on standard error says what, where and what to do.",
    "70": "A bug of laminabench.",
    "130": "Interrupted.",
    "143": "Terminated.",
}
ENVIRONMENT = {
    "LAMINABENCH_HOME": "The folder of downloads and imports; ~/.cache/laminabench by default.",
    "LAMINABENCH_TRACES": "A folder of trace files as their publishers name them; no download then.",
    "LAMINABENCH_DEBUG": "When set, an unexpected error shows its traceback.",
    "LAMINA_ISA": "The kernels of attention: baseline, avx2, avx512, avx512_bf16 or amx_bf16; else the best.",
    "LAMINA_PREFETCH": "How attention fetches ahead: none, l1, l2, both, short, slots; else as is best.",
}


def page() -> str:
    """Return the manual page, in roff with the man macros."""
    context = click.Context(main, info_name="laminabench")
    lines = [
        '.\\" Made by ci/man.py from the command line itself.',
        f'.TH LAMINABENCH 1 "" "laminabench {__version__}" "laminabench manual"',
        ".SH NAME",
        r"laminabench \- compare LLM serving with attention split from the model, on your traffic",
        ".SH SYNOPSIS",
        *_usage(main, context),
        ".SH DESCRIPTION",
        *_help_lines(main.help or ""),
        ".SH COMMANDS",
    ]
    for title, commands in SECTIONS.items():
        lines += [
            f".SS {_text(title)}",
            *_described((f"\\fB{_text(name)}\\fR", text) for name, text in commands.items()),
        ]
    for name in main.list_commands(context):
        command = main.get_command(context, name)
        assert command is not None, name
        lines += _command(command, click.Context(command, context, name))
    lines += [".SH EXIT STATUS", *_described(ENDINGS.items())]
    lines += [".SH ENVIRONMENT", *_described((f"\\fB{name}\\fR", text) for name, text in ENVIRONMENT.items())]
    lines += [".SH EXAMPLES", *_as_it_is(EXAMPLES)]
    return "\n".join(lines) + "\n"


def _command(command: click.Command, context: click.Context) -> Iterator[str]:
    """Yield one command of `laminabench`, with those that it has."""
    yield f'.SH "{_text(context.command_path.upper())}"'
    yield from _body(command, context)
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            inner = command.get_command(context, name)
            assert inner is not None, name
            inner_context = click.Context(inner, context, name)
            yield f".SS {_text(inner_context.command_path)}"
            yield from _body(inner, inner_context)


def _body(command: click.Command, context: click.Context) -> Iterator[str]:
    yield from _usage(command, context)
    yield from _help_lines(command.help or "")
    records = (parameter.get_help_record(context) for parameter in command.get_params(context))
    yield from _described(
        (_option(record[0]), record[1]) for record in records if record and not HELP.fullmatch(record[1])
    )


def _usage(command: click.Command, context: click.Context) -> list[str]:
    pieces = " ".join(command.collect_usage_pieces(context))
    return [f"\\fB{_text(context.command_path)}\\fR {_text(pieces)}"]


def _option(names: str) -> str:
    """`-o, --out FOLDER`, with what is typed as it stands in bold."""
    return re.sub(r"(?<![^\s,/])\\-[^\s,]+", lambda match: f"\\fB{match[0]}\\fR", names.replace("-", "\\-"))


def _described(rows: Iterable[tuple[str, str]]) -> Iterator[str]:
    """Yield the terms, already in roff, each with its description below."""
    for term, text in rows:
        yield from (f'.IP "{term}"', _text(" ".join(text.split())))


def _help_lines(help_text: str) -> Iterator[str]:
    """Yield a command's help; paragraphs that click is not to wrap are commands or tables, and stay as they
    are.
    """
    for paragraph in inspect.cleandoc(help_text).partition("\f")[0].split("\n\n"):
        if paragraph.startswith("\b\n"):
            yield from _as_it_is(paragraph.removeprefix("\b\n").splitlines())
        elif paragraph:
            yield from (".PP", _text(" ".join(paragraph.split())))


def _as_it_is(lines: Iterable[str]) -> Iterator[str]:
    yield from (".PP", ".RS 4", ".nf", *map(_text, lines), ".fi", ".RE")


def _text(text: str) -> str:
    """Return plain text as roff: nothing in it is a request, an escape or a typographer's quote."""
    escapes = {"\\": "\\e", "-": "\\-", "'": "\\(aq", "`": "\\(ga", "^": "\\(ha", "~": "\\(ti", '"': "\\(dq"}
    line = "".join(escapes.get(character, character) for character in text)
    return f"\\&{line}" if line.startswith(".") else line


if __name__ == "__main__":
    made = page()
    if sys.argv[1:] == ["--check"]:
        if not PAGE.is_file() or PAGE.read_text() != made:
            sys.exit("share/man/man1/laminabench.1 is not what the commands say: run python ci/man.py")
    else:
        PAGE.write_text(made)
