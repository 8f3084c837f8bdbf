"""The same work on many things, on this machine's cores or a Ray cluster's: each result as it is there."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import forkserver, resource_tracker
from typing import Any, TypeVar

from laminabench.errors import UserError

Common = TypeVar("Common")
Item = TypeVar("Item")
Result = TypeVar("Result")
Submit = Callable[[Callable[[Any, Any], Any], Any], "Future[Any]"]

# What a worker process has in common for all its items: sent once, not with each of them.
_common: Any = None


def cores() -> int:
    """Those that this process may run on, which a container's limit can make fewer than the machine's."""
    return len(os.sched_getaffinity(0))


def spread(
    work: Callable[[Common, Item], Result],
    items: Sequence[Item],
    common: Common,
    *,
    jobs: int | None = None,
    ray: str | None = None,
) -> Generator[tuple[int, Result], None, None]:
    """`work(common, item)` of every item, in processes; (index of the item, result) in the order they end.

    `work` is a function of a module, and like everything it is given and gives back it can be pickled. What
    it raises is raised here. One job works in this process. `ray` is the address of a cluster whose nodes
    do the work instead, as many items at once as they have cores. However it ends, closed early or
    interrupted, no process of it is left.
    """
    jobs = min(jobs or cores(), len(items))
    if ray is None and jobs <= 1:
        yield from ((index, work(common, item)) for index, item in enumerate(items))
        return
    with _on_ray(ray, common) if ray is not None else _processes(jobs, common) as submit:
        index_of = {submit(work, item): index for index, item in enumerate(items)}
        for done in as_completed(index_of):
            yield index_of[done], done.result()


def _on_ray(address: str, common: Any) -> contextlib.AbstractContextManager[Submit]:
    from laminabench.ray_tasks import tasks

    return tasks(address, common)


@contextlib.contextmanager
def _processes(jobs: int, common: Any) -> Iterator[Submit]:
    """So many worker processes, ended with the block: at once where it is left before they are done."""
    # Not forked from here: threads of pyarrow's would be missing in the copy, and their locks might be held.
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["laminabench.replay"])
    resource_tracker.ensure_running()  # it is the server's to start, but lets interrupts in when it has
    with _without_interrupts():  # workers inherit it: Ctrl-C is answered here
        forkserver.ensure_running()
    others = set(multiprocessing.active_children())
    pool = ProcessPoolExecutor(jobs, context, initializer=_begin, initargs=(common,))

    def submit(work: Callable[[Any, Any], Any], item: Any) -> Future[Any]:
        # It may start a worker, which a pool interrupted meanwhile would not know of.
        with _without_interrupts():
            return pool.submit(_work, work, item)

    try:
        yield submit
    except BrokenProcessPool as error:
        raise UserError(
            "process-worker-died",
            "a worker process died before its work was done, most likely killed for want of memory: have "
            "fewer of them at once with --jobs",
        ) from error
    except BaseException:
        # What they are at, nobody waits for.
        for worker in set(multiprocessing.active_children()) - others:
            worker.terminate()
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


def _begin(common: Any) -> None:
    """Without the parent there is nothing to do."""
    global _common  # noqa: PLW0603 - one a process, set before its first item
    threading.Thread(target=_end_with_parent, daemon=True).start()
    _common = common


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def _work(work: Callable[[Any, Item], Result], item: Item) -> Result:
    return work(_common, item)
