"""A fork server that hangs is replaced, and what it was asked for is done by the next one."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from cluster_support import Load, Saved, eventually, mixed, play, shared, sound

from lamina import Engine
from lamina.cluster import Machine, heartbeat, machine
from lamina.cluster.heartbeat import HeartbeatMonitor
from lamina.cluster.process_states import Life, runs
from lamina.fhbn import Listener, connect, new_secret
from lamina.pipeline.options import EngineError


@pytest.fixture(scope="module")
def load() -> Load:
    return mixed(12)


@pytest.mark.long
def test_a_stopped_fork_server_and_a_lost_worker(
    saved: Saved, load: Load, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a deadline the front end would wait for it for ever."""
    monkeypatch.setattr(machine, "SILENT_S", 3.0)
    with Machine() as own, Engine(saved("llama-gqa"), layout=shared(1, 1), machine=own, kv_tokens=2000) as it:
        expected = play(it, load)
        server = own._process
        assert server is not None

        def inject_fault(step: int) -> None:
            if step == 3:
                os.kill(server.pid, signal.SIGSTOP)
                it.inject_fault("attention 0")

        assert play(it, load, inject_fault) == expected
        assert server.returncode == -signal.SIGKILL
        assert {name for fault in it.faults for name in fault.workers} == set(it.workers)
        sound(it)


def test_no_module_is_taken_from_the_folder_one_stands_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "planted.py").write_text("raise SystemExit('taken')")
    monkeypatch.chdir(tmp_path)
    with Machine() as own:
        own.program = ("-c", "import planted")
        with pytest.raises(EngineError, match="No module named 'planted'"):
            own.ends([])


def test_a_process_that_is_stopped_does_not_run() -> None:
    busy = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        eventually(lambda: runs(busy.pid))
        busy.send_signal(signal.SIGSTOP)
        eventually(lambda: not runs(busy.pid))
    finally:
        busy.kill()
        busy.wait(60)
    assert not runs(busy.pid)


@pytest.mark.parametrize("running", [False, True])
def test_one_that_runs_has_longer_to_answer(monkeypatch: pytest.MonkeyPatch, running: bool) -> None:
    monkeypatch.setattr(heartbeat, "ANSWER_S", 0.05)
    monkeypatch.setattr(heartbeat, "BUSY_ANSWER_S", 1e9 if running else 0.05)
    requests: list[int] = []

    def look(number: int) -> bool:
        requests.append(number)
        return running

    secret = new_secret()
    with ThreadPoolExecutor(1) as other, Listener("front end", secret) as listener:
        there = other.submit(connect, listener.address, name="worker", secret=secret)
        with listener.accept() as link, there.result(60):
            monitor = HeartbeatMonitor(120.0, look)
            monitor.add(3, link.control)
            assert monitor.look() == {}  # it is asked, and does not answer
            if running:
                eventually(lambda: monitor.look() == {} and len(requests) > 1)
            else:
                eventually(lambda: list(monitor.look()) == [3])


def test_a_process_that_works_is_not_silent() -> None:
    life = Life(os.getpid())
    life.silent_s()
    began = os.times()
    while sum(os.times()[:2]) - sum(began[:2]) < 0.5:  # many ticks of its processor
        pass
    assert life.silent_s() < 0.25
    assert Life(2**22 + 1).silent_s() == 0.0  # there is none of that number
