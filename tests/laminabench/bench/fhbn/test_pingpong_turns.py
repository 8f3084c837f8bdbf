"""The arithmetic of a ping-pong, by a clock and a network that are made up."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("msgpack")

from laminabench.bench import frame
from laminabench.bench.fhbn import peer, pingpong
from laminabench.bench.fhbn.results import Samples, rounds_of, row

MIB = 1 << 20
SIZE = 1000
READING_S = 5e-6
COPY_S = {"memcpy": 3e-7, "channel_copy": 2e-7}


def way_s(size: int) -> float:
    """Of a message, one way."""
    return 1e-6 + size * 1e-9


class PendingMessage:
    """A received message, as an engine gives it."""

    def __init__(self, part: memoryview) -> None:
        self.part = part
        self.released = False

    def __getitem__(self, index: int) -> memoryview:
        assert index == 0
        return self.part

    def release(self) -> None:
        self.released = True


class Network:
    """A clock, an echo on one engine, and its two ends, all in one."""

    def __init__(self) -> None:
        self.now = 0.0
        self.orders: list[tuple[int, int | None, bool]] = []
        self.sent: list[tuple[int, int]] = []  # which order, how many bytes
        self.left = 0
        self.stored: list[PendingMessage] = []
        self.ends: dict[str, Any] = {"shm": (self, self)}

    def perf_counter(self) -> float:
        return self.now

    def begin(self, engine: str, count: int, answer: int | None = None, *, read: bool = False) -> None:
        assert (engine, self.left) == ("shm", 0), "the one before is not done"
        self.orders.append((count, answer, read))
        self.left = count

    def send(self, payload: np.ndarray[Any, Any]) -> None:
        self.sent.append((len(self.orders) - 1, payload.size))
        self.now += way_s(payload.size)
        self.part = memoryview(payload)

    def recv(self) -> PendingMessage:
        self.left -= 1
        _, answer, read = self.orders[-1]
        part = self.part[:answer]
        self.now += way_s(part.nbytes) + READING_S * read
        self.stored.append(PendingMessage(part))
        return self.stored[-1]

    def copy(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def network(monkeypatch: pytest.MonkeyPatch) -> Network:
    made = Network()
    for module in (frame, pingpong):
        monkeypatch.setattr(module, "time", made)
    return made


def test_each_way_is_what_is_left_of_its_round_trip(network: Network) -> None:
    setting: Any = pingpong.Setting(network, SIZE)  # type: ignore[arg-type]
    setting.copies = {name: lambda took=took: network.copy(took) for name, took in COPY_S.items()}
    actual, copies = setting.measure(0.001)
    samples = actual["shm"]
    rounds = len(samples.rtt)
    assert rounds >= pingpong.FEWEST_ROUNDS
    for took, expected in (
        (samples.rtt, 2 * way_s(SIZE)),
        (samples.one_way, way_s(SIZE)),
        (samples.read, way_s(SIZE) + READING_S),
        *((copies[name], COPY_S[name]) for name in COPY_S),
    ):
        assert len(took) == rounds
        np.testing.assert_allclose(np.concatenate(took), expected, rtol=1e-6)
    # One turn to warm up, and four a round.
    whole, small, out, read = (network.orders[1:][turn::4] for turn in range(4))
    assert [len(turns) for turns in (whole, small, out, read)] == [rounds] * 4
    assert {order[1:] for order in whole + small} == {(None, False)}
    assert {order[1:] for order in out} == {(64, False)}
    assert {order[1:] for order in read} == {(64, True)}
    sizes = [{size for order, size in network.sent if order % 4 == turn} for turn in (1, 2, 3, 0)]
    assert sizes == [{SIZE}, {64}, {SIZE}, {SIZE}]
    assert network.left == 0
    assert all(message.released for message in network.stored)


def test_other_bytes_than_were_sent_are_told(network: Network, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(network, "recv", lambda: PendingMessage(memoryview(bytes(SIZE))))
    with pytest.raises(pingpong.UserError, match="fhbn-corrupted"):
        pingpong.Setting(network, SIZE).measure(0.001)  # type: ignore[arg-type]


@pytest.mark.parametrize("size", [1, 63, 5000])
def test_both_copies_copy_everything(size: int) -> None:
    setting = pingpong.Setting(Network(), size)  # type: ignore[arg-type]
    assert set(setting.copies) == set(COPY_S)
    for copy in setting.copies.values():
        setting.copied[:] = 255
        copy()
        np.testing.assert_array_equal(setting.copied, setting.payload)


class Echoed:
    """Both ends of the other process: what has come, and what it has sent back."""

    def __init__(self, messages: Sequence[bytes]) -> None:
        self.messages = [PendingMessage(memoryview(message)) for message in messages]
        self.coming = iter(self.messages)
        self.sent: list[bytes] = []

    def recv(self) -> PendingMessage:
        return next(self.coming)

    def send(self, part: memoryview) -> None:
        self.sent.append(bytes(part))


@pytest.mark.parametrize(
    ("answer", "read", "sent"),
    [(None, False, [b"abcd", b"efgh"]), (3, False, [b"abc", b"efg"]), (3, True, [b"abc", b"efg"])],
)
def test_the_echo_answers_as_it_is_told(
    monkeypatch: pytest.MonkeyPatch, answer: int | None, read: bool, sent: list[bytes]
) -> None:
    was_read: list[bytes] = []
    monkeypatch.setattr(peer, "_read", lambda part: was_read.append(bytes(part)))
    ends: Any = Echoed([b"abcd", b"efgh", b"of the next turn"])
    peer._echo(ends, ends, 2, answer, read=read)
    assert ends.sent == sent
    assert was_read == ([b"abcd", b"efgh"] if read else [])
    assert [message.released for message in ends.messages] == [True, True, False]


def result(engine: str, size: int, one_way_s: float = 1e-3) -> tuple[Any, Any]:
    """A row's facts of two rounds and whether it met its target, and the last of its rounds."""
    samples = Samples([np.full(3, 3e-3)] * 2, [np.full(3, one_way_s)] * 2, [np.full(3, 2e-3)] * 2)
    copies = {"memcpy": [np.full(4, 1e-3)] * 2, "channel_copy": [np.full(4, 0.5e-3)] * 2}
    made = row(engine, size, samples, copies)
    *_, last = rounds_of(engine, size, samples, copies)
    return {**made.facts, "met": made.met}, last


