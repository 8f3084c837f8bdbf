"""A board's page tables, walked at random beside two dictionaries."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from laminabench._sim import H2m2NoRoomError, H2m2Pages

PAGES = 12
FRAMES = {"hbm": 3, "lpddr": 5}
SIDES = st.sampled_from(sorted(FRAMES))
PAGE = st.integers(0, PAGES)  # one more than there are
OTHER = {"hbm": "lpddr", "lpddr": "hbm"}

# A page that is not there, has a frame already or has none, and no free frame.
REFUSALS = (IndexError, ValueError, H2m2NoRoomError)


def a_board() -> H2m2Pages:
    return H2m2Pages(PAGES, FRAMES["hbm"], FRAMES["lpddr"])


def frames_by_page(pages: H2m2Pages, side: str) -> dict[int, int]:
    return {page: frame for page, frame in enumerate(pages.table(side).tolist()) if frame >= 0}


class PagesAgainstModel(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.pages = a_board()
        self.mapped: dict[str, dict[int, int]] = {side: {} for side in FRAMES}

    def has_room(self, side: str, page: int) -> bool:
        return page < PAGES and page not in self.mapped[side] and len(self.mapped[side]) < FRAMES[side]

    def note_new(self, side: str, page: int) -> None:
        frame = frames_by_page(self.pages, side)[page]
        assert frame not in self.mapped[side].values()
        self.mapped[side][page] = frame

    @rule(side=SIDES, page=PAGE)
    def map(self, side: str, page: int) -> None:
        if self.has_room(side, page):
            self.pages.map(side, page)
            self.note_new(side, page)
        else:
            with pytest.raises(REFUSALS):
                self.pages.map(side, page)

    @rule(side=SIDES, page=PAGE)
    def unmap(self, side: str, page: int) -> None:
        if page in self.mapped[side]:
            self.pages.unmap(side, page)
            del self.mapped[side][page]
        else:
            with pytest.raises(REFUSALS):
                self.pages.unmap(side, page)

    @rule(to=SIDES, page=PAGE)
    def move(self, to: str, page: int) -> None:
        if page in self.mapped[OTHER[to]] and self.has_room(to, page):
            self.pages.move(page, to)
            self.note_new(to, page)
            del self.mapped[OTHER[to]][page]
        else:
            with pytest.raises(REFUSALS):
                self.pages.move(page, to)

    @invariant()
    def same_as_model(self) -> None:
        self.pages.check_integrity()
        for side, frames in FRAMES.items():
            assert frames_by_page(self.pages, side) == self.mapped[side]
            assert self.pages.free(side) == frames - len(self.mapped[side])


TestPagesAgainstModel = PagesAgainstModel.TestCase
TestPagesAgainstModel.settings = settings(max_examples=25, stateful_step_count=25, deadline=None)


def test_a_terabyte_of_logical_space_has_four_mebibytes_of_page_table() -> None:
    assert H2m2Pages.table_bytes(2**40, 2**21) == 4 * 2**20
    assert H2m2Pages.table_bytes(2**21 + 1, 2**21) == 16


def test_what_is_refused_names_page_and_side() -> None:
    pages = a_board()
    for page in range(FRAMES["hbm"]):
        pages.map("hbm", page)
    with pytest.raises(H2m2NoRoomError, match=r"^no HBM frame is free$"):
        pages.map("hbm", 7)
    with pytest.raises(ValueError, match=r"^page 7 in the LPDDR table has no frame to give back$"):
        pages.unmap("lpddr", 7)
    with pytest.raises(ValueError, match=r"^page 7 in the HBM table has no frame to move from$"):
        pages.move(7, "lpddr")
    pages.map("lpddr", 0)
    with pytest.raises(ValueError, match="page 0 in the LPDDR table has a frame already"):
        pages.move(0, "lpddr")
    with pytest.raises(IndexError, match=r"^page 12 is outside the logical space of 12 pages$"):
        pages.map("hbm", 12)
    with pytest.raises(ValueError, match=r"^there is no side named ddr$"):
        pages.map("ddr", 1)
