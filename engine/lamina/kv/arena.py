"""The memory of an attention worker: K and V of every token of every request, one slot a token.

There may be more slots than device memory has: pages of them then live in host memory, and what that costs is
counted.
"""

from __future__ import annotations

import contextlib
import ctypes
import math
import mmap
import os
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from lamina import cuda_library, gpu
from lamina._native import Slab
from lamina.errors import CodedError
from lamina.kv.stored import KvDtype, Rounded, number_bytes, rounded, scale_bytes, widened
from lamina.operators import Sight

# A larger factor of host memory is taken for a typing error.
MOST_OVERCOMMIT = 1000
PAGE_TOKENS = 64
# Lets managed memory be larger than what a GPU has free. Not everywhere is that allowed: it may hang a GPU.
BEYOND_FREE = "LAMINA_MANAGED_BEYOND_FREE"
# Python has no name for it.
_MADV_WIPEONFORK = 18
_ALL = slice(None)


class ArenaError(CodedError, ValueError):
    """An arena that cannot be made; the message says why and what to do."""


@dataclass(frozen=True)
class ArenaShape:
    """The shape of an arena: K and V of every layer, for the KV heads of this worker.

    Layers with the same window form a space, in which a sequence has slots only for tokens in that window.
    """

    layers: int
    kv_heads: int
    head_dim: int
    dtype: torch.dtype
    latent: int = 0  # as in AttentionOp: values are the first `latent` numbers of keys
    sights: tuple[Sight, ...] = ()  # by layer; empty: all tokens are visible
    kv_dtype: KvDtype = "auto"  # storage type of numbers, which arrive as `dtype`

    @property
    def vectors(self) -> int:
        """Number of vectors that a KV head stores of a token and layer: key and value, or both in one."""
        return 1 if self.latent else 2

    @property
    def stored(self) -> torch.dtype:
        """Dtype of the arena's storage; codes of fp8 are bytes there."""
        return self.dtype if self.kv_dtype == "auto" else torch.int8

    @property
    def numbers(self) -> int:
        """Number of values of a token, in one layer."""
        return self.vectors * self.kv_heads * self.head_dim

    @property
    def layer_bytes(self) -> int:
        """Bytes of a token in one layer, as stored: its numbers, and behind them what they are scaled by."""
        scales = self.vectors * self.kv_heads * scale_bytes(self.kv_dtype)
        return self.numbers * number_bytes(self.kv_dtype, self.dtype) + scales

    @property
    def arriving_bytes(self) -> int:
        """Bytes of a token in one layer, before it is stored."""
        return self.numbers * self.dtype.itemsize

    @property
    def token_bytes(self) -> int:
        """Bytes of a token that all layers keep."""
        return self.layers * self.layer_bytes

    @property
    def spaces(self) -> Mapping[Sight, int]:
        """Number of layers in each space."""
        return Counter(self.sights) or {Sight(): self.layers}

    def nbytes(self, tokens: int, sequences: int, overcommit: float = 0.0) -> int:
        """Return the bytes of an arena for this many tokens and sequences, including host memory."""
        whole, limits = capacity(tokens, overcommit), (slots_of(sight, sequences) for sight in self.spaces)
        return sum(
            layers * self.layer_bytes * (limit if 0 < limit < tokens else whole)
            for limit, layers in zip(limits, self.spaces.values(), strict=True)
        )

    def tokens_in(self, nbytes: int, sequences: int = 0, most: int = 0) -> int:
        """Return how many tokens of these sequences fit in `nbytes`; `most` if all layers have windows."""
        growing = self.token_bytes  # bytes per further token
        limits = {sight: slots_of(sight, sequences) for sight in self.spaces}
        for sight in sorted(filter(limits.__getitem__, limits), key=limits.__getitem__):
            if nbytes < limits[sight] * growing:
                break
            nbytes -= limits[sight] * self.spaces[sight] * self.layer_bytes
            growing -= self.spaces[sight] * self.layer_bytes
        return nbytes // growing if growing else most


