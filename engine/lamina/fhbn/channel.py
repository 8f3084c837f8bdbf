"""The ends of channels and their messages, as protocols that every engine fulfils."""

from __future__ import annotations

from types import TracebackType
from typing import Protocol

from lamina._native import _MOST_PARTS


class Message(Protocol):
    """A received message: its parts, where they arrived.

    Its slot goes back to the sender by release(), by leaving `with`, or when the message and all views of it
    are gone. After release() the views still exist, but the sender may write there.
    """

    @property
    def seqno(self) -> int:
        """Its number, one more than that of the message before."""

    def __len__(self) -> int: ...
    def __getitem__(self, index: int) -> memoryview: ...
    def release(self) -> None:
        """Give the slot back."""

    def __enter__(self) -> Message: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class End(Protocol):
    """What both ends of a channel have."""

    @property
    def engine(self) -> str:
        """The engine that moves the messages."""

    @property
    def peer(self) -> str:
        """The other end, as errors call it."""

    @property
    def next_seqno(self) -> int:
        """Of the next message to send or to receive."""

    @property
    def consumed(self) -> int:
        """The first message that the receiver has not released: all before it are done with."""

    def close(self) -> None:
        """Say that there will be nothing more. What was sent can still be received."""


class Sender(End, Protocol):
    """The sending end of a channel. For one thread at a time."""

    def send(self, *buffers: object, timeout_s: float | None = None) -> None:
        """Send the bytes of contiguous arrays, tensors and buffers as the parts of one message.

        Waits while the receiver has no free slot. What raises has sent nothing.
        """


class Receiver(End, Protocol):
    """The receiving end of a channel. For one thread at a time."""

    def recv(self, timeout_s: float | None = None) -> Message:
        """Wait for the next message."""

    def ready(self, timeout_s: float = 0.0) -> bool:
        """Whether a message is there, or comes in this time. Asking without waiting costs next to nothing.

        The peer's end is no answer: shared memory raises it from a wait, as recv does, gloo from recv only.
        """


# What a message can have at most, over every engine.
MOST_PARTS = _MOST_PARTS
