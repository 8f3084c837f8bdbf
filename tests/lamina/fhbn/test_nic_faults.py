"""Processes killed and stopped at the other end of a NIC: no message is lost, doubled or torn."""

from __future__ import annotations

import os
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
KILLS = 10  # of either side


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """In an emulated machine it takes a new process seconds to say who it is."""
    monkeypatch.setattr("lamina.fhbn.meeting._GREETING_S", 30.0)


def busy(seconds: float) -> None:
    """Let a moment pass that no scheduler rounds."""
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        pass


def for_ever(call: Callable[..., None], *arguments: object) -> None:
    while True:
        call(*arguments)


def test_a_sender_killed_anywhere(
    listener: fhbn.Listener, fork: Fork, take: Act, nic: str, network: str
) -> None:
    draws = random.Random(1)
    wanted = 0
    for _ in range(KILLS):
        child = fork("producer", nic)
        with listener.accept() as link:
            receiver = link.receiver("data", message_bytes=MESSAGE_BYTES, network=network, first_seqno=wanted)
        for _ in range(1 + draws.randrange(20)):
            take(receiver)
        busy(draws.random() * 300e-6)
        child.kill()
        with pytest.raises(fhbn.PeerLostError, match="channel-peer-lost"):
            for_ever(take, receiver)
        child.wait()
        assert receiver.next_seqno > wanted
        wanted = receiver.next_seqno


def test_a_receiver_killed_anywhere(
    listener: fhbn.Listener, fork: Fork, tmp_path: Path, send_next: Act, nic: str, network: str
) -> None:
    draws = random.Random(2)
    log = tmp_path / "log"
    for _ in range(KILLS):
        child = fork("consumer", nic, log)
        with listener.accept() as link:
            sender = link.sender("data", network=network)
        for _ in range(6 + draws.randrange(30)):
            send_next(sender)
        busy(draws.random() * 300e-6)
        child.kill()
        with pytest.raises(fhbn.PeerLostError, match="channel-peer-lost"):
            for_ever(send_next, sender)
        child.wait()
        noted = log.read_text().splitlines()
        # What was noted may not be told yet; nothing is told that was not noted.
        assert sender.consumed <= len(noted) <= sender.next_seqno
    assert noted == [f"{seqno} whole" for seqno in range(len(noted))]
    assert len(noted) > KILLS


def test_a_stopped_peer_is_waited_for_and_loses_nothing(
    listener: fhbn.Listener, spawn: Spawn, take: Act, nic: str, network: str
) -> None:
    child = spawn("producer", nic)
    with listener.accept() as link:
        receiver = link.receiver("data", message_bytes=MESSAGE_BYTES, network=network)
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
    listener: fhbn.Listener, spawn: Spawn, tmp_path: Path, send_next: Act, nic: str, network: str
) -> None:
    child = spawn("consumer", nic, tmp_path / "log")
    with listener.accept() as link:
        sender = link.sender("data", network=network)
    child.send_signal(signal.SIGSTOP)
    with pytest.raises(fhbn.ChannelTimeoutError, match="channel-timeout"):
        for_ever(send_next, sender, 0.2)
    child.send_signal(signal.SIGCONT)
    for _ in range(10):
        send_next(sender)


def test_a_fork_leaves_the_channels_of_its_parent_alone(
    listener: fhbn.Listener, spawn: Spawn, take: Act, nic: str, network: str
) -> None:
    spawn("producer", nic)
    with listener.accept() as link:
        receiver = link.receiver("data", message_bytes=MESSAGE_BYTES, network=network)
    take(receiver)
    if (child := os.fork()) == 0:
        try:
            receiver.recv(0)
        except fhbn.ChannelError as error:
            del receiver
            os._exit(0 if "is a fork of that one" in str(error) else 1)
        os._exit(2)
    assert os.waitpid(child, 0)[1] == 0
    for _ in range(10):
        take(receiver)
