"""A second copy of an attention worker's KV, in memory that outlives the worker."""

from __future__ import annotations

import contextlib
import mmap
import os
import tempfile
from collections.abc import Collection
from dataclasses import dataclass
from typing import IO, Literal, NamedTuple, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from lamina.kv.arena import Arena, Space

# Where copies are: nowhere, in memory of the front end or of the next attention worker, or in a file.
KvCopies: TypeAlias = Literal["none", "host", "worker", "disk"]
# Of what was behind: copied when nothing else is to be done, and once an iteration. Some 0.2 ms.
PIECE_BYTES = 1 << 20
_FREE = 0  # in place of a sequence's name
Ints: TypeAlias = NDArray[np.int64]
Slots: TypeAlias = NDArray[np.int32]


def new_file(where: KvCopies) -> IO[bytes]:
    """Return a file for a copy, which the system deletes when it is closed."""
    if where == "disk":
        return tempfile.TemporaryFile()
    return os.fdopen(os.memfd_create("lamina-kv"), "r+b")


def path_of(file: IO[bytes]) -> str:
    """Return the path by which other processes of this user open a file of this process."""
    return f"/proc/{os.getpid()}/fd/{file.fileno()}"


class _Part(NamedTuple):
    """The copy of one space: `kv` is [row, layer, position modulo its size]."""

    space: Space
    kv: NDArray[np.void]
    arena: NDArray[np.void]  # [layer, slot]
    layers: Ints
    begin: int  # in the file

    @property
    def row_bytes(self) -> int:
        return self.kv.strides[0]

    def write(self, rows: Ints, positions: Ints, slots: Slots) -> None:
        """Copy one token's KV for each of these rows and positions."""
        tokens = positions % self.kv.shape[2]
        self.kv[rows[:, None], self.layers, tokens[:, None]] = self.arena[:, self.space.physical(slots)].T

    def read(self, row: int, positions: Ints, slots: Slots) -> None:
        self.arena[:, self.space.physical(slots)] = self.kv[row][:, positions % self.kv.shape[2]]


@dataclass
class _Batch:
    """A batch as of its last iteration: its sequences, their rows or -1, and their last tokens' positions."""

    names: Ints
    rows: Ints
    last: Ints


