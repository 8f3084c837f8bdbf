"""The version, and the commit when running from a checkout."""

from __future__ import annotations

from functools import cache
from pathlib import Path

__version__ = "0.2.0"


@cache
def git_commit() -> str | None:
    """Return the checkout's commit (with "-dirty" when it has changes), or None for an installed copy."""
    root = Path(__file__).resolve().parents[2]
    if not (root / ".git").exists():
        return None
    import subprocess

    from laminabench.util.child_environment import child_environment

    try:
        described = subprocess.run(
            ["git", "-C", str(root), "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"],
            env=child_environment(),
            capture_output=True,
            text=True,
            timeout=5,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return described.stdout.strip() or None


def describe() -> str:
    """Return the text of `--version` and manifests: "0.2.0 (commit 1a2b3c4d5e6f)"."""
    commit = git_commit()
    return f"{__version__} (commit {commit})" if commit else __version__
