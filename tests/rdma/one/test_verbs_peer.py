"""Our ends of a channel against a peer in plain pyverbs, which shares no code with them."""

from __future__ import annotations

import ipaddress
import random
import struct
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from lamina import fhbn
from lamina.fhbn.deadline import Deadline

MESSAGE_BYTES, SLOTS, FIRST = 5000, 4, 2**64 - 3
PREAMBLE, PUBLISHED, CONSUMED, FIRST_SLOT = 0, 128, 256, 4096
HEADER = struct.Struct("<QII14Q")  # seqno, epoch, parts, bytes of each
LINE = struct.Struct("<QII")  # seqno, closed, unheard
LIMIT_S = 60
SHAPE = {"name": "data", "message_bytes": MESSAGE_BYTES, "slots": SLOTS, "epoch": 99}


def rounded_up(size: int, unit: int) -> int:
    return (size + unit - 1) // unit * unit


STRIDE = HEADER.size + rounded_up(rounded_up(MESSAGE_BYTES, 64) + 13 * 64, 128)
RING_BYTES = rounded_up(FIRST_SLOT + SLOTS * STRIDE, 4096)


class Peer:
    """A queue pair of pyverbs, and a ring or a mirror of it."""

    def __init__(self, device: str) -> None:
        from pyverbs import enums  # noqa: PLC0415 - Debian's, in the virtual machine only
        from pyverbs.cq import CQ  # noqa: PLC0415
        from pyverbs.device import Context  # noqa: PLC0415
        from pyverbs.mr import MR  # noqa: PLC0415
        from pyverbs.pd import PD  # noqa: PLC0415
        from pyverbs.qp import QP, QPCap, QPInitAttr  # noqa: PLC0415

        self._enums = enums
        self._context = Context(name=device)
        self._domain = PD(self._context)
        self._completions = CQ(self._context, 64)
        access = enums.IBV_ACCESS_LOCAL_WRITE | enums.IBV_ACCESS_REMOTE_WRITE
        self.memory = MR(self._domain, RING_BYTES, access)
        self.memory.write(bytes(RING_BYTES), RING_BYTES, 0)
        capacity = QPCap(max_send_wr=64, max_send_sge=1, max_inline_data=LINE.size)
        init = QPInitAttr(
            qp_type=enums.IBV_QPT_RC, scq=self._completions, rcq=self._completions, cap=capacity
        )
        self._pair = QP(self._domain, init)
        self._gid_index = self._ipv4_gid()
        self._other: dict[str, Any] = {}

    def _ipv4_gid(self) -> int:
        port = self._context.query_port(1)
        for index in range(port.gid_tbl_len):
            gid = ipaddress.IPv6Address(self._context.query_gid(1, index).gid)
            if gid.ipv4_mapped is not None:
                return index
        raise AssertionError("the device has no IPv4 address")

    def address(self) -> dict[str, Any]:
        gid = ipaddress.IPv6Address(self._context.query_gid(1, self._gid_index).gid)
        return {
            "lid": 0,
            "gid": gid.packed,
            "queue_pair": self._pair.qp_num,
            "first_psn": 77,
            "mtu": self._enums.IBV_MTU_1024,
            "memory": self.memory.buf,
            "rkey": self.memory.rkey,
        }

    def connect(self, other: dict[str, Any]) -> None:
        from pyverbs.addr import GID, AHAttr, GlobalRoute  # noqa: PLC0415
        from pyverbs.qp import QPAttr  # noqa: PLC0415

        self._other = other
        gid = GID(str(ipaddress.IPv6Address(other["gid"]).exploded))
        route = GlobalRoute(dgid=gid, sgid_index=self._gid_index, hop_limit=64)
        attributes = QPAttr(port_num=1)
        attributes.qp_access_flags = self._enums.IBV_ACCESS_REMOTE_WRITE
        attributes.ah_attr = AHAttr(gr=route, is_global=1, port_num=1)
        attributes.path_mtu = self._enums.IBV_MTU_1024
        attributes.dest_qp_num = other["queue_pair"]
        attributes.rq_psn = other["first_psn"]
        attributes.sq_psn = 77
        attributes.min_rnr_timer = 12
        attributes.timeout = 14
        attributes.retry_cnt = attributes.rnr_retry = 7
        self._pair.to_rts(attributes)

    def write(self, offset: int, size: int) -> None:
        """Copy from our memory to the same place in the other's, and wait until it is there."""
        from pyverbs.wr import SGE, SendWR  # noqa: PLC0415

        piece = SGE(self.memory.buf + offset, size, self.memory.lkey)
        request = SendWR(
            opcode=self._enums.IBV_WR_RDMA_WRITE,
            num_sge=1,
            sg=[piece],
            send_flags=self._enums.IBV_SEND_SIGNALED,
        )
        request.set_wr_rdma(self._other["rkey"], self._other["memory"] + offset)
        self._pair.post_send(request)
        end = time.monotonic() + LIMIT_S
        while not (found := self._completions.poll(1))[0]:
            assert time.monotonic() < end, "the write does not end"
        assert found[1][0].status == self._enums.IBV_WC_SUCCESS

    def line(self, offset: int) -> tuple[int, int, int]:
        seqno, closed, unheard = LINE.unpack(self.memory.read(LINE.size, offset))
        return seqno, closed, unheard

    def say_line(self, offset: int, seqno: int, closed: int = 0) -> None:
        self.memory.write(LINE.pack(seqno, closed, 1), LINE.size, offset)
        self.write(offset, LINE.size)

    def until(self, offset: int, wanted: Callable[[tuple[int, int, int]], bool]) -> tuple[int, int, int]:
        end = time.monotonic() + LIMIT_S
        while not wanted(found := self.line(offset)):
            assert time.monotonic() < end, f"the line is still {found}"
        return found


