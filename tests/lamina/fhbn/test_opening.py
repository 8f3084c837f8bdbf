"""Opening a channel when something is wrong: which end reports it, and what stays open."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fhbn_support import SPEC, Both, Links, soon
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lamina import fhbn
from lamina.fhbn import shm
from lamina.fhbn.channel import ChannelSpec
from lamina.fhbn.control import Place


@pytest.mark.parametrize(
    ("end", "mistake", "sentence"),
    [
        (end, mistake, sentence)
        for end in ("sender", "receiver")
        for mistake, sentence in [
            ({"network": "pigeon"}, "network 'pigeon' is unknown: give one of auto, shm"),
            ({"name": ""}, "a channel's name has 1 to 200 printable characters"),
            ({"name": "a\nb"}, "a channel's name has 1 to 200 printable characters"),
            ({"timeout_s": float("nan")}, "a number of seconds, 0 or more"),
            ({"timeout_s": -1}, "a number of seconds, 0 or more"),
            ({"spin_s": float("nan")}, "a number of seconds, 0 or more"),
        ]
    ]
    + [
        ("receiver", {"slots": 0}, "0 slots: give 1 to 65,536"),
        ("receiver", {"slots": 70_000}, "70,000 slots: give 1 to 65,536"),
        ("receiver", {"message_bytes": 0}, "messages of 0 bytes: give 1 or more"),
        ("receiver", {"first_seqno": -1}, "they have 64 and 32 bits"),
    ],
)
def test_an_own_mistake_leaves_the_link_as_it_was(
    links: Links, both: Both, end: str, mistake: dict[str, Any], sentence: str
) -> None:
    ours, theirs = links
    requested = {"name": "a"} | ({"message_bytes": 64} if end == "receiver" else {}) | mistake
    with pytest.raises(ValueError, match=sentence):
        getattr(ours, end)(**requested)
    sender, receiver = both(lambda: ours.sender("a"), lambda: theirs.receiver("a", message_bytes=64))
    sender.send(b"x")
    assert bytes(receiver.recv()[0]) == b"x"


def closed(link: fhbn.Link) -> bool:
    return link.control.fileno() == -1


def test_a_network_that_was_not_offered_cannot_be_chosen(links: Links, both: Both) -> None:
    ours, theirs = links

    def choose() -> None:
        assert theirs.control.receive_message(soon())["engines"] == ["shm"]
        theirs.control.send_message({"use": "gloo"}, soon())

    with pytest.raises(fhbn.HandshakeError, match="channel-message"):
        both(lambda: ours.receiver("a", message_bytes=64, network="shm"), choose)
    assert closed(ours)


@pytest.mark.parametrize(
    "offer",
    [
        *({"engines": engines, "missing": {}} for engines in ([1], ["shm", None], [b"shm"], ["a\nb"])),
        *(
            {"engines": ["shm"], "missing": missing}
            for missing in ({"verbs": 1}, {"verbs": "a\nb"}, ["verbs"])
        ),
        {"engines": ["shm"]},
    ],
)
def test_networks_that_are_no_names_are_refused(links: Links, offer: dict[str, Any]) -> None:
    ours, theirs = links
    theirs.control.send_message(offer | {"terms": SPEC.to_wire()}, soon())
    with pytest.raises(fhbn.HandshakeError, match="channel-message"):
        ours.sender("a")
    assert closed(ours)


class FakeEnd:
    closed = False

    def close(self) -> None:
        self.closed = True


@pytest.mark.parametrize("message", [{"opened": False}, {"opened": 1}, {}, {"refused": "no room"}, None])
def test_an_end_whose_peer_has_none_is_closed(links: Links, message: dict[str, Any] | None) -> None:
    ours, theirs = links
    if message is None:
        theirs.close()
    else:
        theirs.control.send_message(message, soon())
    end = FakeEnd()
    with pytest.raises(fhbn.ChannelError):
        ours._both(end, soon())
    assert end.closed


def test_an_end_is_given_when_both_have_one(links: Links) -> None:
    ours, theirs = links
    theirs.control.send_message({"opened": True}, soon())
    end = FakeEnd()
    assert ours._both(end, soon()) is end
    assert not end.closed


@pytest.mark.parametrize("error", [KeyboardInterrupt, MemoryError, fhbn.ChannelTimeoutError, ValueError])
def test_a_refusal_that_fails_closes_the_link_too(
    links: Links, monkeypatch: pytest.MonkeyPatch, error: type[BaseException]
) -> None:
    ours, _ = links

    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr(ours.control, "refuse", fail)
    monkeypatch.setattr(ours.control, "receive_message", lambda _: {"terms": 1})
    own = (fhbn.HandshakeError, KeyboardInterrupt, MemoryError)
    with pytest.raises(own) as raised:
        ours.sender("a")
    # What cannot be told does not hide what was wrong.
    assert raised.type is (error if error in own else fhbn.HandshakeError)
    assert closed(ours)


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        ({"name": ""}, "a channel's name has 1 to 200"),
        ({"name": "a\n"}, "a channel's name has 1 to 200"),
        ({"name": "x" * 201}, "a channel's name has 1 to 200"),
        ({"message_bytes": 0}, "messages of 0 bytes"),
        ({"slots": 3}, "3 slots: their number is a power of two"),
        ({"slots": 1 << 17}, "131,072 slots: give 1 to 65,536"),
        ({"epoch": -1}, "they have 64 and 32 bits"),
        ({"epoch": 1 << 32}, "they have 64 and 32 bits"),
        ({"first_seqno": -1}, "they have 64 and 32 bits"),
        ({"first_seqno": 1 << 64}, "they have 64 and 32 bits"),
    ],
)
def test_invalid_terms_are_errors(changed: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        dataclasses.replace(SPEC, **changed)
    with pytest.raises(fhbn.HandshakeError, match="channel-message"):
        ChannelSpec.from_wire(SPEC.to_wire() | changed, "x", 1.0, 0.0)


def test_terms_at_the_edge_are_taken() -> None:
    edge = dataclasses.replace(
        SPEC, name="x" * 200, slots=1 << 16, epoch=(1 << 32) - 1, first_seqno=(1 << 64) - 1
    )
    assert ChannelSpec.from_wire(edge.to_wire(), "x", edge.timeout_s, edge.spin_s) == edge


def test_a_place_distinguishes_kernels_and_network_namespaces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Local sockets, over which memory is handed over, are those of a network namespace."""
    here = Place.here()
    monkeypatch.setattr(Path, "readlink", lambda _: Path("net:[1]"))
    elsewhere = Place.here()
    assert shm.missing(here, elsewhere) is not None
    assert shm.missing(elsewhere, elsewhere) is None
    monkeypatch.setattr(Path, "read_text", lambda *_, **__: "another boot")
    assert shm.missing(elsewhere, Place.here()) is not None


