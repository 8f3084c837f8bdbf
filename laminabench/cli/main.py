"""`laminabench`: the table of commands, and the end of each run."""

from __future__ import annotations

import os
import sys
from dataclasses import replace

import click

from laminabench.cli import ending
from laminabench.cli.lazy import LazyGroup
from laminabench.cli.output import Output
from laminabench.util.errors import Interrupted, Terminated
from laminabench.util.redact import hidden

# Set by the shell's completion script, which `laminabench completion` prints.
COMPLETION = "_LAMINABENCH_COMPLETE"

SECTIONS = {
    "Replaying": {
        "replay": "Replay a trace against a system: throughput, TBT, cost.",
        "sweep": "Replay over a grid of any flags' values; one table of all.",
        "compare": "Does it pay: systems on your trace; Runs side by side; gates.",
        "sensitivity": "How a comparison depends on each input, and where it flips.",
        "plan": "The deployment that serves a trace cheapest within a limit.",
        "figures": "The papers' figures and tables: published and ours.",
        "report": "Runs side by side as one HTML page.",
        "view": "Browse a folder of Runs in a web browser.",
    },
    "Workloads": {"traces": "List, fetch, inspect, fit and generate request traces."},
    "The modelled cluster": {
        "hardware": "Devices, their data sheets and prices.",
        "models": "Models, or any config.json: bytes, shapes, ways to split.",
        "costs": "Cost coefficients with source and error.",
    },
    "The engine": {
        "convert": "Cut a model at its attention operators; draw the slices.",
        "serve": "Serve a model over OpenAI's HTTP API.",
        "fhbn": "RDMA devices, and which network engines can run here.",
    },
    "Measuring": {
        "baseline": "Install real systems to compare with: vLLM.",
        "record": "Send a trace to a server, and record when it answered.",
        "import": "Import results of aiperf, vllm bench serve or guidellm as Runs.",
        "export": "Export a Run as a result file of such a tool.",
        "validate": "Compare the model's predictions with measurements.",
        "calibrate": "Measure this machine; a cost set of it for modelled replays.",
        "check": "Compare replays with goldens: a gate for CI.",
        "bench": "Measure laminabench itself on this machine.",
    },
    "Shell": {"completion": "Print the shell completion script for bash, zsh or fish."},
}
EXAMPLES = (
    "laminabench replay --trace azure-conv --system lamina",
    "laminabench sweep --trace azure-code --vary attention-workers=2..8 --vary batches=1,2",
    "laminabench compare --trace azure-conv --model llama3-70b",
    "laminabench sensitivity --trace azure-conv --model llama3-70b",
    "laminabench plan --trace azure-conv --slo-tbt-p99-ms 100",
    "laminabench figures fig10",
    "laminabench report runs/lamina runs/vllm -o report.html",
    "laminabench view runs",
    "laminabench traces info azure-conv",
    "laminabench hardware list --price h100=2.5",
    "laminabench models show llama3-70b",
    "laminabench costs show vllm-0.14 --device h20",
    "laminabench convert llama3-70b",
    "laminabench serve --model llama-mini --port 8000",
    "laminabench fhbn devices",
    "laminabench baseline setup vllm",
    "laminabench record --url http://127.0.0.1:8000 --model llama3.1-8b --trace sharegpt -o mine.toml",
    "laminabench import benchmarks.json --deployment 4xh100",
    "laminabench export runs/mine --to vllm-bench -o mine.json",
    "laminabench validate",
    "laminabench calibrate -o set.toml",
    "laminabench check --junit check.xml",
    "laminabench bench slab",
    'eval "$(laminabench completion bash)"',
)
# The questions that README answers, for a call without a command.
QUESTIONS = {
    "Does it pay for me?": "laminabench compare --trace mine.csv --model llama3-70b",
    "What should I buy?": "laminabench plan --trace mine.csv --model llama3-70b --slo-tbt-p99-ms 100",
    "How good is my server?": "laminabench replay --system openai --url http://127.0.0.1:8000 --model NAME "
    "--trace azure-conv --mode open",
    "Did my change make it slower?": "laminabench compare runs/base-* runs/new-* --fail-on 'throughput<0.95'",
}
GUIDE_END = (
    "mine.csv has the columns arrival_s,prompt_tokens,output_tokens; without one, --trace azure-conv.\n"
    "`laminabench --help` lists all commands."
)
_PLACES = dict.fromkeys(("hardware", "models", "costs"), "catalogue") | {
    "import": "interchange:import_",
    "export": "interchange",
}


