"""`laminabench completion`: the completion script of a shell."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print the completion script; the shell's start-up file evaluates it.

    \b
    bash:  eval "$(laminabench completion bash)"   in ~/.bashrc
    zsh:   eval "$(laminabench completion zsh)"    in ~/.zshrc
    fish:  laminabench completion fish | source    in config.fish
    """
    from laminabench.cli.main import COMPLETION, main

    source = get_completion_class(shell)
    assert source is not None
    click.echo(source(main, {}, "laminabench", COMPLETION).source())
