"""A board as the simulator needs it: what its times are worked out from, at every boundary anew."""

from __future__ import annotations

from dataclasses import dataclass

from laminabench import _sim
from laminabench.catalog.boards import Board
from laminabench.catalog.models import ModelShape
from laminabench.errors import UserError
from laminabench.sim.h2m2 import shape_of
from laminabench.sim.spec import LONGEST_S, TICKS_PER_S, ticks


@dataclass(frozen=True, slots=True)
class BoardTiming:
    """Which board serves which model by which policy; host and recomputing in seconds, as in `Timing`."""

    board: Board
    model: ModelShape
    mapping: str
    # TLB misses are added to the times of policies that map.
    translated: bool = True
    # The paper leaves the LM head out.
    lm_head: bool = True
    # flexgen's: of weights and of KV, what is on the HBM side.
    shares: tuple[float, float] = (0.0, 0.0)
    # What moves between the sides passes behind the last iteration, as far as LPDDR has time there.
    overlap_moves: bool = False
    host_fixed: float = 0.0
    host_per_request: float = 0.0
    host_async: bool = False
    recompute_per_token: float = 0.0

    def tables(self) -> dict[str, object]:
        """As the native module takes it."""
        self.check()
        return {
            "board": self.board.native(),
            "shape": shape_of(self.model, lm_head=self.lm_head),
            "policy": self.mapping,
            "translated": self.translated,
            "shares": self.shares,
            "overlap_moves": self.overlap_moves,
            "host_fixed": int(ticks(self.host_fixed)),
            "host_per_request": self.host_per_request * TICKS_PER_S,
            "host_async": self.host_async,
            "recompute_per_token": self.recompute_per_token * TICKS_PER_S,
        }

    def kv_room(self) -> tuple[int, int]:
        """KV tokens that always fit beside the weights, 0 if those do not; and how many come at once."""
        return _sim.board_kv(self.tables())

    def check(self) -> None:
        """A UserError if a time is no time: a coefficient somewhere is wrong."""
        for name in ("host_fixed", "host_per_request", "recompute_per_token"):
            seconds = getattr(self, name)
            if not 0 <= seconds <= LONGEST_S:
                raise UserError(
                    "costs-impossible-time",
                    f"the costs give {seconds:g} s for {name.replace('_', ' ')}; "
                    "check the cost set's coefficients and the board",
                )
