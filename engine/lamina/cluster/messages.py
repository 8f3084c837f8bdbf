"""All messages between front end, workers and fork server, and how they travel: one struct each, one encoder
and one decoder; over a control connection, in parts where one is too long, or over a pipe.

On the wire a message is a msgpack map that begins with its type; columns are their bytes. What does not
fit is refused as a whole, so that no process acts on half a message.
"""

from __future__ import annotations

import functools
import math
import operator
import os
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import msgspec
import numpy as np

from lamina.cluster.layout import Layout
from lamina.emulation import Emulation
from lamina.errors import CodedError
from lamina.fhbn.control import MOST_MESSAGE_BYTES, Control, Deadline
from lamina.fhbn.readiness import readable, writable
from lamina.gpu import is_gpu
from lamina.kv.stored import KvDtype
from lamina.model.load import LoadFormat
from lamina.operators import Absorb
from lamina.pipeline.batch_rows import NONE as NO_NAMES
from lamina.pipeline.batch_rows import BatchDelta, Ints, Revealed, Tokens
from lamina.pipeline.options import ModelFacts
from lamina.pipeline.partition import Partition, Schedule
from lamina.pipeline.records import WorkRecords

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from lamina.convert import BoundSlice

# What workers are forked with: slices that they share, or the model that each takes its part of.
Weights: TypeAlias = "list[BoundSlice] | PreTrainedModel"
Kind: TypeAlias = Literal["model", "attention", "prefill"]


class ModelSource(msgspec.Struct, frozen=True):
    """The source of a model and how to load it."""

    source: str | dict[str, Any]  # its path, or its config in transformers' format
    dtype: str | None
    rope: str
    load_format: LoadFormat
    whole: bool = True  # bound to slices that all workers share, or left for each to take its part of
    absorb: Absorb = "model"
    q_first: bool = True  # sent before k and v are computed
    emulation: Emulation | None = None  # in place of all that


@dataclass(frozen=True)
class WorkerConfig:
    """One worker's part."""

    name: str
    host: str  # where it listens for others
    address: str  # of the front end
    secret: bytes
    core: int
    device: str
    kind: Kind
    number: int  # among those of its kind
    layout: Layout
    slices: int
    partition: Partition
    most_rows: int  # of a batch, and of all together
    max_positions: int  # of a sequence
    arena_tokens: int  # of an attention worker, on its device
    overcommit: float  # further slots outside the device, as a share of these
    decode_only: bool
    overlap: bool
    backend: str
    spin_s: float
    kv_dtype: KvDtype = "auto"  # of arenas
    kv_copy: str = ""  # the path of an attention worker's copy, unless another worker offers one
    # One that takes over from another: how often the others had met before, and where they begin again.
    epoch: int = 0
    cycle: int = 0

    @property
    def schedule(self) -> Schedule:
        return self.layout.schedule(self.slices)

    @property
    def process(self) -> str:
        """A key of the process: workers with equal keys are threads of one."""
        return self.device if self.layout.together and is_gpu(self.device) else self.name

    @property
    def shares_cores(self) -> bool:
        """Whether there are fewer cores than workers; then none spins."""
        return self.spin_s == 0

    @property
    def streams(self) -> bool:
        """Whether q leaves before k and v exist; mini-batches leave whole."""
        return self.overlap and self.partition.chunks == 1


NONE: frozenset[int] = frozenset()
PART_BYTES = MOST_MESSAGE_BYTES // 2
_LAST, _MORE = b"\0", b"\1"  # what a part begins with
_LENGTH = struct.Struct("<Q")


class MessageError(CodedError, ValueError):
    """A received message that is not of this protocol."""


class Message(msgspec.Struct, tag=True, omit_defaults=True):
    """The base of all messages: the class name is the type on the wire."""


# From the front end to workers.


