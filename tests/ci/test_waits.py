"""The check for waits without a deadline: it finds each form, and nothing that has a time."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def waits() -> ModuleType:
    spec = importlib.util.spec_from_file_location("waits", ROOT / "ci" / "waits.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


ENDLESS = (
    "thread.join()",
    "thread.join(None)",
    "thread.join(timeout=None)",
    "condition.wait()",
    "process.wait()",
    "await event.wait()",
    "queue.get()",
    "queue.get(timeout=None)",
    "pipe.recv()",
    "future.result()",
    "process.communicate()",
    "lock.acquire()",
    "listening.accept()",
    "select.poll().poll()",
    "select.select([one], [], [], 1.0)",
    "subprocess.run(command)",
    "subprocess.check_output(command, timeout=None)",
    "wait(pending)",
    "as_completed(pending)",
    "futures.wait(pending)",
)
TIMED = (
    "thread.join(2.0)",
    "', '.join(names)",
    "condition.wait(REST_S)",
    "process.wait(timeout=END_S)",
    "process.poll()",
    "queue.get(timeout=1)",
    "table.get(name)",
    "self.receivers[0].recv()",
    "receiver.recv()",
    "future.result(0)",
    "subprocess.run(command, timeout=60)",
    "wait(pending, LOOK_S)",
    "select.poll().poll(100)",
    "subprocess.run(command, **more)",
    "lock.acquire(blocking=False)",
    "stopping.wait()  # waits: it is a worker's, and there may be no work",
)


@pytest.mark.parametrize("line", ENDLESS)
def test_finds_what_may_never_end(waits: ModuleType, line: str) -> None:
    assert [at for at, _ in waits.sleeps(f"async def main():\n    {line}")] == [2]


@pytest.mark.parametrize("line", TIMED)
def test_leaves_what_ends(waits: ModuleType, line: str) -> None:
    assert not list(waits.sleeps(f"async def main():\n    {line}"))


def test_a_reason_is_given(waits: ModuleType) -> None:
    assert list(waits.sleeps("event.wait()  # waits:"))


def test_there_is_none(waits: ModuleType) -> None:
    assert waits.main([]) == 0
