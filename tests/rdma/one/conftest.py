"""A peer in plain pyverbs, which shares no code with our ends, and channels between it and them."""

from __future__ import annotations

import ipaddress
import struct
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest

from lamina import fhbn
from lamina.fhbn.control import Deadline

MESSAGE_BYTES, SLOTS = 5000, 4
LIMIT_S = 60

Links = tuple[fhbn.Link, fhbn.Link]


def rounded_up(size: int, unit: int) -> int:
    return (size + unit - 1) // unit * unit


class Peer:
    """A queue pair of pyverbs, and a ring or a mirror of it."""

    PUBLISHED, CONSUMED, FIRST_SLOT = 128, 256, 4096
    HEADER = struct.Struct("<QII14Q")  # seqno, epoch, parts, bytes of each
    LINE = struct.Struct("<QII")  # seqno, closed, unheard
    STRIDE = HEADER.size + rounded_up(rounded_up(MESSAGE_BYTES, 64) + 13 * 64, 128)
    RING_BYTES = rounded_up(FIRST_SLOT + SLOTS * STRIDE, 4096)

    def __init__(self, device: str) -> None:
        from pyverbs import enums
        from pyverbs.cq import CQ
        from pyverbs.device import Context
        from pyverbs.mr import MR
        from pyverbs.pd import PD
        from pyverbs.qp import QP, QPCap, QPInitAttr

        self._enums = enums
        self._context = Context(name=device)
        self._domain = PD(self._context)
        self._completions = CQ(self._context, 64)
        access = enums.IBV_ACCESS_LOCAL_WRITE | enums.IBV_ACCESS_REMOTE_WRITE
        self.memory = MR(self._domain, self.RING_BYTES, access)
        self.memory.write(bytes(self.RING_BYTES), self.RING_BYTES, 0)
        capacity = QPCap(max_send_wr=64, max_send_sge=1, max_inline_data=self.LINE.size)
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
        from pyverbs.addr import GID, AHAttr, GlobalRoute
        from pyverbs.qp import QPAttr

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
        assert self.try_write(offset, offset, size) == self._enums.IBV_WC_SUCCESS

    def is_refused(self, offset: int, size: int) -> bool:
        """Whether the other's NIC refuses a write there."""
        return bool(self.try_write(0, offset, size) == self._enums.IBV_WC_REM_ACCESS_ERR)

    def try_write(self, here: int, there: int, size: int) -> int:
        """What has become of it."""
        from pyverbs.wr import SGE, SendWR

        piece = SGE(self.memory.buf + here, size, self.memory.lkey)
        request = SendWR(
            opcode=self._enums.IBV_WR_RDMA_WRITE,
            num_sge=1,
            sg=[piece],
            send_flags=self._enums.IBV_SEND_SIGNALED,
        )
        request.set_wr_rdma(self._other["rkey"], self._other["memory"] + there)
        self._pair.post_send(request)
        end = time.monotonic() + LIMIT_S
        while not (result := self._completions.poll(1))[0]:
            assert time.monotonic() < end, "the write does not end"
        return int(result[1][0].status)

    def fail(self) -> None:
        """Our queue pair does nothing more, and answers nobody."""
        from pyverbs.qp import QPAttr

        self._pair.modify(QPAttr(qp_state=self._enums.IBV_QPS_ERR), self._enums.IBV_QP_STATE)

    def withdraw_memory(self) -> None:
        """Nobody may write to it any more."""
        self.memory.close()

    def line(self, offset: int) -> tuple[int, int, int]:
        seqno, closed, unheard = self.LINE.unpack(self.memory.read(self.LINE.size, offset))
        return seqno, closed, unheard

    def write_line(self, offset: int, seqno: int, closed: int = 0) -> None:
        self.memory.write(self.LINE.pack(seqno, closed, 1), self.LINE.size, offset)
        self.write(offset, self.LINE.size)

    def until(self, offset: int, expected: Callable[[tuple[int, int, int]], bool]) -> tuple[int, int, int]:
        end = time.monotonic() + LIMIT_S
        while not expected(result := self.line(offset)):
            assert time.monotonic() < end, f"the line is still {result}"
        return result

    def close(self) -> None:
        """All of it: pyverbs' objects do not take it well to be collected in any order."""
        self._context.close()

    def slot_of(self, seqno: int) -> int:
        return self.FIRST_SLOT + seqno % SLOTS * self.STRIDE


