"""Work in processes: its results, its errors, and that nothing of it is left.

The work is the standard library's, because workers have to import it.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import operator
import os
import signal
import subprocess
import sys
import time

import pytest

from laminabench.util.errors import UserError
from laminabench.util.parallel import spread, worker_pool

ENDLESS = """
import operator, signal, time
from laminabench.util.parallel import spread

signal.signal(signal.SIGINT, signal.default_int_handler)  # the parent process may ignore it
# The first is done at once, the others never.
for index, _ in spread(operator.call, [0, 1e6, 2e6], time.sleep, jobs=2):
    print(index, flush=True)
"""

INTERRUPTED = """
import os, signal
from laminabench.util.parallel import spread

signal.signal(signal.SIGINT, signal.default_int_handler)
# The first interrupts them all, others while they begin.
for _ in spread(os.killpg, [signal.SIGINT, *[0] * 5], 0, jobs=6):
    pass
"""


@pytest.mark.parametrize("jobs", [1, 2, None])
def test_each_item_once(jobs: int | None) -> None:
    result = dict(spread(operator.mul, [3, 4, 5], 10, jobs=jobs))
    assert result == {0: 30, 1: 40, 2: 50}
    assert list(spread(operator.mul, [], 10, jobs=jobs)) == []


def test_a_crew_keeps_its_processes() -> None:
    with worker_pool("__import__('os').getpid()", jobs=2) as done:
        assert multiprocessing.active_children() == []  # none was needed yet
        first = dict(done(eval, [{}] * 4))
        second = dict(done(eval, [{}] * 4))
    assert 1 <= len({*first.values(), *second.values()}) <= 2
    assert multiprocessing.active_children() == []


@pytest.mark.parametrize("jobs", [1, 2])
def test_what_the_work_raises_is_raised_here(jobs: int) -> None:
    with pytest.raises(ZeroDivisionError):
        list(spread(operator.truediv, [1, 0, 2], 1, jobs=jobs))
    assert multiprocessing.active_children() == []


def test_one_job_is_this_process() -> None:
    assert list(spread(eval, [{}], "__import__('os').getpid()", jobs=1)) == [(0, os.getpid())]


def test_a_worker_that_dies_is_a_sentence() -> None:
    with pytest.raises(UserError, match="process-worker-died"):
        list(spread(operator.call, [9, 9, 9], os._exit, jobs=2))
    assert multiprocessing.active_children() == []


def test_closed_early_does_not_wait_for_the_rest() -> None:
    # The second takes days.
    with contextlib.closing(spread(operator.call, [0, 1e6], time.sleep, jobs=2)) as results:
        assert next(results) == (0, None)
    assert multiprocessing.active_children() == []


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_nothing_is_left(how: signal.Signals) -> None:
    child = subprocess.Popen(
        [sys.executable, "-c", ENDLESS],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert child.stdout is not None
    assert child.stdout.readline() == "0\n"
    if how == signal.SIGINT:  # as a terminal does: to all of them
        os.killpg(child.pid, how)
    else:
        child.send_signal(how)
    # Workers have its streams too: these end with the last of them.
    _, err = child.communicate(timeout=60)
    assert child.returncode in (-how, 130)
    assert err.count("Traceback") == (how == signal.SIGINT)


def test_interrupted_while_workers_begin() -> None:
    result = subprocess.run(
        [sys.executable, "-c", INTERRUPTED],
        capture_output=True,
        text=True,
        start_new_session=True,
        timeout=60,
        check=False,
    )
    assert result.returncode in (-signal.SIGINT, 130)
    assert result.stderr.count("Traceback") == 1  # the parent's


def test_hanging_workers_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("laminabench.util.parallel.LOOK_S", 0.05)
    monkeypatch.setattr("laminabench.util.parallel.SILENT_S", 1.0)
    with pytest.raises(UserError) as error:
        list(spread(operator.call, [signal.SIGSTOP] * 2, signal.raise_signal, jobs=2))
    assert error.value.code == "process-worker-hangs"
