"""Channels over a NIC: `softnic` anywhere, `verbs` where there is an RDMA device (in `make rdma-test`)."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest

from lamina import fhbn
from lamina._native import NicReceiver, NicSender
from lamina.fhbn import rings
from lamina.fhbn.control import Place
from lamina.fhbn.engines import engine

Both = Callable[[Callable[[], Any], Callable[[], Any]], tuple[Any, Any]]
Links = tuple[fhbn.Link, fhbn.Link]
Ends = tuple[NicSender, NicReceiver]
Open = Callable[..., Ends]


@pytest.mark.parametrize("where", [0, 8, 12, 16], ids=["seqno", "epoch", "parts", "bytes"])
def test_a_corrupted_header_is_an_error(
    ends: Open, network: str, monkeypatch: pytest.MonkeyPatch, where: int
) -> None:
    """What a NIC has written is not believed: the sender's memory is not ours."""
    made = []
    new_ring = rings.new_ring

    def noted(*spec: Any) -> Any:
        made.append(new_ring(*spec))
        return made[-1]

    monkeypatch.setattr(rings, "new_ring", noted)
    sender, receiver = ends(network)
    sender.send(b"good")
    assert receiver.ready(30)
    memory = os.fdopen(os.dup(made[0].descriptor), "r+b", buffering=0)
    other = os.fdopen(os.dup(made[1].descriptor), "r+b", buffering=0)
    with memory, other:
        for file in (memory, other):  # the ring's, and the mirror's, of which nobody reads it again
            file.seek(4096 + where)
            file.write(b"\xff" * 4)
    with pytest.raises(fhbn.ChannelCorruptedError):
        receiver.recv()


def test_without_a_device_verbs_says_why(links: Links, both: Both, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAMINA_RDMA_DEVICE", "none_0:1")
    with pytest.raises(fhbn.HandshakeError, match="channel-refused"):
        both(
            lambda: links[0].sender("a", network="verbs"),
            lambda: links[1].receiver("a", message_bytes=64, network="verbs"),
        )


@pytest.mark.parametrize("name", ["mlx5_0:", "mlx5_0:0", "mlx5_0:9", "mlx5_0:x", ":"])
def test_a_port_that_cannot_be_is_refused(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAMINA_RDMA_DEVICE", name)
    here = Place.here()
    assert "names no port of an RDMA device" in str(engine("verbs").missing(here, here))
