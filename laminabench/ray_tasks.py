"""Work as tasks of a Ray cluster that somebody has started: joined for them, and left with the last one.

The engine's workers are actors of such a cluster too (`lamina.cluster`), with torch, which is not for here.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any

from laminabench.errors import UserError
from laminabench.version import __version__

_REACH_S = 3.0
_START = "start one with `ray start --head` and give its host:port"


@contextlib.contextmanager
def tasks(address: str, common: Any) -> Iterator[Callable[[Callable[[Any, Any], Any], Any], Future[Any]]]:
    """A function that has `work(common, item)` done somewhere in the cluster, one on a core.

    What was not done when the block is left ends with it.
    """
    ray = _joined(address)
    try:
        shared = ray.put(common)
        # Over the nodes, where Ray by itself would fill one before it looks for another.
        run = ray.remote(num_cpus=1, scheduling_strategy="SPREAD")(_run)

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


def _run(version: str, common: Any, work: Callable[[Any, Any], Any], item: Any) -> Any:
    """On a node."""
    if version != __version__:
        node = socket.gethostname()
        raise UserError(
            "ray-version-differs",
            f"node {node} has laminabench {__version__}, and here it is {version}: install the same on both",
        )
    return work(common, item)


def _joined(address: str) -> Any:
    """Ray, connected; a UserError where it is not installed, or nobody answers."""
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
    """Ray would start a cluster of its own, or try for minutes to reach one that is not there."""
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
