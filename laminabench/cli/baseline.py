"""`laminabench baseline setup|list|show`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from laminabench.cli.output import Output, reporting

if TYPE_CHECKING:
    from rich.console import Console

NAMES = ("vllm",)
_NAME = click.Choice(NAMES)


@click.group()
def baseline() -> None:
    """Real systems to compare with, each in an environment of its own."""


@baseline.command()
@click.argument("name", type=_NAME)
@click.option("--cpu", "kind", flag_value="cpu", help="For this machine's cores.")
@click.option("--cuda", "kind", flag_value="cuda", help="For its GPUs; the default where nvidia-smi is.")
@click.option(
    "--into", type=click.Path(file_okay=False, path_type=Path), help="A folder; else with the user's data."
)
@click.option(
    "--python", metavar="PATH", help="The interpreter of the environment; else a 3.11 if there is one."
)
@reporting
def setup(name: str, kind: str | None, into: Path | None, python: str | None, out: Output) -> None:
    """Install a system, with pinned versions that are checked. Run again, it does nothing."""
    from laminabench.baselines.environment import default_folder, default_kind
    from laminabench.baselines.install import set_up

    chosen = "cuda" if kind == "cuda" else "cpu" if kind == "cpu" else default_kind()
    folder = (into or default_folder(chosen)).absolute()
    if chosen == "cuda":
        out.note("vLLM for CUDA is not verified on hardware: it was installed and run nowhere yet")
    with out.steps("packages") as progress:
        environment, was_there = set_up(folder, chosen, python, progress)
    facts = {"name": name, "was_there": was_there, **environment.describe()}
    out.result(facts, lambda console: _render_ready(console, facts, into))


@baseline.command("list")
@reporting
def list_baselines(out: Output) -> None:
    """What is there, and where."""
    rows = [_state(kind) for kind in ("cpu", "cuda")]
    out.result({"baselines": rows}, lambda console: _render(console, rows))


@baseline.command()
@click.argument("name", type=_NAME)
@reporting
def show(name: str, out: Output) -> None:
    """All that is known of a system's environments: versions, where, and what is not as pinned."""
    from laminabench.cli.facts import render_facts

    facts = {"name": name, "environments": [_state(kind) for kind in ("cpu", "cuda")]}
    out.result(facts, lambda console: render_facts(console, facts))


def _state(kind: Any) -> dict[str, Any]:
    """What `replay` would find."""
    from laminabench.baselines.environment import default_folder, find
    from laminabench.errors import UserError

    try:
        return {"name": "vllm", "ready": True, **find(kind).describe(), "why_not": None}
    except UserError as error:
        folder = str(default_folder(kind))
        return {"name": "vllm", "ready": False, "kind": kind, "folder": folder, "why_not": str(error)}


def _render_ready(console: Console, facts: dict[str, Any], into: Path | None) -> None:
    versions = ", ".join(f"{name} {version}" for name, version in facts["versions"].items())
    state = "was ready" if facts["was_there"] else "is ready"
    console.print(f"vllm ({facts['kind']}) {state}: {versions}", soft_wrap=True, markup=False)
    console.print(f"python: {facts['python']}", soft_wrap=True, markup=False)
    if into is not None:
        console.print(
            f"replay finds it with LAMINABENCH_VLLM={facts['python']}", soft_wrap=True, markup=False
        )


def _render(console: Console, rows: list[dict[str, Any]]) -> None:
    for row in rows:
        said = (
            ", ".join(f"{name} {version}" for name, version in row["versions"].items()) + f": {row['python']}"
            if row["ready"]
            else row["why_not"]
        )
        console.print(f"{row['name']} ({row['kind']}): {said}", soft_wrap=True, markup=False)