class Plan(Message):
    """A batch's part of a cycle."""

    batch: int
    cycle: int
    iteration: int  # of the batch; of a cycle that it sits out, the one to come
    active: bool
    delta: BatchDelta
    afresh: bool = False  # what was known of the batch is forgotten first
    # Model workers: of names in `partial` only the attention workers in `lacking` want the KV again.
    lacking: frozenset[int] = NONE
    partial: frozenset[int] = NONE


class Peers(Message):
    """The addresses of this meeting's workers, by name, and the memory that they offer for copies of KV."""

    addresses: dict[str, str]
    kv_copies: dict[str, str] = {}  # paths


class Regroup(Message):
    """All workers are to meet again."""

    epoch: int  # how often they have met before
    cycle: int  # the first one afterwards
    flying: frozenset[int]  # batches whose last iteration has not landed
    partition: Partition  # how attention is distributed from now on


class Compute(Message):
    """A prefill worker is to compute the KV of a text, from token `shared` on, for some attention workers."""

    name: int
    text: Tokens
    shared: int
    to: list[int]


class Forget(Message):
    """An order to a prefill worker to drop this name."""

    name: int


class Order(Message):
    """A worker is to send records or its arena's state, forget its records, say on its heartbeat link
    what it does, or end.
    """

    what: Literal["records", "arena", "forget", "activity", "end"]


class Report(Message):
    """The base of messages from a worker to the front end."""


class Listening(Report):
    """The address where a worker listens at this meeting, and the memory that it offers for a copy of KV."""

    address: str
    epoch: int
    kv_copy: str = ""  # a path


class Ready(Report):
    """A worker has all its channels; an attention worker also the copy of its KV, with these sequences."""

    epoch: int
    networks: dict[str, str]  # that move its messages, and why no better ones
    kv_names: Ints = NO_NAMES
    kv_tokens: Ints = NO_NAMES  # of each the first ones


class Lost(Report):
    """A worker has lost another one; it waits to regroup."""

    why: str
    epoch: int


class Failed(Report):
    """A worker cannot go on, and ends."""

    why: str


class ChosenTokens(Report):
    """The tokens of a batch's iteration."""

    batch: int
    tokens: Ints
    revealed: Revealed | None = None


class PromptsComputed(Report):
    """Parts of prompts have been computed in a cycle that makes no tokens."""

    batch: int
    cycle: int


class KvStored(Report):
    """An attention worker has the KV of a sequence that a prefill worker has computed."""

    name: int


class PrefillFailed(Report):
    """A prefill worker cannot compute a prompt."""

    name: int
    why: str


class ArenaState(Report):
    """Slots that are taken, pages that were moved and read in place, and what is wrong, if anything is."""

    used: int
    moved: int = 0
    in_place: int = 0
    wrong: str = ""


class Activity(Message):
    """A heartbeat: the worker's current piece of work, for how long, and what is usual."""

    worked_s: float  # since it began
    busy_s: float = 0.0
    usual_s: float = 0.0
    pieces: int = 0  # of this kind, before it


# To the fork server, and its answers.


class Convert(Message):
    """A request to cut the model at its attention operators; answered by ModelFacts."""

    model: ModelSource


class Start(Message):
    """A request to fork workers; answered by Started."""

    model: ModelSource
    configs: list[WorkerConfig]


class Reap(Message):
    """A request for these workers' exit status, killing them first if so requested. Answered by Ends."""

    pids: list[int]
    kill: bool


class Measure(Message):
    """A request for these devices' free memory. Answered by Free."""

    devices: list[str]


class Free(Message):
    """Bytes, by device."""

    nbytes: dict[str, int]


class Started(Message):
    """The processes of the workers."""

    pids: list[int]


class Ends(Message):
    """The exit status of processes that have ended, by pid."""

    statuses: dict[int, int]


class Refused(Message):
    """A refusal: the error's code and sentence."""

    code: str
    why: str


FromWorker: TypeAlias = Report | WorkRecords
AnyMessage: TypeAlias = Message | WorkRecords | ModelFacts