@pytest.fixture
def peer(device: str) -> Peer:
    return Peer(device)


@pytest.fixture
def links() -> Iterator[tuple[fhbn.Link, fhbn.Link]]:
    """Ours, and the pyverbs peer's: of that only the connection is used."""
    secret = fhbn.new_secret()
    with fhbn.Listener("ours", secret) as listener, ThreadPoolExecutor(1) as pool:
        coming = pool.submit(fhbn.connect, listener.address, name="pyverbs", secret=secret)
        with listener.accept() as ours, coming.result(LIMIT_S) as theirs:
            yield ours, theirs


def parts_of(seqno: int) -> list[bytes]:
    draws = random.Random(seqno)
    return [draws.randbytes(draws.choice((0, 1, 64, 65, 1200))) for _ in range(draws.randrange(5))]


def slot_of(seqno: int) -> int:
    return FIRST_SLOT + seqno % SLOTS * STRIDE


def test_what_pyverbs_sends_arrives(links: tuple[fhbn.Link, fhbn.Link], peer: Peer) -> None:
    ours, theirs = links
    deadline = Deadline(LIMIT_S)
    with ThreadPoolExecutor(1) as pool:
        opening = pool.submit(
            ours.receiver,
            "data",
            message_bytes=MESSAGE_BYTES,
            slots=SLOTS,
            first_seqno=FIRST,
            network="verbs",
        )
        offer = theirs.control.hear(deadline)
        theirs.control.say({"use": "verbs"}, deadline)
        peer.connect(theirs.control.hear(deadline))
        theirs.control.say(peer.address(), deadline)
        theirs.control.say({"opened": True}, deadline)
        assert theirs.control.hear(deadline) == {"opened": True}
        receiver = opening.result(LIMIT_S)
    assert offer["engines"] == ["verbs"]
    for index in range(10):
        seqno = (FIRST + index) % 2**64
        parts = parts_of(seqno)
        sizes = [len(part) for part in parts]
        header = HEADER.pack(seqno, offer["terms"]["epoch"], len(parts), *sizes, *[0] * (14 - len(parts)))
        body = b"".join(part.ljust(rounded_up(len(part), 64), b"\0") for part in parts)
        slot = header + body
        peer.memory.write(slot, len(slot), slot_of(seqno))
        peer.write(slot_of(seqno), len(slot))
        assert not receiver.ready()
        peer.say_line(PUBLISHED, (seqno + 1) % 2**64)
        with receiver.recv() as message:
            assert message.seqno == seqno
            assert [bytes(part) for part in message] == parts
        assert peer.until(CONSUMED, lambda line, n=seqno: line[0] == (n + 1) % 2**64)[1:] == (0, 1)
    peer.say_line(PUBLISHED, (FIRST + 10) % 2**64, closed=1)
    with pytest.raises(fhbn.ChannelClosedError):
        receiver.recv()


