"""Parallel map over this machine's cores or a Ray cluster's, yielding each result when it is ready."""

from __future__ import annotations

import contextlib
import logging
import multiprocessing
import os
import signal
import socket
import sys
import threading
import types
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import forkserver, resource_tracker
from typing import Any, Protocol, TypeVar

from laminabench.util import host
from laminabench.util.errors import UserError
from laminabench.util.version import __version__

Common = TypeVar("Common")
Item = TypeVar("Item")
Result = TypeVar("Result")
Submit = Callable[[Callable[[Any, Any], Any], Any], "Future[Any]"]

_REACH_S = 3.0
# A worker that makes progress has used the processor since.
LOOK_S = 1.0
SILENT_S = 60.0
_START = "start one with `ray start --head` and give its host:port"

# What a worker process has in common for all its items: sent once, not with each of them.
_common: Any = None


def cores() -> int:
    """Return the cores of this process, which a container's limit can make fewer than the machine's."""
    return len(os.sched_getaffinity(0))


class WorkerPool(Protocol):
    """A function that yields (index, result) of `work(common, item)` for all items, as they end."""

    def __call__(
        self, work: Callable[[Any, Item], Result], items: Sequence[Item]
    ) -> Generator[tuple[int, Result], None, None]: ...


@contextlib.contextmanager
def worker_pool(common: Any, *, jobs: int | None = None, ray: str | None = None) -> Iterator[WorkerPool]:
    """Start worker processes that are reused, with their caches, from one `work` to the next.

    `work` is a function of a module, and like everything it is given and gives back it can be pickled. What
    it raises is raised here. One job works in this process. `ray` is the address of a cluster whose nodes
    do the work instead, as many items at once as they have cores. However it ends, closed early or
    interrupted, no process of it is left.
    """
    if ray is None and (cores() if jobs is None else jobs) <= 1:
        yield lambda work, items: ((index, work(common, item)) for index, item in enumerate(items))
        return
    with contextlib.ExitStack() as at_the_end:
        submit: Submit | None = None

        def done(
            work: Callable[[Any, Item], Result], items: Sequence[Item]
        ) -> Generator[tuple[int, Result], None, None]:
            nonlocal submit
            if submit is None:  # processes take a while to begin, and may not be needed
                own = _processes(jobs or cores(), common) if ray is None else _on_ray(ray, common)
                submit = at_the_end.enter_context(own)
            index_of = {submit(work, item): index for index, item in enumerate(items)}
            for each in _ended(index_of):
                yield index_of[each], each.result(0)

        yield done


def _ended(pending: Iterable[Future[Any]]) -> Iterator[Future[Any]]:
    """Yield each future as it ends; a UserError if this process's workers make no progress."""
    left, silent_s, used_s = set(pending), 0.0, -1.0
    while left:
        done, left = wait(left, LOOK_S, FIRST_COMPLETED)
        yield from done
        began, workers = used_s, multiprocessing.active_children()
        used_s = sum(host.used_s(worker.pid) for worker in workers if worker.pid)
        silent_s = 0.0 if done or not workers or used_s != began else silent_s + LOOK_S
        if silent_s > SILENT_S:
            raise UserError(
                "process-worker-hangs",
                f"the worker processes have done nothing for {silent_s:.0f} s: they were stopped, or wait "
                "for a disk; have the work done in this process with --jobs 1",
            )


def spread(
    work: Callable[[Common, Item], Result],
    items: Sequence[Item],
    common: Common,
    *,
    jobs: int | None = None,
    ray: str | None = None,
) -> Generator[tuple[int, Result], None, None]:
    """Run one `work` in a pool of its own."""
    with worker_pool(common, jobs=min(jobs or cores(), len(items)), ray=ray) as done:
        yield from done(work, items)


