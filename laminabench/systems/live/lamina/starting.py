"""Engines that run: started with their workers, warmed up, and ended; what they refuse is a UserError."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from laminabench.systems.live.lamina.setup import LiveSetup
from laminabench.systems.live.local import CPU, DTYPES
from laminabench.systems.router import BUILT_IN, own_router
from laminabench.traces.table import Trace
from laminabench.util.errors import UserError
from laminabench.util.progress import SILENT, Listener

if TYPE_CHECKING:
    from lamina.cluster import Workplace
    from lamina.serve import Engine, Engines


class WarmUp(NamedTuple):
    """The warm-up before the clock starts, as in vLLM: the arguments of Engine.warm_up."""

    sequences: int
    prompt_tokens: int

    @classmethod
    def of(cls, trace: Trace) -> WarmUp:
        """Return a warm-up with as many sequences as the trace has, one with its longest prompt."""
        return cls(len(trace), int(trace.prompt_tokens.max(initial=1)))


@contextlib.contextmanager
def opened(
    setup: LiveSetup,
    tokens: int,
    policy: str | Callable[..., int],
    warm_up: WarmUp | None = None,
    listener: Listener = SILENT,
) -> Iterator[Engines]:
    """Start an engine with its workers, or several behind a router, and end them with the block.

    What they refuse is a UserError.
    """
    where = f" in the Ray cluster at {setup.ray}" if setup.ray else ""
    what = "one process" if setup.alone else f"{setup.processes} workers"
    listener.note(f"starting {what}{where}; loading torch and weights takes some seconds")
    with contextlib.ExitStack() as made:
        with listener.progress("starting", ""):
            engine = made.enter_context(_opened(setup, tokens, policy, warm_up))
        yield engine


@contextlib.contextmanager
def _opened(
    setup: LiveSetup, tokens: int, policy: str | Callable[..., int], warm_up: WarmUp | None
) -> Iterator[Engines]:
    from lamina.serve import Fleet

    with refused(), contextlib.ExitStack() as made:
        if setup.alone:
            made.enter_context(on_cores(setup.workers[0]))
        machine = _machine(setup, made)
        engines = [partial(_started, one, tokens, policy, machine, warm_up) for one in setup.each]
        if not setup.several:
            yield made.enter_context(engines[0]())
            return
        router = setup.router if setup.router in BUILT_IN else own_router(setup.router, len(engines))
        yield made.enter_context(Fleet(engines, router=router, queue=setup.queue))


def _started(
    setup: LiveSetup,
    tokens: int,
    policy: str | Callable[..., int],
    machine: Workplace | None,
    warm_up: WarmUp | None,
) -> Engine:
    import torch

    from lamina.serve import Engine

    dtype = DTYPES.get(setup.model.dtype)  # what is none of activations is left to the model
    engine = Engine(
        setup.engine_model(),
        layout=None if setup.alone else setup.layout(),
        machine=machine,
        dtype=None if dtype is None else getattr(torch, dtype),
        max_sequences=setup.max_num_seqs,
        admission=setup.admission,
        policy=policy,
        kv_tokens=tokens,
        overcommit=round(setup.kv_overcommit - 1, 6),  # the engine's is the further share
        decode_only=setup.prefill == "off",
        prompt_tokens=setup.max_batched_tokens,
        load_format="safetensors" if setup.weights else "dummy",
        overlap=setup.overlap,
        absorb=setup.absorb,
        kv_dtype=setup.kv_dtype,
        threads=setup.workers[0] if setup.alone and not setup.on_gpus else 0,
        device=setup.devices()["model"][0] if setup.alone else CPU,
    )
    if warm_up:
        with contextlib.ExitStack() as made:
            made.enter_context(engine)
            engine.warm_up(*warm_up)
            made.pop_all()
    return engine


def _machine(setup: LiveSetup, made: contextlib.ExitStack) -> Workplace | None:
    """Return where workers run. Several instances on this machine share the weights."""
    if setup.ray is not None:
        from lamina.cluster.ray import RayMachine

        return made.enter_context(RayMachine(setup.ray))
    if setup.several:
        from lamina.cluster import Machine

        return made.enter_context(Machine())
    return None


@contextlib.contextmanager
def on_cores(count: int) -> Iterator[None]:
    """Limit this thread, and those it starts, to so many cores."""
    import torch

    cores, threads = os.sched_getaffinity(0), torch.get_num_threads()
    os.sched_setaffinity(0, sorted(cores)[:count])
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
        os.sched_setaffinity(0, cores)


@contextlib.contextmanager
def refused() -> Iterator[None]:
    """Turn errors of the engine into UserErrors."""
    try:
        yield
    except Exception as error:
        # Errors of channels come from its native module.
        if type(error).__module__.partition(".")[0] == "lamina" and hasattr(error, "code"):
            raise UserError(error.code, f"the engine: {error}") from error
        raise