class KvCopy:
    """The copy of an arena's KV in a shared file, one row for each sequence that decodes.

    The file begins with the name of each row's sequence and the number of its tokens that are here. That
    number changes after their KV is written, so that nothing in the file of a killed process is half-written.
    A sequence that joins is copied piece by piece behind decoding. From then on an iteration's tokens are
    copied before its last result leaves: what the front end has received of it is here.
    """

    def __init__(self, path: str, arena: Arena, rows: int, longest: int) -> None:
        """`longest` is the most tokens of a sequence."""
        self.path = path
        numbers = _whole_pages(2 * 8 * rows)
        layout, size = [], numbers
        for space, (sight, layers) in zip(arena.spaces, arena.shape.spaces.items(), strict=True):
            # An iteration may be repeated: its token, and the first one that it no longer sees.
            tokens = min(longest, sight.most + 2 if sight.most else space.slab.capacity)
            row_bytes = _whole_pages(layers * tokens * arena.shape.layer_bytes)
            layout.append((space, (rows, layers, tokens), row_bytes, size))
            size += rows * row_bytes
        with open(path, "r+b") as file:  # noqa: PTH123 - no file that has a name
            os.ftruncate(file.fileno(), size)
            self._memory = mmap.mmap(file.fileno(), size)
        whole = np.frombuffer(self._memory, np.int64, 2 * rows)
        self._names, self._tokens = whole.reshape(2, rows)
        token_bytes = arena.shape.layer_bytes
        self._parts = [
            _Part(
                space,
                np.ndarray(
                    shape,
                    f"V{token_bytes}",
                    self._memory,
                    begin,
                    (row_bytes, shape[2] * token_bytes, token_bytes),
                ),
                space.storage.view(torch.uint8).numpy().view(f"V{token_bytes}")[..., 0],
                np.arange(shape[1]),
                begin,
            )
            for space, shape, row_bytes, begin in layout
        ]
        self._slab = arena.spaces[0].slab
        self._piece = max(1, PIECE_BYTES // arena.shape.token_bytes)
        self._rows = {name: row for row, name in enumerate(self._names.tolist()) if name != _FREE}
        self._free = np.flatnonzero(self._names == _FREE).tolist()
        self._batches: dict[int, _Batch] = {}
        self._behind: dict[int, int] = {}  # rows, by name
        self._backed = np.zeros(rows, np.int64)  # tokens that rows have memory for

    def stored(self) -> tuple[Ints, Ints]:
        """Return the sequences that are here, and how many of their first tokens."""
        here = np.flatnonzero(self._names != _FREE)
        return self._names[here], self._tokens[here]

    def read(self, name: int, tokens: int, slots: Collection[Slots]) -> bool:
        """Copy back the KV of a sequence's last tokens, which have these slots; False if it is not here."""
        row = self._rows.get(name)
        if row is None or self._tokens[row] < tokens:
            return False
        for part, own in zip(self._parts, slots, strict=True):
            part.read(row, np.arange(tokens - len(own), tokens), own)
        self._tokens[row] = tokens
        return True

    def append(self, batch: int, names: Ints, newest: Collection[Slots] | None) -> None:
        """Copy the KV that an iteration has added, in the slots `newest` of each space, or where it is."""
        at = self._batches.get(batch)
        if at is None or newest is None or at.names is not names:
            at = self._batches[batch] = self._joined(names)
        else:
            at.last += 1
        if newest is None:
            newest = [self._newest(part.space, names) for part in self._parts]
        self.catch_up()
        here = np.flatnonzero((at.rows >= 0) & (self._tokens[at.rows] >= at.last))
        rows, last = at.rows[here], at.last[here]
        for part, slots in zip(self._parts, newest, strict=True):
            part.write(rows, last, slots[here])
        self._tokens[rows] = last + 1
        for name in names[here].tolist() if self._behind else ():
            self._behind.pop(name, None)

    def _joined(self, names: Ints) -> _Batch:
        every = names.tolist()
        for name in every:
            if name not in self._rows and self._free:
                row = self._rows[name] = self._free.pop()
                self._tokens[row] = 0
                self._names[row] = name
        rows = np.array([self._rows.get(name, -1) for name in every], np.int64)
        last = np.array([self._slab.length(name) - 1 for name in every], np.int64)
        late = np.flatnonzero((rows >= 0) & (self._tokens[rows] < last))
        self._behind |= zip(names[late].tolist(), rows[late].tolist(), strict=True)
        return _Batch(names, rows, last)

    @staticmethod
    def _newest(space: Space, names: Ints) -> Slots:
        return np.array([space.slab.indices(name)[-1] for name in names.tolist()], np.int32)

    def catch_up(self) -> bool:
        """Copy a piece of the sequences that are behind; whether there was one to copy."""
        room = self._piece
        for name, row in self._behind.items():
            # The last token's KV is complete when its iteration ends, and copied then.
            begin, length = int(self._tokens[row]), self._slab.length(name)
            end = min(begin + room, length - 1)
            if begin >= end:
                continue
            for part in self._parts:
                slots = part.space.slab.indices(name)
                first = length - len(slots)
                positions = np.arange(max(begin, first), max(end, first))
                part.write(np.full(len(positions), row), positions, slots[positions - first])
            self._tokens[row] = end
            room -= end - begin
            if not room:
                break
        return room < self._piece

    def pause(self) -> None:
        """Forget what is known of batches, whose iterations were broken off, and not their KV."""
        self._batches.clear()
        self._behind.clear()

    def keep(self, names: Collection[int]) -> None:
        """Release all other sequences: the process before may have been killed before it did."""
        self.release([name for name in self._rows if name not in names])

    def release(self, names: Collection[int]) -> None:
        np.maximum(self._backed, self._tokens, out=self._backed)
        for name in names:
            self._behind.pop(name, None)
            if (row := self._rows.pop(name, None)) is None:
                continue
            self._names[row] = _FREE
            self._free.append(row)
            # Memory that was used is faster the next time, but there is to be no more of it than the arena's.
            if self._backed.sum() <= self._slab.capacity:
                continue
            self._backed[row] = self._tokens[row] = 0
            for part in self._parts:
                with contextlib.suppress(OSError):  # a file system that has no holes
                    self._memory.madvise(mmap.MADV_REMOVE, part.begin + row * part.row_bytes, part.row_bytes)


def _whole_pages(nbytes: int) -> int:
    return -(-nbytes // mmap.PAGESIZE) * mmap.PAGESIZE
