"""The process that workers are forked from. It hears msgpack on its standard input, answers on its output,
and ends, with all its workers, when the input does.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import select
import signal
import sys
import traceback
from typing import TYPE_CHECKING, Any, NoReturn

import msgpack
import torch

from lamina.cluster import worker
from lamina.cluster.config import Weights, WorkerConfig
from lamina.cluster.models import Models, without_scipy
from lamina.pipeline.facts import ModelFacts

if TYPE_CHECKING:
    from lamina.convert import Conversion

_PR_SET_PDEATHSIG = 1
LOOK_S = 1.0


class ForkServer:
    """Models by what was asked for, and the workers that have begun."""

    def __init__(self) -> None:
        self._models = Models()
        self._ended: dict[int, int] = {}
        self.alive: set[int] = set()

    def answer(self, message: dict[str, Any]) -> dict[str, Any]:
        """What is asked for, or why not."""
        try:
            if "convert" in message:
                return ModelFacts.of(self._models.conversion(message["convert"])).said()
            if "load" in message:
                self._models.weights(message["load"])
                return {}
            if "start" in message:
                return {"pids": [self._fork(config, message["model"]) for config in message["start"]]}
            self.reap(block=message.get("kill", ()))
            return {
                "ends": {str(pid): self._ended[pid] for pid in message.get("ends", ()) if pid in self._ended}
            }
        except (ValueError, OSError) as error:
            code = getattr(error, "code", "machine-refused")
            return {"refused": str(error) or type(error).__name__, "code": code}
        except Exception as error:
            # Other engines' workers come from here too: one model's trouble is not theirs.
            return {"refused": f"{type(error).__name__}: {error}"}

    def _fork(self, said: dict[str, Any], model: dict[str, Any]) -> int:
        config = WorkerConfig(**said)
        conversion, weights = self._models.conversion(model), self._models.weights(model)
        if config.kind == "model" and config.deal.ranks > 1:
            conversion.sharded(config.deal.ranks).compile()  # here once, and not in every rank
        fork_server = os.getpid()
        pid = os.fork()
        if pid == 0:
            _become(fork_server, config, conversion, weights)
        self.alive.add(pid)
        self._ended.pop(pid, None)  # of somebody who had the number before
        return pid

    def reap(self, block: Any = ()) -> None:
        """Note how workers have ended; those of `block` are killed and waited for."""
        for pid in block:
            if pid in self.alive:
                os.kill(pid, signal.SIGKILL)
        for pid in list(self.alive):
            result, status = os.waitpid(pid, 0 if pid in block else os.WNOHANG)
            if result:
                self.alive.discard(pid)
                self._ended[pid] = os.waitstatus_to_exitcode(status)

    def close(self) -> None:
        """Nobody is left."""
        self.reap(block=tuple(self.alive))


def _become(fork_server: int, config: WorkerConfig, conversion: Conversion, weights: Weights) -> NoReturn:
    """The child's whole life. It never returns to the loop that its parent is in."""
    status = 1
    try:
        # Whatever ends the nursery ends its workers.
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != fork_server:  # it has ended already
            os._exit(status)
        for descriptor in (0, 1):
            os.close(descriptor)
        os.open(os.devnull, os.O_RDWR)
        os.dup(0)
        status = worker.run(config, conversion, weights)
    except BaseException:
        traceback.print_exc()
    with contextlib.suppress(BaseException):
        sys.stderr.flush()
    os._exit(status)


def load() -> None:
    """What workers do, here once and not after every fork."""
    without_scipy()
    from lamina.cluster import attention_worker, model_worker, prefill_worker  # noqa: F401
    from lamina.fhbn import gloo, shm  # noqa: F401

    # It stays: a worker that looked for garbage in it would get its own copy of all of it.
    gc.freeze()


def main() -> None:
    """Answer until nobody asks."""
    load()
    # Threads do not survive a fork: none may be started before it. Workers have a core each anyway.
    torch.set_num_threads(1)
    fork_server, heard = ForkServer(), msgpack.Unpacker(max_buffer_size=1 << 30)
    out = os.dup(1)
    os.dup2(2, 1)  # what libraries print is no answer
    while True:
        # Those that end when nobody asks, because their engine was forgotten, are reaped all the same.
        while not select.select([0], [], [], LOOK_S if fork_server.alive else None)[0]:
            fork_server.reap()
        if not (piece := os.read(0, 1 << 16)):
            break
        heard.feed(piece)
        for message in heard:
            with open(out, "wb", closefd=False) as answers:
                answers.write(msgpack.packb(fork_server.answer(message)))
    fork_server.close()


if __name__ == "__main__":
    main()