@pytest.mark.parametrize(("one_way_s", "met"), [(1.1e-3, True), (1.2e-3, False)])
def test_the_large_target_is_judged_by_memcpy(one_way_s: float, met: bool) -> None:
    facts, last = result("shm", 16 * MIB, one_way_s)
    assert facts["target"] == {"share_of_memcpy": 0.9}
    assert facts["met"] is met
    assert facts["share_of_memcpy"] == pytest.approx(1e-3 / one_way_s)
    assert facts["share_of_limit"] == pytest.approx(0.5e-3 / one_way_s)
    assert facts["gb_per_s"] == pytest.approx(16 * MIB / one_way_s / 1e9)
    assert facts["read_gb_per_s"] == pytest.approx(16 * MIB / 2e-3 / 1e9)
    assert result("gloo", 16 * MIB)[0]["met"] is None
    assert (last["round"], last["rtt_us_p99"]) == (1, pytest.approx(3000))
    assert (last["memcpy_us_p50"], last["channel_copy_us_p50"]) == (pytest.approx(1000), pytest.approx(500))


def test_what_is_not_verified_says_so_and_nccl_is_not_compared_with_the_host() -> None:
    facts, _ = result("nccl", 16 * MIB)
    assert facts["share_of_memcpy"] is facts["share_of_limit"] is facts["share_of_memcpy_by_round"] is None
    assert facts["gb_per_s"] > 0
    assert not facts["verified"]
    facts, _ = result("softnic", 64)
    assert (facts["caveat"], facts["verified"]) == ("a test bench, not RDMA performance", False)


def test_threads_of_a_core_are_as_the_system_lists_them(tmp_path: Path) -> None:
    for core, listed in ((0, "0,4\n"), (1, "1-2,8\n"), (3, "what?\n")):
        where = tmp_path / f"cpu{core}" / "topology"
        where.mkdir(parents=True)
        (where / "thread_siblings_list").write_text(listed)
    assert [pingpong.threads_of(core, tmp_path) for core in (0, 1, 3, 7)] == [{0, 4}, {1, 2, 8}, {3}, {7}]


@pytest.mark.parametrize(
    ("usable", "threads", "cores"),
    [({5}, {5}, None), ({2, 3, 6}, {2, 3}, (2, 6)), ({2, 3}, {2, 3}, (2, 3)), ({2, 3}, {2}, (2, 3))],
)
def test_two_threads_of_a_core_are_the_last_choice(
    monkeypatch: pytest.MonkeyPatch, usable: set[int], threads: set[int], cores: tuple[int, int] | None
) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: usable)
    monkeypatch.setattr(pingpong, "threads_of", lambda core: threads)
    assert pingpong.two_cores() == cores
