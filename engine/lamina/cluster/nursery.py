"""The process that workers are forked from. It hears msgpack on its standard input, answers on its output,
and ends, with all its workers, when the input does.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any, NoReturn

import msgpack
import torch
import transformers

from lamina.cluster import worker
from lamina.cluster.boot import Boot
from lamina.convert import Conversion, convert
from lamina.pipeline.arenas import arena_shape
from lamina.pipeline.facts import ModelFacts
from lamina.pipeline.options import CoreOptions
from lamina.pipeline.original import original_of

_PR_SET_PDEATHSIG = 1


class Nursery:
    """Models by what was asked for, and the workers that have begun."""

    def __init__(self) -> None:
        self._conversions: dict[str, Conversion] = {}
        self._originals: dict[str, Any] = {}
        self._ended: dict[int, int] = {}
        self._alive: set[int] = set()

    def answer(self, message: dict[str, Any]) -> dict[str, Any]:
        """What is asked for, or why not."""
        try:
            if "convert" in message:
                return ModelFacts.of(self._conversion(message["convert"])).said()
            if "load" in message:
                self._original(message["load"])
                return {}
            if "start" in message:
                return {"pids": [self._fork(boot, message["model"]) for boot in message["start"]]}
            self.reap(block=message.get("kill", ()))
            return {
                "ends": {str(pid): self._ended[pid] for pid in message.get("ends", ()) if pid in self._ended}
            }
        except (ValueError, OSError, MemoryError, RuntimeError) as error:
            return {"refused": str(error) or type(error).__name__}

    def _conversion(self, model: dict[str, Any]) -> Conversion:
        key = _key(model, "source", "dtype", "rope")
        if key not in self._conversions:
            dtype = model["dtype"] and getattr(torch, model["dtype"])
            conversion = convert(_source(model["source"]), dtype=dtype, rope=model["rope"])
            arena_shape(conversion)
            self._conversions[key] = conversion
        return self._conversions[key]

    def _original(self, model: dict[str, Any]) -> Any:
        key = _key(model, "source", "dtype", "load_format")
        if key not in self._originals:
            # One at a time: a front end that serves another model has no use for the last one's weights.
            self._originals.clear()
            conversion = self._conversion(model)
            options = CoreOptions(load_format=model["load_format"])
            self._originals[key] = original_of(_source(model["source"]), conversion, options)
        return self._originals[key]

    def _fork(self, said: dict[str, Any], model: dict[str, Any]) -> int:
        boot = Boot(**said)
        conversion, original = self._conversion(model), self._original(model)
        pid = os.fork()
        if pid == 0:
            _become(boot, conversion, original)
        self._alive.add(pid)
        return pid

    def reap(self, block: Any = ()) -> None:
        """Note how workers have ended; those of `block` are killed and waited for."""
        for pid in block:
            if pid in self._alive:
                os.kill(pid, signal.SIGKILL)
        for pid in list(self._alive):
            found, status = os.waitpid(pid, 0 if pid in block else os.WNOHANG)
            if found:
                self._alive.discard(pid)
                self._ended[pid] = os.waitstatus_to_exitcode(status)

    def close(self) -> None:
        """Nobody is left."""
        self.reap(block=tuple(self._alive))


def _become(boot: Boot, conversion: Conversion, original: Any) -> NoReturn:
    """The child's whole life. It never returns to the loop that its parent is in."""
    status = 1
    with contextlib.suppress(BaseException):
        # Whatever ends the nursery ends its workers.
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        for descriptor in (0, 1):
            os.close(descriptor)
        os.open(os.devnull, os.O_RDWR)
        os.dup(0)
        status = worker.run(boot, conversion, original)
    with contextlib.suppress(BaseException):
        sys.stderr.flush()
    os._exit(status)


def _source(source: str | dict[str, Any]) -> Any:
    """A path, or a config as it was sent."""
    if isinstance(source, dict):
        return transformers.AutoConfig.for_model(**source)
    return Path(source)


def _key(model: dict[str, Any], *names: str) -> str:
    return json.dumps([model[name] for name in names], sort_keys=True)


def main() -> None:
    """Answer until nobody asks."""
    # Threads do not survive a fork: none may be started before it. Workers have a core each anyway.
    torch.set_num_threads(1)
    nursery, heard = Nursery(), msgpack.Unpacker(max_buffer_size=1 << 30)
    out = os.dup(1)
    os.dup2(2, 1)  # what libraries print is no answer
    while piece := os.read(0, 1 << 16):
        heard.feed(piece)
        for message in heard:
            with open(out, "wb", closefd=False) as answers:
                answers.write(msgpack.packb(nursery.answer(message)))
    nursery.close()


if __name__ == "__main__":
    main()
