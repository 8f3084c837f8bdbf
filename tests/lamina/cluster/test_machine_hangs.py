"""A fork server that hangs is replaced, and what it was asked for is done by the next one."""

from __future__ import annotations

import os
import signal

import pytest
from cluster_support import Load, Saved, mixed, play, shared, sound

from lamina import Engine
from lamina.cluster import Machine, machine
from lamina.cluster.life import Life


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
        wanted = play(it, load)
        server = own._process
        assert server is not None

        def strike(step: int) -> None:
            if step == 3:
                os.kill(server.pid, signal.SIGSTOP)
                it.strike("attention 0")

        assert play(it, load, strike) == wanted
        assert server.returncode == -signal.SIGKILL
        assert {name for fault in it.faults for name in fault.workers} == set(it.workers)
        sound(it)


def test_a_process_that_works_is_not_silent() -> None:
    life = Life(os.getpid())
    life.silent_s()
    began = os.times()
    while sum(os.times()[:2]) - sum(began[:2]) < 0.05:  # several ticks of its processor
        pass
    assert life.silent_s() < 0.05
    assert Life(2**22 + 1).silent_s() == 0.0  # there is none of that number
