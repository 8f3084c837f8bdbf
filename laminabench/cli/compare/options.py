"""What can be said of modelled systems that are held against each other, in any command that does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from laminabench.cli.options import option
from laminabench.systems.registry import MODULES

_OPTIONS = (
    option(
        "--deployment deployments",
        None,
        "Repeatable, as lamina=2xh100+4xh20, of several instances A,B; the papers' by default.",
        multiple=True,
        metavar="SYSTEM=DEPLOYMENT",
    ),
    option(
        "--max-num-seqs limits",
        None,
        "Repeatable: requests at once, on each board of h2m2; each system's own limit by default.",
        multiple=True,
        metavar="SYSTEM=N",
    ),
    option("--network", None, "As for replay; each paper's own by default."),
    option(
        "--host hosts",
        None,
        "Repeatable, as vllm=5ms,20us: what its host adds to an iteration, and for each request; the cost "
        "set's.",
        multiple=True,
        metavar="SYSTEM=TIME[,TIME]",
    ),
    option(
        "--host-async",
        click.Choice(["neither", "both", *MODULES]),
        "Whose host prepares an iteration while the one before it runs; both is all.",
        "neither",
    ),
)


def deployed_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command what devices, limits, hosts and network each system has."""
    for each in reversed(_OPTIONS):
        command = each(command)
    return command
