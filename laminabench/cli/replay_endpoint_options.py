"""The flags of `laminabench replay --system openai`: where the server is, and how it is asked."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import click

from laminabench.cli.ranges import NumberRange
from laminabench.cli.traces.options import COUNT

SYSTEM = "openai"
# By the name that a command is called with; None where the user has said nothing.
FLAGS = {
    "url": "--url",
    "api": "--api",
    "headers": "--header",
    "api_key_file": "--api-key-file",
    "tokenizer": "--tokenizer",
    "vocab": "--vocab",
    "timeout_s": "--timeout",
    "first_byte_timeout_s": "--first-byte-timeout",
    "retries": "--retries",
    "warm_up": "--warm-up",
    "connections": "--connections",
    "client_workers": "--client-workers",
}
_SECONDS = NumberRange(0, 1e6, min_open=True)

OPTIONS = (
    click.option("--url", metavar="URL", help="openai: the server, as http://127.0.0.1:8000."),
    click.option(
        "--api", type=click.Choice(["completions", "chat"]), help="openai: which of its two; completions."
    ),
    click.option(
        "--header",
        "headers",
        metavar="'K: V'",
        multiple=True,
        help="openai, repeatable: a field of every request's head.",
    ),
    click.option(
        "--api-key-file",
        type=click.Path(dir_okay=False, path_type=Path),
        help="openai: the key; else LAMINABENCH_API_KEY or OPENAI_API_KEY.",
    ),
    click.option(
        "--tokenizer", metavar="PATH", help="openai: send text; the model's tokenizer.json or folder."
    ),
    click.option("--vocab", type=COUNT, help="openai: token ids are below this; 10000 if nobody knows."),
    click.option("--timeout", "timeout_s", type=_SECONDS, help="openai: seconds for a request in all; 600."),
    click.option(
        "--first-byte-timeout",
        "first_byte_timeout_s",
        type=_SECONDS,
        help="openai: seconds until an answer begins; 120.",
    ),
    click.option(
        "--retries", type=click.IntRange(0, 100), help="openai: more attempts, where there is sense in it; 3."
    ),
    click.option(
        "--warm-up", type=click.IntRange(0, 10_000), help="openai: requests before the clock starts; 2."
    ),
    click.option("--connections", type=COUNT, help="openai, --mode saturate: in flight at once; 256."),
    click.option("--client-workers", type=click.IntRange(1, 64), help="openai: client processes; 1."),
)


def redacted(arguments: Sequence[str]) -> list[str]:
    """A command line to be kept: of --header only the names."""
    return list(_redacted(arguments))


def _redacted(arguments: Sequence[str]) -> Iterator[str]:
    is_value = False
    for argument in arguments:
        if is_value:
            yield without_value(argument)
        elif argument.startswith("--header="):
            yield f"--header={without_value(argument.removeprefix('--header='))}"
        else:
            yield argument
        is_value = not is_value and argument == "--header"


def without_value(header: str) -> str:
    """The name of a field: the value may be a key."""
    return f"{header.partition(':')[0].strip()}: ***"