offers = st.fixed_dictionaries(
    {},
    optional={
        "engines": st.lists(st.sampled_from(["shm", "gloo", "x"]) | st.integers(0, 9), max_size=3)
        | st.text(max_size=3),
        "terms": st.fixed_dictionaries(
            {},
            optional={
                "name": st.sampled_from(["a", "b"]) | st.none(),
                "message_bytes": st.integers(-(2**63), 2**64 - 1),
                "slots": st.integers(-1, 5) | st.integers(-(2**63), 2**64 - 1),
                "epoch": st.integers(-(2**63), 2**64 - 1),
                "first_seqno": st.integers(-(2**63), 2**64 - 1),
            },
        ),
        "socket": st.binary(max_size=120),
        "token": st.binary(max_size=40),
        "use": st.text(max_size=5),
    },
)


@settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(offered=st.lists(offers, max_size=3))
def test_strange_offers_end_in_a_sentence(meet: Callable[[], Links], offered: list[dict[str, Any]]) -> None:
    """From a peer with the secret: any message in place of opening a channel."""
    ours, theirs = meet()
    with ours, theirs:
        for message in offered:
            theirs.control.send_message(message, soon())
        theirs.close()
        # It goes, or it has said what makes no sense; nothing of ours is wrong.
        with pytest.raises((fhbn.HandshakeError, fhbn.PeerLostError)) as refused:
            ours.sender("a", network="shm", timeout_s=30)
        if not offered:
            assert refused.type is fhbn.PeerLostError
        assert "\n" not in str(refused.value)
        assert closed(ours)