def _print_version(ctx: click.Context, _: click.Parameter, given: bool) -> None:
    if given and not ctx.resilient_parsing:
        from laminabench.util import version

        click.echo(f"laminabench {version.describe()}")
        ctx.exit()


@click.group(
    cls=LazyGroup,
    invoke_without_command=True,
    sections=SECTIONS,
    examples=EXAMPLES,
    places=_PLACES,
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_print_version,
    help="Print the version and git commit.",
)
@click.pass_context
def main(ctx: click.Context) -> None:
    """Would splitting attention from the model beat the LLM serving you run today, and by how much?"""
    if ctx.invoked_subcommand is None:
        questions = "\n".join(f"{question}\n  {command}" for question, command in QUESTIONS.items())
        click.echo(f"{main.help}\n\n{questions}\n\n{GUIDE_END}")


def run(
    arguments: list[str] | None = None, *, show_codes: bool = False, command: click.Command = main
) -> None:
    """Run the console script: every ending becomes an exit code and at most one sentence.

    With -v an error's code follows its sentence; with --json stdout has it as `{"error": {...}}`.
    """
    if arguments is None:
        # Keep child processes from importing modules of the working directory, which may be untrusted.
        os.environ["PYTHONSAFEPATH"] = "1"
    words = sys.argv[1:] if arguments is None else arguments
    ending.open_streams()
    Output.answered = False
    with ending.terminable():
        end = _outcome(arguments, command)
    if end.sentence:
        end = replace(end, sentence=hidden(end.sentence, words))
        with_code = bool(end.error_code) and (show_codes or not {"-v", "--verbose"}.isdisjoint(words))
        ending.print_error(f"{end.sentence} [{end.error_code}]" if with_code else end.sentence)
    if end.error_code and "--json" in words and not Output.answered:
        ending.print_json_error(end)
    ending.close_streams()
    sys.exit(end.exit_code)


def _outcome(arguments: list[str] | None, command: click.Command) -> ending.End:
    """Run the command, and return how it ended."""
    try:
        return ending.End(_call(arguments, command))
    except click.exceptions.NoArgsIsHelpError as error:
        return ending.End(ending.WRONG_USE, error.format_message())
    except click.ClickException as error:
        return ending.End(ending.WRONG_USE, f"laminabench: error: {_usage_sentence(error)}", "usage")
    except (KeyboardInterrupt, click.exceptions.Abort):
        return ending.End(ending.INTERRUPTED, "laminabench: interrupted", "interrupted")
    except Interrupted as error:
        return ending.End(ending.INTERRUPTED, f"laminabench: interrupted; {error}", "interrupted")
    except Terminated as error:
        sentence = "; ".join(["laminabench: terminated", *map(str, error.args)])
        return ending.End(ending.TERMINATED, sentence, "terminated")
    except BrokenPipeError:
        # The reader (`| head`) has closed the pipe.
        return ending.End(ending.DONE)
    except Exception as error:
        if os.environ.get("LAMINABENCH_DEBUG"):
            raise
        return ending.end_of(error)


def _call(arguments: list[str] | None, command: click.Command) -> int:
    """Run the command, and return its exit code."""
    try:
        code = command.main(arguments, prog_name="laminabench", standalone_mode=False)
    except SystemExit as exit_:
        if COMPLETION in os.environ:
            raise
        # Otherwise click exits itself only for a broken pipe, with the code of a failed check.
        raise BrokenPipeError from exit_
    sys.stdout.flush()
    return code if isinstance(code, int) else ending.DONE


def _usage_sentence(error: click.ClickException) -> str:
    """Return click's message on one line, with the help to read."""
    message = " ".join(error.format_message().split()).rstrip(".")
    context = getattr(error, "ctx", None)
    return f"{message} (see '{context.command_path} --help')" if context else message


if __name__ == "__main__":
    run()
