"""vLLM's own attention kernel as a contender, in a process of its environment that computes on request."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from laminabench.baselines.environment import Environment
from laminabench.systems.live.vllm.process import VllmEndedError, VllmProcess, variables
from laminabench.util.errors import UserError

# Enough to import vLLM, or to fill a cache of gigabytes.
_TIMEOUT_S = 120.0


class VllmKernel(contextlib.AbstractContextManager["VllmKernel"]):
    """The kernel on all cores that this process may use, with one batch ready at a time."""

    def __init__(self, environment: Environment) -> None:
        self._environment = environment
        self._stack = contextlib.ExitStack()
        self._process: VllmProcess | None = None
        self._lines: Iterator[dict[str, object]] = iter(())

    def prepare(self, batch: Mapping[str, object]) -> None:
        """Prepare a batch, replacing the previous one: the fields of `attention_kernel.Batch`."""
        if self._process is None:
            self._process = self._stack.enter_context(self._start(batch))
            self._lines = self._process.lines()
        else:
            self._process.again(batch)
        self._answer("ready")

    def seconds(self) -> float:
        """Return the seconds of one call."""
        assert self._process, "prepare() a batch first"
        self._process.again()
        seconds = self._answer("seconds")
        assert isinstance(seconds, float)
        return seconds

    def _start(self, batch: Mapping[str, object]) -> VllmProcess:
        temporary = tempfile.TemporaryDirectory(prefix="laminabench-vllm-", ignore_cleanup_errors=True)
        folder = Path(self._stack.enter_context(temporary))
        command = [str(self._environment.python), "-P", "-m", "attention_kernel"]
        given = variables(self._environment, sorted(os.sched_getaffinity(0)), 1, folder)
        return VllmProcess(command, given, batch, folder / "vllm.log", _TIMEOUT_S)

    def _answer(self, name: str) -> object:
        try:
            line = next(self._lines)
        except VllmEndedError as error:
            raise _cannot(str(error)) from error
        if name not in line:
            raise _cannot(f"{line.get('kind')}: {line.get('error')}")
        return line[name]

    def __exit__(self, *_: object) -> None:
        self._stack.close()


def _cannot(why: str) -> UserError:
    return UserError("bench-vllm-failed", f"vLLM's kernel cannot take part: {why}")
