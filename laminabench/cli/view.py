"""`laminabench view`."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path

import click

from laminabench.cli.options import PATH, option
from laminabench.cli.output import Output, reporting
from laminabench.util.errors import UserError


@click.command()
@click.argument("folder", type=PATH, default=Path())
@option("--port", click.IntRange(0, 65535), "Port to listen on; 0: any free one.", 0)
@option(
    "--open/--no-open",
    None,
    "Open the link in a browser; default: with a terminal and a display.",
)
@reporting
def view(folder: Path, port: int, open: bool | None, out: Output) -> None:  # noqa: A002
    """Browse Runs, sweeps, plans and validations of a folder, by default the current one.

    The page is for this machine alone: the link that is printed lets one browser in, once. Ctrl-C ends it.

    \b
    laminabench view
    laminabench view runs --port 8080
    """
    serve = _server()

    def ready(url: str) -> None:
        if out.as_json:
            Output.answered = True
            click.echo(json.dumps({"url": url, "folder": str(folder.resolve())}))
        else:
            click.echo(f"{folder} at {url}")
            out.note("Ctrl-C ends it; the link lets one browser in, once")
        sys.stdout.flush()
        if _at_a_display() if open is None else open:
            click.launch(url)

    serve(folder, port, ready)


def _server() -> Callable[..., None]:
    try:
        import plotly  # noqa: F401 - or a page would say that it is missing

        from laminabench.render.view.serving import serve
    except ModuleNotFoundError as error:
        if error.name not in ("fastapi", "httptools", "plotly", "starlette"):
            raise
        raise UserError(
            "view-needs-packages",
            f"the explorer needs {error.name}, which is not installed: pip install 'laminabench[view]'",
        ) from error
    return serve


def _at_a_display() -> bool:
    """Return whether a browser can be opened on this machine."""
    display = sys.platform == "darwin" or "DISPLAY" in os.environ or "WAYLAND_DISPLAY" in os.environ
    return display and sys.stdout.isatty()
