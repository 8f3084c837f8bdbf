"""`laminabench`: the table of commands, and how a run of it ends."""

from __future__ import annotations

import os
import sys

import click

from laminabench.cli.lazy import Lazy, LazyGroup
from laminabench.errors import CheckFailedError, UserError

# Set by the shell's completion script, which `laminabench completion` prints.
COMPLETION = "_LAMINABENCH_COMPLETE"
DONE, CHECK_FAILED, WRONG_USE, BUG, INTERRUPTED = 0, 1, 2, 70, 130

COMMANDS = (
    Lazy(
        "traces",
        "laminabench.cli.traces:traces",
        "List, fetch, inspect, fit and generate request traces.",
        section="Workloads",
        example="laminabench traces info azure-conv",
    ),
    Lazy(
        "bench",
        "laminabench.cli.bench:bench",
        "Measure laminabench itself on this machine.",
        section="Measuring",
        example="laminabench bench slab",
    ),
    Lazy(
        "completion",
        "laminabench.cli.completion:completion",
        "Print the shell completion script for bash, zsh or fish.",
        section="Shell",
        example='eval "$(laminabench completion bash)"',
    ),
)


def _print_version(ctx: click.Context, _: click.Parameter, wanted: bool) -> None:
    if wanted and not ctx.resilient_parsing:
        from laminabench import version  # noqa: PLC0415 - asks git, which costs

        click.echo(f"laminabench {version.describe()}")
        ctx.exit()


@click.group(cls=LazyGroup, table=COMMANDS, context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_print_version,
    help="Print the version and git commit.",
)
def main() -> None:
    """Would splitting attention from the model beat the LLM serving you run today, and by how much?"""


def run(arguments: list[str] | None = None) -> None:
    """The console script: every way a command can end, as an exit code and at most one sentence."""
    try:
        code = _call(arguments)
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message(), err=True)
        code = WRONG_USE
    except click.ClickException as error:
        click.echo(f"laminabench: error: {_usage_sentence(error)}", err=True)
        code = WRONG_USE
    except (KeyboardInterrupt, click.exceptions.Abort):
        click.echo("laminabench: interrupted", err=True)
        code = INTERRUPTED
    except BrokenPipeError:
        # The reader left (`| head`). Keep the interpreter from failing once more while it flushes.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = DONE
    except Exception as error:
        if os.environ.get("LAMINABENCH_DEBUG"):
            raise
        sentence, code = _sentence(error)
        click.echo(f"laminabench: {sentence}", err=True)
    sys.exit(code)


def _call(arguments: list[str] | None) -> int:
    """Run the command; its exit code."""
    try:
        code = main.main(arguments, prog_name="laminabench", standalone_mode=False)
    except SystemExit as exit_:
        if COMPLETION in os.environ:
            raise
        # Otherwise click exits by itself only where a pipe broke, and then with the code of a failed check.
        raise BrokenPipeError from exit_
    sys.stdout.flush()
    return code if isinstance(code, int) else DONE


def _usage_sentence(error: click.ClickException) -> str:
    """click's message on one line, with where to read on."""
    message = " ".join(error.format_message().split()).rstrip(".")
    context = getattr(error, "ctx", None)
    return f"{message} (see '{context.command_path} --help')" if context else message


def _sentence(error: Exception) -> tuple[str, int]:
    if isinstance(error, CheckFailedError):
        return f"check failed: {error}", CHECK_FAILED
    if isinstance(error, UserError):
        return f"error: {error}", WRONG_USE
    if isinstance(error, OSError) and error.filename:
        return f"error: {error.filename}: {error.strerror}", WRONG_USE
    return (
        f"internal error: {type(error).__name__}: {error}; this is a bug: "
        "please report it with what LAMINABENCH_DEBUG=1 shows",
        BUG,
    )


if __name__ == "__main__":
    run()
