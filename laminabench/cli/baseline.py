"""`laminabench baseline setup|list|show`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from laminabench.cli.options import FOLDER, option
from laminabench.cli.output import Output, reporting
from laminabench.render.terminal import print_facts

if TYPE_CHECKING:
    from rich.console import Console

    from laminabench.baselines.environment import Kind

_NAME = click.Choice(["vllm"])


@click.group()
def baseline() -> None:
    """Real systems to compare with, each in its own environment."""


@baseline.command()
@click.argument("name", type=_NAME)
@click.option("--cpu", "kind", flag_value="cpu", help="The environment for this machine's cores.")
@click.option(
    "--cuda", "kind", flag_value="cuda", help="The environment for its GPUs; default with nvidia-smi."
)
@option("--into", FOLDER, "Folder; default: with the user's data.")
@option("--python", None, "Interpreter of the environment; default: a 3.11 if there is one.", metavar="PATH")
@reporting
def setup(name: str, kind: Kind | None, into: Path | None, python: str | None, out: Output) -> None:
    """Install a system, with pinned versions that are checked. A second run does nothing."""
    from laminabench.baselines.environment import default_folder, default_kind, set_up

    chosen = kind or default_kind()
    folder = (into or default_folder(chosen)).absolute()
    if chosen == "cuda":
        out.note("vLLM for CUDA is not verified on hardware: it was installed and run nowhere yet")
    with out.steps("packages") as progress:
        environment, was_there = set_up(folder, chosen, python, progress)
    facts = environment.describe()
    lines = [
        f"vllm ({chosen}) {'was' if was_there else 'is'} ready: {_versions(facts)}",
        f"python: {environment.python}",
    ]
    if into is not None:
        lines.append(f"replay finds it with LAMINABENCH_VLLM={environment.python}")
    out.result({"name": name, "was_there": was_there, **facts}, lambda console: _print(console, lines))


@baseline.command("list")
@reporting
def list_baselines(out: Output) -> None:
    """List the installed systems and their folders."""
    states = [_state(kind) for kind in ("cpu", "cuda")]
    lines = [line for _, line in states]
    out.result({"baselines": [facts for facts, _ in states]}, lambda console: _print(console, lines))


@baseline.command()
@click.argument("name", type=_NAME)
@reporting
def show(name: str, out: Output) -> None:
    """Show a system's environments: versions, folders, and differences from the pins."""
    facts = {"name": name, "environments": [_state(kind)[0] for kind in ("cpu", "cuda")]}
    out.result(facts, lambda console: print_facts(console, facts))


def _state(kind: Kind) -> tuple[dict[str, object], str]:
    """Return the environment that `replay` would use: facts for JSON, and a line for people."""
    from laminabench.baselines.environment import default_folder, find
    from laminabench.util.errors import UserError

    try:
        facts = find(kind).describe()
    except UserError as error:
        folder = str(default_folder(kind))
        state = {"name": "vllm", "ready": False, "kind": kind, "folder": folder, "why_not": str(error)}
        return state, f"vllm ({kind}): {error}"
    line = f"vllm ({kind}): {_versions(facts)}: {facts['python']}"
    return {"name": "vllm", "ready": True, **facts, "why_not": None}, line


def _versions(facts: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {version}" for name, version in facts["versions"].items())


def _print(console: Console, lines: list[str]) -> None:
    for line in lines:
        console.print(line, soft_wrap=True, markup=False)
