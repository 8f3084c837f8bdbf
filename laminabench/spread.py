"""The same work on many things, on this machine's cores: each result as soon as it is there."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from typing import Any, TypeVar

Common = TypeVar("Common")
Item = TypeVar("Item")
Result = TypeVar("Result")

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
) -> Iterator[tuple[int, Result]]:
    """`work(common, item)` of every item, in processes; (index of the item, result) in the order they end.

    `work` is a function of a module, and like everything it is given and gives back it can be pickled. What
    it raises is raised here. One job works in this process.
    """
    jobs = min(jobs or cores(), len(items))
    if jobs <= 1:
        yield from ((index, work(common, item)) for index, item in enumerate(items))
        return
    # Not forked from here: threads of pyarrow's would be missing in the copy, and their locks might be held.
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["laminabench.replay"])
    pool = ProcessPoolExecutor(jobs, context, initializer=_begin, initargs=(common,))
    try:
        index_of: dict[Future[Result], int] = {
            pool.submit(_work, work, item): index for index, item in enumerate(items)
        }
        for done in as_completed(index_of):
            yield index_of[done], done.result()
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _begin(common: Any) -> None:
    """Ctrl-C is the parent's to answer."""
    global _common  # noqa: PLW0603 - one a process, set before its first item
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _common = common


def _work(work: Callable[[Any, Item], Result], item: Item) -> Result:
    return work(_common, item)
