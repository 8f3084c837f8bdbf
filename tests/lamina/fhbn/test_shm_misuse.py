"""What one should not do with an end in shared memory is an error, and never a crash."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch

from lamina import fhbn
from lamina._native import ShmMessage, ShmReceiver, ShmSegment, ShmSender

Ends = tuple[ShmSender, ShmReceiver]


def ends() -> Ends:
    segment = ShmSegment.create(4096, 4, epoch=7, first_seqno=0)
    sender = ShmSender(ShmSegment.attach(segment.descriptor), "receiver", timeout_s=30, spin_s=1e-4)
    return sender, ShmReceiver(segment, "sender", timeout_s=30, spin_s=1e-4)


@pytest.mark.filterwarnings("ignore:nanobind:RuntimeWarning")  # which it gives beside the error
@pytest.mark.parametrize(
    "call",
    [
        lambda: ShmReceiver.recv(object()),  # type: ignore[arg-type]
        lambda: ShmReceiver.__new__(ShmReceiver).recv(),
        lambda: ShmSender.send(object()),  # type: ignore[arg-type]
        lambda: ShmSender.__new__(ShmSender).send(),
        lambda: ShmMessage.__getitem__(object(), 0),  # type: ignore[arg-type]
        lambda: ShmMessage.__new__(ShmMessage)[0],
    ],
)
def test_what_is_no_end_is_a_type_error(call: Callable[[], Any]) -> None:
    with pytest.raises(TypeError):
        call()


def freed() -> torch.Tensor:
    tensor = torch.zeros(100)
    tensor.untyped_storage().resize_(0)
    return tensor


@pytest.mark.parametrize(
    "tensor", [freed(), torch.zeros(4, dtype=torch.complex64).conj()], ids=["freed", "conjugated"]
)
def test_a_tensor_without_its_values_in_memory_is_refused(tensor: torch.Tensor) -> None:
    sender, receiver = ends()
    with pytest.raises(ValueError, match="tensor"):
        sender.send(tensor)
    sender.send(b"x")
    with receiver.recv() as message:
        assert (message.seqno, bytes(message[0])) == (0, b"x")


def while_receiving(receiver: ShmReceiver, sender: ShmSender, call: Callable[[], object]) -> str:
    """What `call` raises as soon as another thread is waiting in recv()."""
    thread = threading.Thread(target=receiver.recv)
    thread.start()
    try:
        while thread.is_alive():
            try:
                call()
            except fhbn.ChannelTimeoutError:
                continue  # the other one has not begun yet
            except fhbn.ChannelError as error:
                return str(error)
    finally:
        sender.send(b"")
        thread.join()
    raise AssertionError("no error")


def test_a_second_thread_is_refused() -> None:
    sender, receiver = ends()
    told = while_receiving(receiver, sender, lambda: receiver.recv(timeout_s=0))
    assert "in use by another thread" in told


def test_closing_beside_a_waiting_thread_is_refused() -> None:
    sender, receiver = ends()
    begun = threading.Event()

    def close() -> None:
        # Not before the other thread is in its wait, or there would be nothing to refuse.
        if not begun.is_set():
            try:
                receiver.recv(timeout_s=0)
            except fhbn.ChannelTimeoutError:
                raise
            except fhbn.ChannelError:
                begun.set()
        receiver.close()

    assert "in use by another thread" in while_receiving(receiver, sender, close)
    receiver.close()
