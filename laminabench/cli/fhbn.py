"""`laminabench fhbn ...`: the channels between workers, and what this machine has for them."""

from __future__ import annotations

import click

from laminabench.cli.lazy import Lazy, LazyGroup

COMMANDS = (
    Lazy(
        "devices",
        "laminabench.cli.fhbn_devices:devices",
        "RDMA devices, what is missing, and which engines can run here.",
        example="laminabench fhbn devices --json",
    ),
)


@click.group(cls=LazyGroup, table=COMMANDS)
def fhbn() -> None:
    """Look at what channels between workers can use on this machine."""