def _column_to_wire(column: Any) -> bytes | tuple[int, int, bytes]:
    """Return the bytes of an array; of a table its rows and width with them, either of which may be 0."""
    if not isinstance(column, np.ndarray):
        raise NotImplementedError(f"a message cannot have a {type(column).__name__}")
    body = column.tobytes()
    return body if column.ndim == 1 else (len(column), math.prod(column.shape[1:]), body)


def _column_from_wire(kind: Any, wire: Any) -> Any:
    """Return the array that a field is annotated with; its bytes are not copied."""
    dtype = kind.__args__[1].__args__[0]  # of NDArray[dtype]
    if isinstance(wire, list):
        rows, width, wire = wire
        return np.frombuffer(wire, dtype).reshape(rows, width)
    return np.frombuffer(wire, dtype)


encode = msgspec.msgpack.Encoder(enc_hook=_column_to_wire).encode
_KINDS: set[Any] = {*Message.__subclasses__(), *Report.__subclasses__(), WorkRecords, ModelFacts} - {Report}
_DECODER = msgspec.msgpack.Decoder(functools.reduce(operator.or_, _KINDS), dec_hook=_column_from_wire)


def decode(body: bytes, sender: str) -> AnyMessage:
    try:
        message: AnyMessage = _DECODER.decode(body)
    except (msgspec.MsgspecError, ValueError, TypeError, RecursionError) as error:
        raise MessageError(
            "worker-message-invalid", f"{sender} has sent no sound message: {error}"
        ) from error
    return message


def unexpected(message: object, sender: str) -> MessageError:
    """Return the error for a valid message that is unexpected here."""
    kind = type(message).__name__
    return MessageError(
        "worker-message-unexpected", f"{sender} has sent {kind}, which was not to be expected"
    )


def send(
    control: Control, message: AnyMessage, deadline: Deadline, between: Callable[[], None] | None = None
) -> None:
    """Send a message; `between` is called while the other side does not take it."""
    body = encode(message)
    last = max(len(body) - 1, 0) // PART_BYTES * PART_BYTES
    for begin in range(0, last, PART_BYTES):
        control.send(_MORE + body[begin : begin + PART_BYTES], deadline, between)
    control.send(_LAST + body[last:], deadline, between)


def receive(control: Control, deadline: Deadline) -> AnyMessage:
    part = control.receive(deadline)
    parts = [part[1:]]
    while part[:1] == _MORE:
        part = control.receive(deadline)
        parts.append(part[1:])
    return decode(b"".join(parts), control.peer)


def write(pipe: int, message: AnyMessage, deadline: Deadline) -> None:
    """Send a message over a pipe; a TimeoutError where the other side does not take it."""
    body = encode(message)
    left = memoryview(_LENGTH.pack(len(body)) + body)
    while left:
        if not writable(pipe, deadline.wait_s):
            raise TimeoutError
        left = left[os.write(pipe, left) :]


def read(pipe: int, sender: str, deadline: Deadline) -> AnyMessage | None:
    """Receive a message from a pipe, or None if it was closed; a TimeoutError where half of it is missing."""
    head = _exactly(pipe, _LENGTH.size, deadline)
    if head is None:
        return None
    (length,) = _LENGTH.unpack(head)
    if length > MOST_MESSAGE_BYTES:
        raise MessageError("worker-message-invalid", f"{sender} announces a message of {length:,} bytes")
    body = _exactly(pipe, length, deadline)
    return None if body is None else decode(body, sender)


def _exactly(pipe: int, count: int, deadline: Deadline) -> bytes | None:
    data = bytearray()
    while len(data) < count:
        if not readable(pipe, deadline.wait_s):
            raise TimeoutError
        piece = os.read(pipe, min(count - len(data), 1 << 16))
        if not piece:
            return None
        data += piece
    return bytes(data)
