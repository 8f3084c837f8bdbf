"""The files of share/ that make TAB work, in real shells that find them where a wheel puts them."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import pexpect
import pytest

SHARE = Path(__file__).resolve().parents[2] / "share"
BASH_COMPLETION = Path("/usr/share/bash-completion/bash_completion")
START = {
    "bash": ("bash --norc --noprofile -i", f". {BASH_COMPLETION}"),
    "zsh": ("zsh -f -i", f"fpath=({SHARE}/zsh/site-functions $fpath); autoload -U compinit; compinit -u -D"),
    "fish": ("fish --interactive", "set fish_greeting"),
}


@pytest.mark.outside
@pytest.mark.parametrize("shell", START)
def test_tab_completes_a_command_and_its_argument(shell: str, tmp_path: Path) -> None:
    if shutil.which(shell) is None or (shell == "bash" and not BASH_COMPLETION.is_file()):
        pytest.skip(f"there is no {shell} here, or nothing that loads completions for it")
    program, first = START[shell]
    environment = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "HOME": str(tmp_path),
        "XDG_CONFIG_HOME": str(tmp_path),
        "XDG_DATA_DIRS": f"{SHARE}:/usr/share",
        "TERM": "dumb",
    }
    typing = pexpect.spawn(program, env=environment, timeout=30, encoding="utf-8", dimensions=(24, 200))
    try:
        # Its result is no part of what is typed: then the shell is at its next prompt.
        typing.sendline(f"{first}; echo rea''dy")
        typing.expect("ready")
        typing.send("laminabench sensi\t")
        typing.expect("tivity")
        typing.send("\x15laminabench completion fi\t")
        typing.expect("fi.*sh ")
    finally:
        typing.close(force=True)
