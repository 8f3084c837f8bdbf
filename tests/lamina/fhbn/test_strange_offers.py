"""What a peer that has the secret says instead of opening a channel: a bug, or another version."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lamina import fhbn
from lamina.fhbn.deadline import Deadline

Both = Callable[[Callable[[], Any], Callable[[], Any]], tuple[Any, Any]]
Links = tuple[fhbn.Link, fhbn.Link]


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
@given(said=st.lists(offers, max_size=3))
def test_strange_offers_end_in_a_sentence(
    listener: fhbn.Listener, secret: bytes, both: Both, said: list[dict[str, Any]]
) -> None:
    """From one who has the secret: whatever it says instead of opening a channel."""
    ours, theirs = both(
        lambda: listener.accept(30), lambda: fhbn.connect(listener.address, name="worker", secret=secret)
    )
    with ours, theirs:
        for message in said:
            theirs.control.say(message, Deadline(30))
        theirs.close()
        # It goes, or it has said what makes no sense; nothing of ours is wrong.
        with pytest.raises((fhbn.HandshakeError, fhbn.PeerLostError)) as refused:
            ours.sender("a", network="shm", timeout_s=30)
        if not said:
            assert refused.type is fhbn.PeerLostError
        assert "\n" not in str(refused.value)
        assert ours.control.fileno() == -1
