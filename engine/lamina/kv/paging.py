"""More slots than device memory has: pages of them live in host memory, and faults are counted."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

PAGE_TOKENS = 64


@dataclass(frozen=True)
class Pages:
    """How many pages of slots there are on the device, and beside it."""

    device: int
    host: int

    @property
    def slots(self) -> int:
        return (self.device + self.host) * PAGE_TOKENS


@dataclass
class Faults:
    """What paging has cost so far, in pages."""

    moved: int = 0  # brought to the device, for which another page went to the host
    in_place: int = 0  # read from host memory, because an iteration needed all of the device's


class Pager:
    """Maps the slots that the slab hands out to where they are, and keeps what is being read on the device.

    Before an iteration reads its slots, those of its pages that are in host memory change places with pages
    that it does not read, the longest unread first. When it reads more pages than the device has, the rest is
    read where it is, as a GPU reads managed memory over the bus. On a CPU both halves are the same memory:
    what can be seen there is that tokens stay right, and how often a device of that size would have faulted.
    """

    def __init__(self, pages: Pages, storage: torch.Tensor) -> None:
        self._pages = pages
        self._storage = storage  # [layer, slot, ...]
        total = pages.device + pages.host
        self._frame_of = np.arange(total, dtype=np.int32)  # by page; the first frames are the device's
        self._read_at = np.zeros(total, dtype=np.int64)  # by page: the clock when it was read last
        self._clock = 0
        self.faults = Faults()

    @staticmethod
    def pages(tokens: int, overcommit: float) -> Pages:
        """Whole pages for `tokens` on the device and a share of as many beside it.

        Rounded down, because that is the memory there is for them; at least one page of either.
        """
        device, host = tokens // PAGE_TOKENS, math.floor(tokens * overcommit / PAGE_TOKENS)
        return Pages(max(device, 1), max(host, 1))

    def physical(self, slots: NDArray[np.int32]) -> NDArray[np.int32]:
        """Where slots are now."""
        page, place = np.divmod(slots, np.int32(PAGE_TOKENS))
        where: NDArray[np.int32] = self._frame_of[page] * np.int32(PAGE_TOKENS) + place
        return where

    def fetch(self, slots: NDArray[np.int32]) -> NDArray[np.int32]:
        """Bring what an iteration reads to the device, as far as it fits; where its slots are then."""
        self._clock += 1
        counts = np.bincount(slots // np.int32(PAGE_TOKENS), minlength=self._frame_of.size)
        self._read_at[counts > 0] = self._clock
        on_host = self._frame_of >= self._pages.device
        wanted = np.flatnonzero((counts > 0) & on_host)
        if wanted.size:
            spare = np.flatnonzero((counts == 0) & ~on_host)
            spare = spare[np.argsort(self._read_at[spare], kind="stable")]
            moving = min(wanted.size, spare.size)
            for page, victim in zip(wanted[:moving], spare[:moving], strict=True):
                self._exchange(page, victim)
            self.faults.moved += moving
            self.faults.in_place += int(wanted.size) - moving
        return self.physical(slots)

    def _exchange(self, page: np.intp, other: np.intp) -> None:
        here, there = (self._frame(self._frame_of[which]) for which in (page, other))
        kept = here.clone()
        here.copy_(there)
        there.copy_(kept)
        self._frame_of[[page, other]] = self._frame_of[[other, page]]

    def _frame(self, frame: np.int32) -> torch.Tensor:
        start = int(frame) * PAGE_TOKENS
        return self._storage[:, start : start + PAGE_TOKENS]

    def check_integrity(self) -> None:
        """Raise RuntimeError when two pages are in one place."""
        if np.unique(self._frame_of).size != self._frame_of.size:
            raise RuntimeError("pager: two pages have the same frame")
