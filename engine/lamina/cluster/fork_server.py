"""The process that workers are forked from. It takes messages on its standard input, answers on its output,
and ends, with all its workers, when the input does.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import signal
import sys
import traceback
from collections import defaultdict
from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, NoReturn

import torch

from lamina import gpu
from lamina.cluster import messages, worker
from lamina.cluster.messages import ModelSource, Weights, WorkerConfig
from lamina.cluster.models import Models, without_unused
from lamina.errors import CodedError
from lamina.fhbn.control import LONGEST_S, Deadline
from lamina.fhbn.readiness import readable
from lamina.operators import Attended
from lamina.pipeline.arenas import free_bytes

if TYPE_CHECKING:
    from lamina.convert import Conversion

_PR_SET_PDEATHSIG = 1
LOOK_S = 1.0


class ForkServer:
    """Models by their request, and the started workers."""

    def __init__(self) -> None:
        self._models = Models()
        self._ended: dict[int, int] = {}
        self.alive: set[int] = set()

    def answer(self, message: messages.AnyMessage) -> messages.AnyMessage:
        """Return the answer to a message, or why there is none. A failing model does not affect other
        engines.
        """
        return answered(lambda: self._answer(message))

    def _answer(self, message: messages.AnyMessage) -> messages.AnyMessage:
        match message:
            case messages.Convert(model):
                return self._models.facts(model)
            case messages.Start(model, configs):
                processes: defaultdict[str, list[WorkerConfig]] = defaultdict(list)
                for config in configs:
                    processes[config.process].append(config)
                pids = {name: self._fork(members, model) for name, members in processes.items()}
                return messages.Started([pids[config.process] for config in configs])
            case messages.Measure(devices):
                return _measured(devices)
            case messages.Reap(pids, kill):
                self.reap(kill=pids if kill else ())
                return messages.Ends({pid: self._ended[pid] for pid in pids if pid in self._ended})
        raise messages.unexpected(message, "the front end")

    def _fork(self, configs: Sequence[WorkerConfig], model: ModelSource) -> int:
        conversion = self._models.conversion(model)
        ranks, experts = configs[0].partition.ranks, configs[0].layout.experts
        if ranks > 1 and any(config.kind == "model" for config in configs):
            # Here once, and not in every rank; and refused, if it cannot be, before weights are loaded.
            conversion.sharded(ranks, experts).compile()
        weights, attended = self._models.bound(model)
        parent = os.getpid()
        pid = os.fork()
        if pid == 0:
            _become(parent, configs, attended, conversion, weights)
        self.alive.add(pid)
        self._ended.pop(pid, None)  # of an earlier process with this number
        return pid

    def reap(self, kill: Collection[int] = ()) -> None:
        """Record how workers ended; those of `kill` are killed and waited for."""
        for pid in kill:
            if pid in self.alive:
                os.kill(pid, signal.SIGKILL)
        for pid in list(self.alive):
            ended, status = os.waitpid(pid, 0 if pid in kill else os.WNOHANG)
            if ended:
                self.alive.discard(pid)
                self._ended[pid] = os.waitstatus_to_exitcode(status)

    def close(self) -> None:
        self.reap(kill=tuple(self.alive))


def _measured(devices: Sequence[str]) -> messages.AnyMessage:
    """Measure free memory in another process: after a fork, a driver initialised here could not be used."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(reading)
        answer = answered(lambda: messages.Free({device: _free_on(device) for device in devices}))
        with contextlib.suppress(BaseException):
            messages.write(writing, answer, Deadline(LONGEST_S))
        os._exit(0)
    os.close(writing)
    free = messages.read(reading, "the process that asks the driver", Deadline(LONGEST_S))
    os.close(reading)
    os.waitpid(pid, 0)
    return free or messages.Refused("cuda-failed", "the process that asked the driver for its GPUs has died")


def _free_on(device: str) -> int:
    gpu.take(device)
    return free_bytes(gpu.tensors_on(device))


def answered(answer: Callable[[], messages.AnyMessage]) -> messages.AnyMessage:
    """Or why there is none."""
    try:
        return answer()
    except Exception as error:
        code = getattr(error, "code", "machine-refused")
        name = type(error).__name__
        expected = isinstance(error, ValueError | OSError | CodedError)
        return messages.Refused(code, (str(error) or name) if expected else f"{name}: {error}")


def _become(
    parent: int, configs: Sequence[WorkerConfig], attended: Attended, conversion: Conversion, weights: Weights
) -> NoReturn:
    """Run the child until its end. It never returns to the loop that its parent is in."""
    status = 1
    try:
        # Whatever ends the fork server ends its workers.
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # it has ended already
            os._exit(status)
        for descriptor in (0, 1):
            os.close(descriptor)
        os.open(os.devnull, os.O_RDWR)
        os.dup(0)
        status = worker.run(configs, attended, conversion, weights)
    except BaseException:
        traceback.print_exc()
    with contextlib.suppress(BaseException):
        sys.stderr.flush()
    os._exit(status)


def load() -> None:
    """Import what workers use, here once and not after every fork."""
    without_unused()
    from lamina.cluster import attention_worker, model_worker, prefill_worker  # noqa: F401
    from lamina.fhbn import gloo, shm  # noqa: F401

    # It stays: a worker that looked for garbage in it would get its own copy of all of it.
    gc.freeze()


def main() -> None:
    load()
    # Nor may the driver of a GPU, which torch would initialise to answer whether there is one.
    os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"
    # Threads do not survive a fork: none may be started before it. Workers have a core each anyway.
    torch.set_num_threads(1)
    serve(ForkServer())


def serve(server: ForkServer) -> None:
    """Answer what comes on standard input until that ends."""
    requests, answers = 0, os.dup(1)
    os.dup2(2, 1)  # what libraries print is no answer
    while True:
        # Workers of an engine that was forgotten end by themselves, and have to be reaped too.
        while not readable(requests, LOOK_S):
            server.reap()
        if (message := messages.read(requests, "the front end", Deadline(LONGEST_S))) is None:
            break
        messages.write(answers, server.answer(message), Deadline(LONGEST_S))
    server.close()


if __name__ == "__main__":
    main()
