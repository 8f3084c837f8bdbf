"""What both ends of a channel over torch.distributed are, and their messages, whatever moves them."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

from lamina.fhbn.channel_spec import ChannelSpec
from lamina.fhbn.control import Control
from lamina.fhbn.deadline import Deadline
from lamina.fhbn.errors import ChannelClosedError, ChannelCorruptedError, ChannelError
from lamina.fhbn.frame import Framing, Spans
from lamina.fhbn.torch_distributed import RECEIVER

# Not an exception: its traceback would hold this end, and its connection open.
Ending = tuple[type[ChannelError], str]


class GroupEnd:
    """Its state. What began and did not come to its end leaves it broken, as these libraries are then."""

    engine: str
    _group: Any = None  # until it is made, and when it is closed

    def __init__(
        self, control: Control, spec: ChannelSpec, rank: int, framing: Callable[..., Framing]
    ) -> None:
        self.peer = f"{control.peer} (channel {spec.name})"
        self._other = 1 - rank
        self._direction = "from" if rank == RECEIVER else "to"
        self._timeout_s = spec.timeout_s
        self._framing = framing(spec, self.peer)
        self._ended: Ending | None = None  # what later calls raise too

    def _require_open(self) -> None:
        if self._group is None:
            raise ChannelClosedError(f"the channel {self._direction} {self.peer} was closed at this end")
        if self._ended is not None:
            kind, sentence = self._ended
            raise kind(sentence)

    def _deadline(self, timeout_s: float | None) -> Deadline:
        return Deadline(self._timeout_s if timeout_s is None else timeout_s)

    def _begin(self) -> None:
        """From here to _finish(), a signal leaves unknown how much was done."""
        self._ended = self._broken("an interruption")

    def _finish(self) -> None:
        self._ended = None

    def _broken(self, by: str) -> Ending:
        sentence = (
            f"the channel {self._direction} {self.peer} did not survive {by}: over {self.engine}, none does"
        )
        return ChannelError, sentence

    def _end_with(self, kind: type[ChannelError], sentence: str) -> ChannelError:
        """What is raised now, and from now on."""
        self._ended = kind, sentence
        return kind(sentence)

    def _checked(self, header: memoryview, seqno: int) -> Spans:
        try:
            return self._framing.checked(header, seqno)
        except ChannelCorruptedError as error:
            raise self._end_with(ChannelCorruptedError, str(error)) from error


class HeldMessage:
    """A message that holds its slot until it is released."""

    __slots__ = ("__weakref__", "_give_back", "_released", "seqno")

    def __init__(self, give_back: Callable[[int], None], seqno: int) -> None:
        self._give_back = give_back
        self._released = False
        self.seqno = seqno

    def release(self) -> None:
        """Give the slot back."""
        if not self._released:
            self._released = True
            self._give_back(self.seqno)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()
