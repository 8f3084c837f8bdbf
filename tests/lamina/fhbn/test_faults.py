"""Processes killed, stopped and started again: no message is lost, doubled or torn, and nothing leaks."""

from __future__ import annotations

import gc
import random
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lamina import fhbn

Spawn = Callable[..., subprocess.Popen[str]]
Fork = Callable[..., Any]
Act = Callable[..., None]
MESSAGE_BYTES = 1 << 14  # as the child has it
KILLS = 100  # of either side


def busy(seconds: float) -> None:
    """Let a moment pass that no scheduler rounds."""
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        pass


def for_ever(call: Callable[..., None], *arguments: object) -> None:
    while True:
        call(*arguments)


def test_a_sender_killed_anywhere(listener: fhbn.Listener, fork: Fork, take: Act) -> None:
    draws = random.Random(1)
    wanted = 0
    for _ in range(KILLS):
        child = fork("producer", "shm")
        with listener.accept() as link:
            receiver = link.receiver("data", message_bytes=MESSAGE_BYTES, network="shm", first_seqno=wanted)
        for _ in range(draws.randrange(20)):
            take(receiver)
        busy(draws.random() * 300e-6)
        child.kill()
        with pytest.raises(fhbn.PeerLostError, match="channel-peer-lost"):
            for_ever(take, receiver)
        child.wait()
        assert receiver.next_seqno >= wanted
        wanted = receiver.next_seqno
    assert wanted > KILLS


def test_a_receiver_killed_anywhere(
    listener: fhbn.Listener, fork: Fork, tmp_path: Path, send_next: Act
) -> None:
    draws = random.Random(2)
    log = tmp_path / "log"
    for _ in range(KILLS):
        child = fork("consumer", "shm", log)
        with listener.accept() as link:
            sender = link.sender("data", network="shm")
        for _ in range(draws.randrange(30)):
            send_next(sender)
        busy(draws.random() * 300e-6)
        child.kill()
        with pytest.raises(fhbn.PeerLostError, match="channel-peer-lost"):
            for_ever(send_next, sender)
        child.wait()
        noted = log.read_text().splitlines() if log.exists() else []
        # One may have been noted and not yet released.
        assert sender.consumed <= len(noted) <= sender.consumed + 1 <= sender.next_seqno
    assert noted == [f"{seqno} whole" for seqno in range(len(noted))]
    assert len(noted) > KILLS


@pytest.mark.usefixtures("nothing_left")
def test_nothing_is_left_of_the_killed(
    listener: fhbn.Listener, spawn: Spawn, tmp_path: Path, take: Act
) -> None:
    for role in ("producer", "consumer"):
        child = spawn(role, "shm", tmp_path / "log")
        with listener.accept() as link:
            if role == "producer":
                take(link.receiver("data", message_bytes=MESSAGE_BYTES, network="shm"))
            else:
                link.sender("data", network="shm").send(b"x")
            child.kill()
            child.wait()
    gc.collect()


def test_a_stopped_peer_is_waited_for_and_loses_nothing(
    listener: fhbn.Listener, spawn: Spawn, take: Act
) -> None:
    child = spawn("producer", "shm")
    with listener.accept() as link:
        receiver = link.receiver("data", message_bytes=MESSAGE_BYTES, network="shm")
    take(receiver)
    child.send_signal(signal.SIGSTOP)
    with pytest.raises(fhbn.ChannelTimeoutError, match="channel-timeout"):
        for_ever(take, receiver, 0.2)
    before = receiver.next_seqno
    child.send_signal(signal.SIGCONT)
    for _ in range(10):
        take(receiver)
    assert receiver.next_seqno == before + 10


def test_a_stopped_receiver_is_waited_for(
    listener: fhbn.Listener, spawn: Spawn, tmp_path: Path, send_next: Act
) -> None:
    child = spawn("consumer", "shm", tmp_path / "log")
    with listener.accept() as link:
        sender = link.sender("data", network="shm")
    child.send_signal(signal.SIGSTOP)
    with pytest.raises(fhbn.ChannelTimeoutError, match="channel-timeout"):
        for_ever(send_next, sender, 0.2)
    child.send_signal(signal.SIGCONT)
    for _ in range(10):
        send_next(sender)


def test_the_end_of_a_peer_is_noticed_while_waiting(
    listener: fhbn.Listener, spawn: Spawn, tmp_path: Path, send_next: Act
) -> None:
    child = spawn("consumer", "shm", tmp_path / "log")
    with listener.accept() as link:
        sender = link.sender("data", network="shm")
    child.kill()
    start = time.monotonic()
    with pytest.raises(fhbn.PeerLostError):
        for_ever(send_next, sender, 60)
    assert time.monotonic() - start < 30


def test_one_that_only_looks_hears_of_the_end_too(
    listener: fhbn.Listener, spawn: Spawn, take: Act, tmp_path: Path
) -> None:
    child = spawn("producer", "shm")
    with listener.accept() as link:
        receiver = link.receiver("data", message_bytes=MESSAGE_BYTES, network="shm")
    child.kill()
    child.wait()
    with pytest.raises(fhbn.PeerLostError):
        for_ever(take, receiver, 0)
    child = spawn("consumer", "shm", tmp_path / "log")
    with listener.accept() as link:
        sender = link.sender("data", network="shm")
    child.kill()
    child.wait()
    with pytest.raises(fhbn.PeerLostError):
        for_ever(sender.send)
    with pytest.raises(fhbn.PeerLostError):
        sender.send(timeout_s=0)
