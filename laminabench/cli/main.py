"""`laminabench`: the table of commands, and how a run of it ends."""

from __future__ import annotations

import os
import sys

import click

from laminabench.cli import ending
from laminabench.cli.lazy import Lazy, LazyGroup

# Set by the shell's completion script, which `laminabench completion` prints.
COMPLETION = "_LAMINABENCH_COMPLETE"

COMMANDS = (
    Lazy(
        "replay",
        "laminabench.cli.replay:replay",
        "Replay a trace against a system: throughput, TBT, cost.",
        section="Replaying",
        example="laminabench replay --trace azure-conv --system lamina",
    ),
    Lazy(
        "sweep",
        "laminabench.cli.sweep:sweep",
        "Replay over a grid of any flags' values; one table of all.",
        section="Replaying",
        example="laminabench sweep --trace azure-code --vary attention-workers=2..8 --vary batches=1,2",
    ),
    Lazy(
        "compare",
        "laminabench.cli.compare:compare",
        "Runs side by side; systems at equal cost; gates.",
        section="Replaying",
        example="laminabench compare --equal-cost --model llama3-70b",
    ),
    Lazy(
        "plan",
        "laminabench.cli.plan:plan",
        "The deployment that serves a trace cheapest within a limit.",
        section="Replaying",
        example="laminabench plan --trace azure-conv --slo-tbt-p99-ms 100",
    ),
    Lazy(
        "figures",
        "laminabench.cli.figures:figures",
        "The papers' figures and tables, theirs beside ours.",
        section="Replaying",
        example="laminabench figures fig10",
    ),
    Lazy(
        "report",
        "laminabench.cli.report:report",
        "Runs side by side as one HTML page.",
        section="Replaying",
        example="laminabench report runs/lamina runs/vllm -o report.html",
    ),
    Lazy(
        "traces",
        "laminabench.cli.traces:traces",
        "List, fetch, inspect, fit and generate request traces.",
        section="Workloads",
        example="laminabench traces info azure-conv",
    ),
    Lazy(
        "hardware",
        "laminabench.cli.hardware:hardware",
        "Devices, their data sheets and prices.",
        section="The modelled cluster",
        example="laminabench hardware list --price h100=2.5",
    ),
    Lazy(
        "models",
        "laminabench.cli.models:models",
        "Models, or any config.json: bytes, shapes, ways to split.",
        section="The modelled cluster",
        example="laminabench models show llama3-70b",
    ),
    Lazy(
        "costs",
        "laminabench.cli.costs:costs",
        "Cost coefficients with source and error.",
        section="The modelled cluster",
        example="laminabench costs show vllm-0.14 --device h20",
    ),
    Lazy(
        "convert",
        "laminabench.cli.convert:convert",
        "Cut a model at its attention operators; draw the slices.",
        section="The engine",
        example="laminabench convert llama3-70b",
    ),
    Lazy(
        "serve",
        "laminabench.cli.serve:serve",
        "Serve a model over OpenAI's HTTP API.",
        section="The engine",
        example="laminabench serve --model llama-mini --port 8000",
    ),
    Lazy(
        "fhbn",
        "laminabench.cli.fhbn:fhbn",
        "RDMA devices, and which network engines can run here.",
        section="The engine",
        example="laminabench fhbn devices",
    ),
    Lazy(
        "baseline",
        "laminabench.cli.baseline:baseline",
        "Install real systems to compare with: vLLM.",
        section="Measuring",
        example="laminabench baseline setup vllm",
    ),
    Lazy(
        "check",
        "laminabench.cli.check:check",
        "Hold replays against goldens: a gate for CI.",
        section="Measuring",
        example="laminabench check --junit check.xml",
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
    ending.open_streams()
    with ending.terminable():
        said, code = _outcome(arguments)
    if said:
        ending.say(said)
    ending.close_streams()
    sys.exit(code)


def _outcome(arguments: list[str] | None) -> tuple[str, int]:
    """Run the command; what is to be said of its end, and the exit code."""
    try:
        return "", _call(arguments)
    except click.exceptions.NoArgsIsHelpError as error:
        return error.format_message(), ending.WRONG_USE
    except click.ClickException as error:
        return f"laminabench: error: {_usage_sentence(error)}", ending.WRONG_USE
    except (KeyboardInterrupt, click.exceptions.Abort):
        return "laminabench: interrupted", ending.INTERRUPTED
    except ending.Interrupted as error:
        return f"laminabench: interrupted; {error}", ending.INTERRUPTED
    except ending.Terminated as error:
        return "; ".join(["laminabench: terminated", *map(str, error.args)]), ending.TERMINATED
    except BrokenPipeError:
        # The reader left (`| head`): it has what it wanted.
        return "", ending.DONE
    except Exception as error:
        if os.environ.get("LAMINABENCH_DEBUG"):
            raise
        sentence, code = ending.sentence_of(error)
        return f"laminabench: {sentence}", code


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
    return code if isinstance(code, int) else ending.DONE


def _usage_sentence(error: click.ClickException) -> str:
    """click's message on one line, with where to read on."""
    message = " ".join(error.format_message().split()).rstrip(".")
    context = getattr(error, "ctx", None)
    return f"{message} (see '{context.command_path} --help')" if context else message


if __name__ == "__main__":
    run()
