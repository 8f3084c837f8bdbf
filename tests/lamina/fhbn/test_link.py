"""Links, and the channels that two processes open on them."""

from __future__ import annotations

import ast
import dataclasses
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fhbn_support import Both, Links, Open

from lamina import fhbn, host_memory
from lamina.fhbn import verbs
from lamina.fhbn.control import Place
from lamina.fhbn.engines import best, find


@pytest.mark.parametrize("network", ["auto", "shm"])
@pytest.mark.parametrize("order", [slice(None), slice(None, None, -1)])
def test_channels_open_in_either_direction(links: Links, both: Both, network: str, order: slice) -> None:
    source, target = links[order]
    sender, receiver = both(
        lambda: source.sender("qkv", network=network),
        lambda: target.receiver("qkv", message_bytes=100, slots=3, network=network),
    )
    assert sender.engine == receiver.engine == "shm"
    assert sender.peer == f"{source.peer} (channel qkv)"
    assert receiver.peer == f"{target.peer} (channel qkv)"
    sender.send(b"q" * 64, b"k")
    assert [bytes(part) for part in receiver.recv()] == [b"q" * 64, b"k"]


def test_slots_are_rounded_up(ends: Open) -> None:
    sender, receiver = ends(slots=3)
    for _ in range(4):
        sender.send(b"")
    with pytest.raises(fhbn.ChannelTimeoutError, match="channel-timeout"):
        sender.send(b"", timeout_s=0)
    assert receiver.recv().seqno == 0


def test_every_opening_has_its_own_epoch(ends: Open) -> None:
    epochs = set()
    for _ in range(5):
        sender, receiver = ends()
        assert sender.epoch == receiver.epoch
        epochs.add(sender.epoch)
    assert len(epochs) == 5


def test_a_reconnecting_peer_gets_a_new_ring(meet: Callable[[], Links], both: Both) -> None:
    ours, theirs = meet()
    stale, receiver = both(lambda: theirs.sender("a"), lambda: ours.receiver("a", message_bytes=64))
    stale.send(b"0")
    receiver.recv().release()
    again, theirs_again = meet()
    sender, renewed = both(
        lambda: theirs_again.sender("a"),
        lambda: again.receiver("a", message_bytes=64, first_seqno=receiver.next_seqno),
    )
    stale.send(b"stale")
    sender.send(b"1")
    message = renewed.recv()
    assert (message.seqno, bytes(message[0])) == (1, b"1")
    with pytest.raises(fhbn.ChannelTimeoutError):
        renewed.recv(timeout_s=0)
    for link in (ours, theirs, again, theirs_again):
        link.close()


def both_fail(both: Both, first: Callable[[], Any], second: Callable[[], Any]) -> tuple[str, str]:
    """What the two calls raise."""

    def failing(call: Callable[[], Any]) -> Callable[[], str]:
        def run() -> str:
            try:
                call()
            except (fhbn.ChannelError, ValueError, OSError) as error:
                return str(error)
            raise AssertionError("no error")

        return run

    result: tuple[str, str] = both(failing(first), failing(second))
    return result


@pytest.mark.parametrize(
    ("sends", "receives", "message"),
    [
        ({}, {"name": "out"}, "this process opens channel 'qkv' and attention worker 0 'out'"),
        (
            {"network": "gloo"},
            {"network": "shm"},
            "the two ends have no network in common: this one has gloo, the other one shm",
        ),
    ],
)
def test_disagreement_is_reported_to_both_ends_and_ends_the_link(
    links: Links, both: Both, sends: dict[str, Any], receives: dict[str, Any], message: str
) -> None:
    ours, theirs = links
    requested = {"name": "qkv"}
    here, there = both_fail(
        both,
        lambda: ours.sender(**(requested | sends)),
        lambda: theirs.receiver(message_bytes=64, **(requested | receives)),
    )
    assert (here, there) == (message, f"model worker 0 refuses: {message}")
    for link in links:
        with pytest.raises(fhbn.PeerLostError, match="channel-peer-lost"):
            link.sender("qkv", timeout_s=5)