def test_pyverbs_receives_what_is_sent(links: tuple[fhbn.Link, fhbn.Link], peer: Peer) -> None:
    ours, theirs = links
    deadline = Deadline(LIMIT_S)
    terms = {
        "name": "data",
        "message_bytes": MESSAGE_BYTES,
        "slots": SLOTS,
        "epoch": 99,
        "first_seqno": FIRST,
    }
    peer.memory.write(LINE.pack(FIRST, 0, 0), LINE.size, PUBLISHED)
    with ThreadPoolExecutor(1) as pool:
        opening = pool.submit(ours.sender, "data", network="verbs")
        theirs.control.say({"engines": ["verbs"], "terms": terms}, deadline)
        assert theirs.control.hear(deadline) == {"use": "verbs"}
        theirs.control.say(peer.address(), deadline)
        peer.connect(theirs.control.hear(deadline))
        theirs.control.say({"opened": True}, deadline)
        assert theirs.control.hear(deadline) == {"opened": True}
        sender = opening.result(LIMIT_S)
    for index in range(10):
        seqno = (FIRST + index) % 2**64
        parts = parts_of(seqno)
        sender.send(*parts)
        line = peer.until(PUBLISHED, lambda line, n=seqno: line[0] == (n + 1) % 2**64)
        assert line[1:] == (0, 1)
        header = HEADER.unpack(peer.memory.read(HEADER.size, slot_of(seqno)))
        assert header[:3] == (seqno, 99, len(parts))
        assert list(header[3 : 3 + len(parts)]) == [len(part) for part in parts]
        at = slot_of(seqno) + HEADER.size
        for part in parts:
            assert not part or peer.memory.read(len(part), at) == part
            at += rounded_up(len(part), 64)
        assert sender.consumed == seqno
        peer.say_line(CONSUMED, (seqno + 1) % 2**64)
        assert sender.consumed == sender.next_seqno
    sender.close()
    assert peer.until(PUBLISHED, lambda line: line[1] == 1)[0] == (FIRST + 10) % 2**64


def test_a_credit_for_what_was_never_sent_is_told(links: tuple[fhbn.Link, fhbn.Link], peer: Peer) -> None:
    """A peer that writes nonsense into our mirror: it is looked at when the ring is full."""
    ours, theirs = links
    deadline = Deadline(LIMIT_S)
    terms = SHAPE | {"first_seqno": 0}
    with ThreadPoolExecutor(1) as pool:
        opening = pool.submit(ours.sender, "data", network="verbs")
        theirs.control.say({"engines": ["verbs"], "terms": terms}, deadline)
        theirs.control.hear(deadline)
        theirs.control.say(peer.address(), deadline)
        peer.connect(theirs.control.hear(deadline))
        theirs.control.say({"opened": True}, deadline)
        theirs.control.hear(deadline)
        sender = opening.result(LIMIT_S)
    for _ in range(SLOTS):
        sender.send(b"x")
    peer.say_line(CONSUMED, 1000)
    with pytest.raises(fhbn.ChannelCorruptedError, match="claims to have consumed"):
        sender.send(b"x")