@pytest.fixture
def new_peer(device: str) -> Iterator[Callable[[], Peer]]:
    with ExitStack() as made:

        def make() -> Peer:
            peer = Peer(device)
            made.callback(peer.close)
            return peer

        yield make


@pytest.fixture
def peer(new_peer: Callable[[], Peer]) -> Peer:
    return new_peer()


@pytest.fixture
def links() -> Iterator[Links]:
    """Ours, and the pyverbs peer's: of that only the connection is used."""
    secret = fhbn.new_secret()
    with fhbn.Listener("ours", secret) as listener, ThreadPoolExecutor(1) as pool:
        coming = pool.submit(fhbn.connect, listener.address, name="pyverbs", secret=secret)
        with listener.accept() as ours, coming.result(LIMIT_S) as theirs:
            yield ours, theirs


@pytest.fixture
def our_receiver(links: Links) -> Callable[..., tuple[fhbn.Receiver, int]]:
    """Open the receiving end of a channel whose other end is the peer; and its epoch."""
    ours, theirs = links

    def open_it(peer: Peer, first_seqno: int = 0) -> tuple[fhbn.Receiver, int]:
        deadline = Deadline(LIMIT_S)
        shape = {"message_bytes": MESSAGE_BYTES, "slots": SLOTS, "first_seqno": first_seqno}
        with meanwhile(ours.receiver, **shape) as opening:
            offer = theirs.control.receive_message(deadline)
            assert offer["engines"] == ["verbs"]
            theirs.control.send_message({"use": "verbs"}, deadline)
            peer.connect(theirs.control.receive_message(deadline))
            theirs.control.send_message(peer.address(), deadline)
            agree(theirs, deadline)
            return opening.result(LIMIT_S), offer["terms"]["epoch"]

    return open_it


@pytest.fixture
def our_sender(links: Links) -> Callable[..., fhbn.Sender]:
    """Open the sending end of a channel whose other end is the peer."""
    ours, theirs = links

    def open_it(peer: Peer, first_seqno: int = 0, epoch: int = 99) -> fhbn.Sender:
        deadline = Deadline(LIMIT_S)
        spec = {"name": "data", "message_bytes": MESSAGE_BYTES, "slots": SLOTS}
        spec |= {"epoch": epoch, "first_seqno": first_seqno}
        for line in (peer.PUBLISHED, peer.CONSUMED):
            peer.memory.write(peer.LINE.pack(first_seqno, 0, 1), peer.LINE.size, line)
        with meanwhile(ours.sender) as opening:
            theirs.control.send_message({"engines": ["verbs"], "missing": {}, "terms": spec}, deadline)
            assert theirs.control.receive_message(deadline) == {"use": "verbs"}
            theirs.control.send_message(peer.address(), deadline)
            peer.connect(theirs.control.receive_message(deadline))
            agree(theirs, deadline)
            return opening.result(LIMIT_S)

    return open_it


@contextmanager
def meanwhile(open_end: Callable[..., Any], **shape: int) -> Iterator[Future[Any]]:
    """Our end, opened by a thread of its own. It has as long as the peer: an emulated machine may be slow."""
    with ThreadPoolExecutor(1) as pool:
        opening = pool.submit(open_end, "data", network="verbs", timeout_s=LIMIT_S, **shape)
        try:
            yield opening
        except fhbn.PeerLostError:
            opening.result(LIMIT_S)  # which says why
            raise


def agree(theirs: fhbn.Link, deadline: Deadline) -> None:
    theirs.control.send_message({"opened": True}, deadline)
    assert theirs.control.receive_message(deadline) == {"opened": True}