@contextlib.contextmanager
def _processes(jobs: int, common: Any) -> Iterator[Submit]:
    """Start so many worker processes and end them with the block, at once if it is left early."""
    # Not forked from here: threads of pyarrow's would be missing in the copy, and locks might be taken.
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["laminabench.workflows.replay"])
    resource_tracker.ensure_running()  # it is the server's to start, but lets interrupts in when it has
    with _without_interrupts():  # workers inherit it: Ctrl-C is answered here
        forkserver.ensure_running()
    others = set(multiprocessing.active_children())
    pool = ProcessPoolExecutor(jobs, context, initializer=_begin, initargs=(common,))

    def submit(work: Callable[[Any, Any], Any], item: Any) -> Future[Any]:
        # It may start a worker, which a pool interrupted meanwhile would not know of.
        with _without_interrupts(), _without_main():
            return pool.submit(_work, work, item)

    try:
        yield submit
    except BrokenProcessPool as error:
        raise UserError(
            "process-worker-died",
            "a worker process died before its work was done, most likely for lack of memory: have "
            "fewer of them at once with --jobs",
        ) from error
    except BaseException:
        # Their current work is abandoned.
        for worker in set(multiprocessing.active_children()) - others:
            worker.kill()  # also one that is stopped
        raise
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


@contextlib.contextmanager
def _without_interrupts() -> Iterator[None]:
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextlib.contextmanager
def _without_main() -> Iterator[None]:
    """Keep workers that start in the block from importing the user's script, which would run it again."""
    before = sys.modules["__main__"]
    sys.modules["__main__"] = types.ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = before


def _begin(common: Any) -> None:
    """Prepare a worker process, which ends with its parent."""
    global _common  # noqa: PLW0603 - one a process, set before its first item
    threading.Thread(target=_end_with_parent, daemon=True).start()
    _common = common


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()  # waits: for the end of the parent process
    os._exit(1)


def _work(work: Callable[[Any, Item], Result], item: Item) -> Result:
    return work(_common, item)


@contextlib.contextmanager
def _on_ray(address: str, common: Any) -> Iterator[Submit]:
    """Run tasks on a running Ray cluster, one a core: joined here, and left after the last of them.

    What was not done when the block is left ends with it. The engine's workers are actors of such a cluster
    too (`lamina.cluster`), with torch, which is not for here.
    """
    ray = _joined_ray(address)
    try:
        shared = ray.put(common)
        # Over the nodes, where Ray by itself would fill one before it looks for another.
        run = ray.remote(num_cpus=1, scheduling_strategy="SPREAD")(_work_on_node)

        def submit(work: Callable[[Any, Any], Any], item: Any) -> Future[Any]:
            future: Future[Any] = run.remote(__version__, shared, work, item).future()
            return future

        yield submit
    except ray.exceptions.RayTaskError as error:
        # What the work has raised, without the traceback that Ray makes a part of what it says.
        raise error.cause from error
    except ray.exceptions.RayError as error:
        why = str(error).strip().split("\n", 1)[0]
        raise UserError(
            "ray-worker-lost", f"the Ray cluster at {address} lost work that it was given: {why}"
        ) from error
    finally:
        ray.shutdown()


def _work_on_node(version: str, common: Any, work: Callable[[Any, Any], Any], item: Any) -> Any:
    """Run a task on a node."""
    if version != __version__:
        node = socket.gethostname()
        raise UserError(
            "ray-version-differs",
            f"node {node} has laminabench {__version__}, and here it is {version}: install the same on both",
        )
    return work(common, item)


def _joined_ray(address: str) -> Any:
    """Connect to Ray; a UserError if it is not installed or does not answer."""
    try:
        import ray
    except ImportError as error:
        raise UserError(
            "ray-not-installed",
            "Ray is not installed, or not whole: pip install 'laminabench[engine]' here and on every node",
        ) from error
    _require_address(address)
    try:
        ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
    except (OSError, RuntimeError, ValueError, AssertionError) as error:
        why = str(error).strip().split("\n", 1)[0]
        raise UserError(
            "ray-cannot-join", f"cannot join the Ray cluster at '{address}': {why}; {_START}"
        ) from error
    return ray


def _require_address(address: str) -> None:
    """Check the address: Ray would start its own cluster, or try for minutes to reach a missing one."""
    if address == "auto":
        address = os.environ.get("RAY_ADDRESS", address)
    if address == "auto":  # Ray knows where it has started one
        return
    host, _, port = address.rpartition(":")
    if not host or "/" in host or not port.isdecimal() or not 1 <= int(port) <= 65535:
        raise UserError(
            "ray-bad-address",
            f"'{address}' is no address of a Ray cluster: give host:port of its head, or auto",
        )
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=_REACH_S).close()
    except OSError as error:
        why = error.strerror or "no answer in time"
        raise UserError(
            "ray-no-cluster", f"there is no Ray cluster at {address} ({why}): {_START}"
        ) from error
