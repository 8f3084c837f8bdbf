"""The process that workers are forked from. It hears msgpack on its standard input, answers on its output,
and ends, with all its workers, when the input does.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import select
import signal
import sys
import traceback
from pathlib import Path
from typing import Any, NoReturn

import msgpack
import torch
import transformers

from lamina.cluster import worker
from lamina.cluster.boot import Boot, Weights
from lamina.convert import Conversion, convert
from lamina.pipeline.arenas import arena_shape
from lamina.pipeline.facts import ModelFacts
from lamina.pipeline.options import CoreOptions
from lamina.pipeline.original import original_of

_PR_SET_PDEATHSIG = 1
LOOK_S = 1.0


class Nursery:
    """Models by what was asked for, and the workers that have begun."""

    def __init__(self) -> None:
        self._conversions: dict[str, Conversion] = {}
        self._weights: dict[str, Weights] = {}
        self._ended: dict[int, int] = {}
        self.alive: set[int] = set()

    def answer(self, message: dict[str, Any]) -> dict[str, Any]:
        """What is asked for, or why not."""
        try:
            if "convert" in message:
                return ModelFacts.of(self._conversion(message["convert"])).said()
            if "load" in message:
                self._loaded(message["load"])
                return {}
            if "start" in message:
                return {"pids": [self._fork(boot, message["model"]) for boot in message["start"]]}
            self.reap(block=message.get("kill", ()))
            return {
                "ends": {str(pid): self._ended[pid] for pid in message.get("ends", ()) if pid in self._ended}
            }
        except (ValueError, OSError) as error:
            return {"refused": str(error) or type(error).__name__}
        except Exception as error:
            # Other engines' workers come from here too: one model's trouble is not theirs.
            return {"refused": f"{type(error).__name__}: {error}"}

    def _conversion(self, model: dict[str, Any]) -> Conversion:
        key = _key(model, "source", "dtype", "rope")
        if key not in self._conversions:
            dtype = model["dtype"] and getattr(torch, model["dtype"])
            conversion = convert(_source(model["source"]), dtype=dtype, rope=model["rope"])
            arena_shape(conversion)
            self._conversions[key] = conversion
        return self._conversions[key]

    def _loaded(self, model: dict[str, Any]) -> Weights:
        key = _key(model, "source", "dtype", "rope", "load_format", "whole")
        if key not in self._weights:
            # One at a time: a front end that serves another model has no use for the last one's weights.
            self._weights.clear()
            conversion = self._conversion(model)
            options = CoreOptions(load_format=model["load_format"])
            original = original_of(_source(model["source"]), conversion, options)
            # Slices that all workers have alike are bound once, and in memory once.
            self._weights[key] = conversion.bind(original) if model["whole"] else original
        return self._weights[key]

    def _fork(self, said: dict[str, Any], model: dict[str, Any]) -> int:
        boot = Boot(**said)
        conversion, weights = self._conversion(model), self._loaded(model)
        nursery = os.getpid()
        pid = os.fork()
        if pid == 0:
            _become(nursery, boot, conversion, weights)
        self.alive.add(pid)
        self._ended.pop(pid, None)  # of somebody who had the number before
        return pid

    def reap(self, block: Any = ()) -> None:
        """Note how workers have ended; those of `block` are killed and waited for."""
        for pid in block:
            if pid in self.alive:
                os.kill(pid, signal.SIGKILL)
        for pid in list(self.alive):
            found, status = os.waitpid(pid, 0 if pid in block else os.WNOHANG)
            if found:
                self.alive.discard(pid)
                self._ended[pid] = os.waitstatus_to_exitcode(status)

    def close(self) -> None:
        """Nobody is left."""
        self.reap(block=tuple(self.alive))


def _become(nursery: int, boot: Boot, conversion: Conversion, weights: Weights) -> NoReturn:
    """The child's whole life. It never returns to the loop that its parent is in."""
    status = 1
    try:
        # Whatever ends the nursery ends its workers.
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != nursery:  # it has ended already
            os._exit(status)
        for descriptor in (0, 1):
            os.close(descriptor)
        os.open(os.devnull, os.O_RDWR)
        os.dup(0)
        status = worker.run(boot, conversion, weights)
    except BaseException:
        traceback.print_exc()
    with contextlib.suppress(BaseException):
        sys.stderr.flush()
    os._exit(status)


def _source(source: str | dict[str, Any]) -> Any:
    """A path, or a config as it was sent."""
    if isinstance(source, dict):
        return transformers.AutoConfig.for_model(**source)
    return Path(source)


def _key(model: dict[str, Any], *names: str) -> str:
    """What was asked for, and of files the state they are in: they may be others' next time."""
    files: list[Path] = []
    if isinstance(model["source"], str):
        path = Path(model["source"])
        files = sorted(path.iterdir()) if path.is_dir() else [path]
    states = [(each.name, each.stat().st_mtime_ns, each.stat().st_size) for each in files if each.is_file()]
    return json.dumps([states, *(model[name] for name in names)], sort_keys=True)


def main() -> None:
    """Answer until nobody asks."""
    # Threads do not survive a fork: none may be started before it. Workers have a core each anyway.
    torch.set_num_threads(1)
    nursery, heard = Nursery(), msgpack.Unpacker(max_buffer_size=1 << 30)
    out = os.dup(1)
    os.dup2(2, 1)  # what libraries print is no answer
    while True:
        # Those that end when nobody asks, because their engine was forgotten, are reaped all the same.
        while not select.select([0], [], [], LOOK_S if nursery.alive else None)[0]:
            nursery.reap()
        if not (piece := os.read(0, 1 << 16)):
            break
        heard.feed(piece)
        for message in heard:
            with open(out, "wb", closefd=False) as answers:
                answers.write(msgpack.packb(nursery.answer(message)))
    nursery.close()


if __name__ == "__main__":
    main()