def slots_of(sight: Sight, sequences: int) -> int:
    """Return the most slots of this many sequences; 0 without a limit.

    One more per sequence than its window, since the slab allocates a slot before it frees another.
    """
    return sequences * (sight.most + 1) if sight.most else 0


@dataclass(frozen=True)
class Pages:
    """Pages of slots on the device, and in host memory."""

    device: int
    host: int

    @property
    def slots(self) -> int:
        return (self.device + self.host) * PAGE_TOKENS


def capacity(tokens: int, overcommit: float) -> int:
    """Return the tokens of an arena that has room for so many on its device."""
    return Pager.pages(tokens, overcommit).slots if overcommit else tokens


@dataclass(frozen=True)
class Faults:
    """Page faults so far, in pages."""

    moved: int = 0  # moved to the device in exchange for another page
    in_place: int = 0  # read from host memory, since running iterations needed all pages on the device

    def __add__(self, other: Faults) -> Faults:
        return Faults(self.moved + other.moved, self.in_place + other.in_place)


class Pager:
    """Mapping of slots to physical places, with paging between device and host memory.

    Before an iteration reads its slots, its pages in host memory are exchanged with pages it does not read,
    least recently used first. Pages that other running iterations read stay in place. If more pages are read
    than the device has, the rest is read from host memory, as a GPU reads managed memory over the bus. On a
    CPU both are the same memory: it shows that tokens are correct and counts a device's page faults.
    """

    def __init__(self, pages: Pages, storage: torch.Tensor) -> None:
        self._pages = pages
        self._storage = storage  # [layer, slot, ...]
        total = pages.device + pages.host
        self._frame_of = np.arange(total, dtype=np.int32)  # by page; the device has the first frames
        self._read_at = np.zeros(total, dtype=np.int64)  # by page: the clock when it was read last
        self._clock = 0
        self._under_way: dict[int, NDArray[np.bool_]] = {}  # by batch: the pages that its iteration reads
        self.faults = Faults()

    @staticmethod
    def pages(tokens: int, overcommit: float) -> Pages:
        """Return the pages for `tokens` on the device and for a share of as many in host memory.

        Rounded down to the available memory, but at least one page of each.
        """
        device, host = tokens // PAGE_TOKENS, math.floor(tokens * overcommit / PAGE_TOKENS)
        return Pages(max(device, 1), max(host, 1))

    def physical(self, slots: NDArray[np.int32]) -> NDArray[np.int32]:
        """Return the physical places of slots."""
        page, place = np.divmod(slots, np.int32(PAGE_TOKENS))
        where: NDArray[np.int32] = self._frame_of[page] * np.int32(PAGE_TOKENS) + place
        return where

    def fetch(self, slots: NDArray[np.int32], batch: int = 0) -> NDArray[np.int32]:
        """Move the pages that a batch's iteration reads to the device, as far as they fit.

        Returns the physical slots, valid until `ended()`.
        """
        self._clock += 1
        self.ended(batch)
        fixed = np.zeros(self._frame_of.size, np.bool_)
        for pages in self._under_way.values():
            fixed |= pages
        read = np.bincount(slots // np.int32(PAGE_TOKENS), minlength=self._frame_of.size) > 0
        self._under_way[batch] = read
        self._read_at[read] = self._clock
        on_host = self._frame_of >= self._pages.device
        faulted = int(np.count_nonzero(read & on_host))
        if faulted:
            wanted = np.flatnonzero(read & on_host & ~fixed)
            spare = np.flatnonzero(~(read | on_host | fixed))
            spare = spare[np.argsort(self._read_at[spare], kind="stable")]
            moving = min(wanted.size, spare.size)
            for page, victim in zip(wanted[:moving], spare[:moving], strict=True):
                self._exchange(page, victim)
            self.faults += Faults(moving, faulted - moving)
        return self.physical(slots)

    def ended(self, batch: int) -> None:
        """Mark a batch's iteration as finished or cancelled."""
        self._under_way.pop(batch, None)

    def _exchange(self, page: np.intp, other: np.intp) -> None:
        here, there = (self._frame(self._frame_of[which]) for which in (page, other))
        stored = here.clone()
        here.copy_(there)
        there.copy_(stored)
        self._frame_of[[page, other]] = self._frame_of[[other, page]]

    def _frame(self, frame: np.int32) -> torch.Tensor:
        start = int(frame) * PAGE_TOKENS
        return self._storage[:, start : start + PAGE_TOKENS]

    def check_integrity(self) -> None:
        """Raise RuntimeError if two pages are in one place."""
        if np.unique(self._frame_of).size != self._frame_of.size:
            raise RuntimeError("pager: two pages have the same frame")


class Space:
    """The slots of layers with the same window.

    The layout is `[layer][slot][K or V][kv_head][dim]`, followed for int8 by scales `[K or V][kv_head]`. In
    any order of slots, all heads of a token are contiguous. If values are part of keys, only keys are stored.
    """

    def __init__(
        self,
        shape: ArenaShape,
        sight: Sight,
        slots: int,
        pages: Pages | None = None,
        device: torch.device | str = "cpu",
    ) -> None:
        on_host = torch.device(device).type == "cpu"
        slots = pages.slots if pages else slots
        size = (shape.spaces[sight], slots, shape.layer_bytes // shape.stored.itemsize)
        self._shape = shape
        if on_host:
            self.storage = _zeros(size, shape.stored)
        elif pages:
            self.storage = _managed_zeros(size, shape.stored, torch.device(device))
        else:
            self.storage = torch.zeros(size, dtype=shape.stored, device=device)
        self.slab = Slab(slots, *sight)
        # On a GPU the driver pages managed memory; on a CPU the pager does.
        self.pager = Pager(pages, self.storage) if pages and on_host else None

    def physical(self, slots: NDArray[np.int32]) -> NDArray[np.int32]:
        """Return the physical places of slots."""
        return self.pager.physical(slots) if self.pager else np.array(slots)

    def fill(self) -> None:
        # A few random tokens, repeated: they only have to be finite and different.
        shape, tokens = self._shape, self.storage.flatten(0, 1)
        count = min(len(tokens), (1 << 20) // shape.numbers + 1)
        size = (count, shape.vectors, shape.kv_heads, shape.head_dim)
        drawn = torch.randn(size, generator=torch.Generator().manual_seed(0)).to(tokens.device, shape.dtype)
        if shape.kv_dtype == "auto":
            rows = drawn.flatten(1)
        else:
            numbers, scales = rounded(drawn, shape.kv_dtype)
            parts = (numbers,) if scales is None else (numbers, scales.view(torch.int8))
            rows = torch.cat([part.flatten(1) for part in parts], 1)
        for start in range(0, len(tokens), count):
            part = tokens[start : start + count]
            part.copy_(rows[: len(part)])

    def check_integrity(self) -> None:
        self.slab.check_integrity()
        if self.pager:
            self.pager.check_integrity()


class Arena:
    """KV memory for `tokens` tokens, allocated by slot; sequences may share slots after a fork.

    It has a space for each window of its layers, and sequences have slots in all spaces. A windowed space has
    only the slots that `sequences` sequences need at most.

    `overcommit` adds that share of slots in host memory, paged as `Pager` and, on a GPU, `_managed_zeros`
    describe. A space smaller than `tokens` is completely on the device.
    """

    def __init__(
        self,
        shape: ArenaShape,
        tokens: int,
        *,
        sequences: int = 0,
        overcommit: float = 0.0,
        device: torch.device | str = "cpu",
    ) -> None:
        if tokens < 1:
            raise ArenaError(
                "arena-empty", f"an arena of {tokens} tokens holds nothing: give it memory for one or more"
            )
        if not 0 <= overcommit <= MOST_OVERCOMMIT:
            raise ArenaError(
                "arena-overcommit", f"overcommit {overcommit} is no share: give 0 to {MOST_OVERCOMMIT:g}"
            )
        self.shape, self.device = shape, torch.device(device)
        pages = Pager.pages(tokens, overcommit) if overcommit else None
        self.capacity = capacity(tokens, overcommit)  # in tokens, including host memory
        self.spaces: list[Space] = []
        for sight in shape.spaces:
            limit = slots_of(sight, sequences) or tokens
            least = min(limit, tokens)
            self.spaces.append(Space(shape, sight, least, pages if limit >= tokens else None, device))
        # By layer: its space, and its index there.
        layers_of: Counter[Sight] = Counter()
        self._places: list[tuple[int, int]] = []
        for sight in shape.sights or (Sight(),) * shape.layers:
            self._places.append((list(shape.spaces).index(sight), layers_of[sight]))
            layers_of[sight] += 1

    @property
    def used(self) -> int:
        """Number of allocated slots in all spaces."""
        return sum(space.slab.used for space in self.spaces)

    @property
    def faults(self) -> Faults:
        """Page faults in all spaces; on a GPU only the driver's profiler counts them."""
        return sum((space.pager.faults for space in self.spaces if space.pager), Faults())

    def space_of(self, layer: int) -> int:
        """Return the index in `spaces` of a layer."""
        return self._places[layer][0]

    def keys(self, layer: int) -> torch.Tensor:
        """Return a view of a layer's K by physical slot, as stored: [slots, kv_heads, head_dim]."""
        return self._numbers(layer)[:, 0]

    def values(self, layer: int) -> torch.Tensor:
        """Return a view of a layer's V by physical slot: [slots, kv_heads, head_dim or `latent`]."""
        if self.shape.latent:
            return self.keys(layer)[..., : self.shape.latent]
        return self._numbers(layer)[:, 1]

    def scales(self, layer: int) -> tuple[torch.Tensor, ...]:
        """Return views of a layer's scales of keys and values, each [slots, kv_heads]; none unless int8."""
        if self.shape.kv_dtype != "int8":
            return ()
        scales = self._stored(layer)[:, self.shape.numbers :].view(torch.float32)
        each = scales.view(len(scales), self.shape.vectors, self.shape.kv_heads).unbind(1)
        return each[0], each[-1]

    def _numbers(self, layer: int) -> torch.Tensor:
        shape = self.shape
        numbers = self._stored(layer)[:, : shape.numbers]
        return numbers.view(len(numbers), shape.vectors, shape.kv_heads, shape.head_dim)

    def _stored(self, layer: int) -> torch.Tensor:
        space, place = self._places[layer]
        return self.spaces[space].storage[place]

    def write(self, layer: int, slots: NDArray[np.int32], *vectors: torch.Tensor) -> None:
        """Store K and V of many tokens of a layer, each [tokens, kv_heads, head_dim], in their slots."""
        self.store(layer, self._rows(layer, slots), vectors)

    def store(
        self, layer: int, rows: torch.Tensor, vectors: Sequence[torch.Tensor], heads: slice = _ALL
    ) -> None:
        """Store K and V of some KV heads of a layer, by physical slot."""
        shape, scales = self.shape, self.scales(layer)
        for at, (numbers, came) in enumerate(zip(self._numbers(layer).unbind(1), vectors, strict=True)):
            if shape.kv_dtype == "auto":
                numbers[:, heads].index_copy_(0, rows, came)
                continue
            stored = rounded(came, shape.kv_dtype)
            numbers[:, heads].index_copy_(0, rows, stored.bytes)
            if stored.scales is not None:
                scales[at][:, heads].index_copy_(0, rows, stored.scales)

    def read(self, layer: int, request: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return a copy of a request's K and V in a layer, as attention reads them: for tests."""
        rows = self._rows(layer, self.spaces[self.space_of(layer)].slab.indices(request))
        shape, scales = self.shape, self.scales(layer) or (None, None)
        both = []
        for numbers, of_slots in zip((self.keys(layer), self.values(layer)), scales, strict=True):
            here = numbers.index_select(0, rows)
            if shape.kv_dtype != "auto":
                stored = Rounded(here, None if of_slots is None else of_slots.index_select(0, rows))
                here = widened(stored, shape.dtype)
            both.append(here)
        return both[0], both[1]

    def _rows(self, layer: int, slots: NDArray[np.int32]) -> torch.Tensor:
        where = self.spaces[self.space_of(layer)].physical(slots)
        return gpu.put(torch.from_numpy(where).to(torch.int64), self.device)

    def fill(self) -> None:
        """Fill the arena with small random numbers, as KV for requests whose prompts are not computed."""
        for space in self.spaces:
            space.fill()

    def ended(self, batch: int) -> None:
        """Mark a batch's iteration as finished."""
        for space in self.spaces:
            if space.pager:
                space.pager.ended(batch)

    def allocate(self, name: int, tokens: int) -> tuple[NDArray[np.int32], ...]:
        """Allocate slots for a sequence's next tokens; in each space for the last ones within its window."""
        return tuple(space.slab.allocate(name, tokens) for space in self.spaces)

    def extend(self, names: NDArray[np.int64]) -> tuple[NDArray[np.int32], ...]:
        """Allocate a slot for the next token of each sequence; return them by space."""
        return tuple(space.slab.extend(names) for space in self.spaces)

    def fork(self, parent: int, child: int, tokens: int | None = None) -> None:
        """Add a sequence that shares the first tokens of another one, or all."""
        for space in self.spaces:
            space.slab.fork(parent, child, tokens)

    def release(self, names: NDArray[np.int64]) -> None:
        for space in self.spaces:
            space.slab.release(names)

    def check_integrity(self) -> None:
        """Recount everything; raise RuntimeError for the first inconsistency."""
        for space in self.spaces:
            space.check_integrity()


def _zeros(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """Return zeros in huge pages: index lists jump between tokens, and small pages would miss the TLB.

    The memory is private, since most systems have no huge pages for shared memory. Forked processes see
    zeros; otherwise pages would be copied whenever this process writes KV.
    """
    nbytes = math.prod(shape) * dtype.itemsize
    try:
        memory = mmap.mmap(-1, nbytes, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except (OSError, ValueError, OverflowError) as error:
        raise ArenaError(
            "arena-too-large",
            f"an arena of {nbytes / 1e9:,.1f} GB cannot be allocated ({error}): ask for fewer tokens",
        ) from error
    if sys.platform == "linux":
        for advice in (mmap.MADV_HUGEPAGE, _MADV_WIPEONFORK):
            with contextlib.suppress(OSError):  # only slower without it
                memory.madvise(advice)
    return torch.frombuffer(memory, dtype=dtype).view(shape)


class _Managed:
    """Managed memory with the interface by which torch adopts foreign memory."""

    def __init__(self, nbytes: int) -> None:
        self._address = ctypes.c_void_p()  # before the call, which may fail
        cuda_library.call("allocate_managed", nbytes, ctypes.byref(self._address))
        self.__cuda_array_interface__ = {
            "shape": (nbytes,),
            "typestr": "|u1",
            "data": (self._address.value, False),
            "version": 3,
        }

    def __del__(self) -> None:
        if self._address:
            cuda_library.call("free_managed", self._address)


def _managed_zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Allocate zeros that the driver moves to the device when they are used, and away when others need the
    room.

    Not verified on hardware. The driver counts its faults where only its profiler sees them: they are not
    counted here.
    """
    nbytes = math.prod(shape) * dtype.itemsize
    require_room_for_managed(nbytes, int(torch.cuda.mem_get_info(device)[0]))
    with torch.cuda.device(device):
        # The tensor keeps what it was made of alive, and that frees the memory.
        flat = torch.as_tensor(_Managed(nbytes), device=device)
        return flat.zero_().view(dtype).view(shape)


def require_room_for_managed(nbytes: int, free: int) -> None:
    """Raise an ArenaError for more managed memory than a GPU has free, unless the environment allows it."""
    if nbytes > free and os.environ.get(BEYOND_FREE) != "1":
        raise ArenaError(
            "arena-managed-beyond-free",
            f"{nbytes / 1e9:,.1f} GB of managed memory may hang a GPU with {free / 1e9:,.1f} GB free: ask "
            f"for fewer KV tokens or less overcommit, or set {BEYOND_FREE}=1 where that is allowed",
        )
