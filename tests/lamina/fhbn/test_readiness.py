"""Waits for descriptors end, and take descriptors that select() does not."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator

import pytest

from lamina.fhbn.readiness import readable, writable

BEYOND_SELECT = 1100


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < 2 * BEYOND_SELECT:
        pytest.skip(f"no process may have more than {hard} descriptors here")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 2 * BEYOND_SELECT), hard))
    ends = []
    for low in os.pipe():
        high = BEYOND_SELECT + len(ends)
        os.dup2(low, high)
        os.close(low)
        ends.append(high)
    yield ends[0], ends[1]
    for end in ends:
        os.close(end)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_descriptors_of_any_number(pipe: tuple[int, int]) -> None:
    reader, writer = pipe
    assert writable(writer, 0)
    assert not readable(reader, 0)
    assert not readable(reader, 0.001)
    os.write(writer, b"x")
    assert readable(reader, 60)


def test_full_and_closed_pipes_are_ready_or_not() -> None:
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    while writable(writer, 0):
        os.write(writer, bytes(1 << 12))
    os.close(reader)
    assert writable(writer, 60)  # an error to be read
    os.close(writer)
    reader, writer = os.pipe()
    os.close(writer)
    assert readable(reader, 60)
    os.close(reader)