def test_a_mismatched_channel_is_an_error_at_both_ends(
    links: Links, both: Both, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours, theirs = links
    monkeypatch.setattr(host_memory, "free_bytes", lambda: 10_000)
    here, there = both_fail(
        both, lambda: ours.sender("qkv"), lambda: theirs.receiver("qkv", message_bytes=1 << 20)
    )
    assert there == (
        "channel qkv takes 4,202,496 bytes for 4 messages of 1,048,576, and 10,000 bytes of memory are free: "
        "make them smaller or fewer"
    )
    assert here == f"attention worker 0 refuses: {there}"


def test_a_peer_that_does_not_open_is_a_timeout(links: Links) -> None:
    with pytest.raises(fhbn.ChannelTimeoutError, match="channel-timeout"):
        links[0].receiver("a", message_bytes=64, timeout_s=0.05)
    with pytest.raises(fhbn.PeerLostError):
        links[1].sender("a", timeout_s=5)


def test_the_best_network_both_have_is_taken() -> None:
    here = Place.here()
    elsewhere = dataclasses.replace(here, machine="elsewhere")
    assert find("auto", here, here).usable[0] == "shm"
    assert find("auto", here, elsewhere).usable == ["gloo"]
    assert best(["shm", "gloo"], ["gloo", "shm"]) == "shm"
    with pytest.raises(fhbn.HandshakeError, match="channel-network-unusable"):
        find("shm", here, elsewhere)
    stranger = dataclasses.replace(here, user=here.user + 1)
    with pytest.raises(fhbn.HandshakeError, match="channel-network-unusable"):
        find("shm", here, stranger)


def test_between_machines_a_nic_is_taken_that_is_on_the_way(monkeypatch: pytest.MonkeyPatch) -> None:
    here = Place.here()
    elsewhere = dataclasses.replace(here, machine="elsewhere")
    monkeypatch.setattr(verbs.VERBS, "missing", lambda *_: None)
    monkeypatch.setattr(verbs, "ports_on_the_way", lambda host: ["nic:1"] if host == "10.0.0.3" else [])
    assert find("auto", here, elsewhere, "10.0.0.3").usable == ["verbs", "gloo"]
    aside = find("auto", here, elsewhere, "10.0.0.4")
    assert aside.usable == ["gloo"]
    assert list(aside.missing) == ["shm", "verbs", "mlx5"]
    assert "10.0.0.4" in aside.missing["verbs"]
    monkeypatch.setenv("LAMINA_RDMA_DEVICE", "nic")
    assert find("auto", here, elsewhere, "10.0.0.4").usable == ["verbs", "gloo"]


def test_reasons_against_better_networks_are_reported(links: Links, both: Both) -> None:
    ours, theirs = links
    for link in links:
        assert link.why == ""
        link._there = dataclasses.replace(link._there, machine="elsewhere")
    sender, receiver = both(lambda: ours.sender("a"), lambda: theirs.receiver("a", message_bytes=64))
    assert (sender.engine, receiver.engine) == ("gloo", "gloo")
    assert re.findall(r"(\w+) cannot be used", ours.why) == ["shm", "verbs", "mlx5"]
    for end in (sender, receiver):
        end.close()


def test_nothing_in_the_handshake_can_be_code() -> None:
    """No pickle, no eval, nothing that runs what a peer says."""
    for source in Path(fhbn.__file__).parent.glob("*.py"):
        names = {node.id for node in ast.walk(ast.parse(source.read_text())) if isinstance(node, ast.Name)}
        imported = {
            alias.name
            for node in ast.walk(ast.parse(source.read_text()))
            if isinstance(node, ast.Import | ast.ImportFrom)
            for alias in node.names
        }
        assert not (names | imported) & {"pickle", "marshal", "shelve", "eval", "exec"}, source.name
