"""Headers in what torch.distributed sends: nothing in them is believed."""

from __future__ import annotations

import pytest

from lamina import fhbn
from lamina.fhbn.channel_spec import ChannelSpec
from lamina.fhbn.frame import HEADER, Framing, Spans


def framing(epoch: int = 7) -> Framing:
    return Framing(ChannelSpec("qkv", 200, 4, epoch, 0, 1.0, 0.0), "peer")


@pytest.mark.parametrize(
    "header",
    [
        (1, 7, 0),  # another message than the next one
        (0, 8, 0),  # of another epoch
        (0, 7, 15),  # impossibly many parts
        *((0, 7, 1, 257), (0, 7, 2, 256, 1), (0, 7, 2, 2**64 - 1, 2**64 - 1)),  # larger than the channel's
    ],
)
def test_a_senseless_header_is_refused(header: tuple[int, ...]) -> None:
    packed = HEADER.pack(*header, *(0,) * (17 - len(header)))
    with pytest.raises(fhbn.ChannelCorruptedError, match="channel-corrupted"):
        framing().checked(memoryview(packed), 0)


def test_a_header_is_read_as_it_was_written() -> None:
    frame = memoryview(bytearray(HEADER.size))
    framing().write(frame, 2**64 - 1, [1, 64, 65])
    assert framing().checked(frame, 2**64 - 1) == Spans(((0, 1), (64, 128), (128, 193)), 256)
