"""An iteration's times on a board, for the simulator and for a plan's bounds."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import numpy as np

from laminabench import _sim
from laminabench.catalog.models import ModelShape
from laminabench.sim.spec import LONGEST_S, ComputedTiming, Float64, ServerTiming, serving_costs
from laminabench.systems.modelled.h2m2.boards import Board
from laminabench.util.errors import UserError

ELEMENT_BYTES = 1  # INT8, weights and KV, whatever number format a model is published in

# In the order of csrc/sim/h2m2/policy.hpp.
POLICIES = (
    *("greedy", "oracle", "flexgen", "naive", "q-major", "a-major", "f-major"),
    *("lpddr", "hierarchical", "8-hbm"),
)
# Policies that do not run an iteration on a board's two sides as they are.
_OTHER_DEVICES = ("8-hbm",)


def shape_of(model: ModelShape, *, lm_head: bool = False) -> dict[str, int]:
    """Return the model as the C++ code takes it: INT8 whatever its number format, without embedding."""
    model.require_plain("h2m2")
    return {
        "layers": model.layers,
        "hidden": model.hidden,
        "heads": model.heads,
        "kv_heads": model.kv_heads,
        "head_dim": model.head_dim,
        "intermediate": model.intermediate,
        "ff_matrices": 3 if model.gated_mlp else 2,
        "vocab": model.vocab if lm_head else 0,
        "element_bytes": ELEMENT_BYTES,
    }


@dataclass(frozen=True, slots=True)
class BoardTiming(ComputedTiming):
    """A board, the model that it serves and the mapping policy; host and recomputing in seconds."""

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
    server: ServerTiming = field(default_factory=ServerTiming)
    recompute_per_token: float = 0.0

    def native(self) -> _sim.BoardCosts:
        """Convert to what the simulator takes."""
        self.check()
        shape = shape_of(self.model, lm_head=self.lm_head)
        costs = _sim.BoardCosts(self.board.native(), shape, self.mapping, self.shares)
        costs.translated = self.translated
        costs.overlap_moves = self.overlap_moves
        costs.serving = serving_costs(self)
        return costs

    def kv_room(self) -> tuple[int, int]:
        """Return the KV tokens that always fit, 0 if the weights do not, and how many come at once."""
        return _sim.board_kv(self.native())

    def check(self) -> None:
        """Raise a UserError if a time is no time: a coefficient somewhere is wrong."""
        for name in ("host_fixed", "host_per_request", "recompute_per_token"):
            seconds = getattr(self, name)
            if not 0 <= seconds <= LONGEST_S:
                raise UserError(
                    "costs-impossible-time",
                    f"the costs give {seconds:g} s for {name.replace('_', ' ')}; "
                    "check the cost set's coefficients and the board",
                )

    def least(self, most: int, copies: int) -> tuple[Float64, float] | None:
        """Return what the paper's units and memories cannot do better: see `ComputedTiming`.

        Boards are not in step, but sums over all boards' iterations, divided by their number, are these.
        """
        if self.mapping in _OTHER_DEVICES:
            return None
        batch = np.arange(1, most + 1) / copies
        host = 0.0 if self.host_async else self.host_fixed + batch * self.host_per_request
        launches = self.model.layers * self.board.kernels * self.board.launch_s
        seconds = host + launches + _weights_s(self.board, self.model, batch)
        return seconds, self.model.layers * _kv_token_s(self.board, self.model) / copies

    def improved(self, factor: float) -> Iterator[tuple[str, BoardTiming, int]]:
        """Yield the timing with each part of the board better in turn."""
        board = self.board
        for title, side in (("HBM", "hbm"), ("LPDDR", "lpddr")):
            memory = getattr(board, side)
            for what, name in (("capacity", "capacity_bytes"), ("bandwidth", "bandwidth_bytes_per_s")):
                better = replace(memory, **{name: getattr(memory, name) * factor})
                yield self._on(f"{title} {what}", replace(board, **{side: better}))
        yield self._on("compute of the chips", replace(board, clock_hz=board.clock_hz * factor))
        yield self._on(
            "link between the sides", replace(board, link_bytes_per_s=board.link_bytes_per_s * factor)
        )

    def _on(self, resource: str, board: Board) -> tuple[str, BoardTiming, int]:
        changed = replace(self, board=board)
        return resource, changed, changed.kv_room()[0]

    def faster_host(self, factor: float) -> BoardTiming:
        """Return the timing with a host that is that many times faster."""
        fixed, per_request = self.host_fixed / factor, self.host_per_request / factor
        return replace(self, host_fixed=fixed, host_per_request=per_request)


def _weights_s(board: Board, model: ModelShape, batch: Float64) -> Float64:
    """Return the time of all matrices once: the slower of reading and of multiplying, each at its best."""
    bandwidth, cores, width = _bytes_per_s(board), _cores(board), ELEMENT_BYTES
    load = np.maximum(board.mm_size, batch) if board.weight_load == "behind" else board.mm_size + batch
    total = np.zeros_like(batch)
    matrices = [(model.layers, gemm.n * gemm.k) for gemm in model.layer_gemms(1)]
    for times, elements in [*matrices, (1, model.vocab * model.hidden)]:
        computing = elements / board.mm_size**2 / cores * load / board.clock_hz
        total += times * np.maximum(computing, elements * width / bandwidth)
    return total


def _kv_token_s(board: Board, model: ModelShape) -> float:
    """Return a KV token's time in a layer: the slowest of reading it, multiplying by it, and its softmax."""
    read = 2 * model.kv_size * ELEMENT_BYTES * (model.group if board.reread_kv else 1)
    products = 2 * model.heads / board.mv_rows
    softmax = 3 * model.heads / board.vector_width
    return max(read / _bytes_per_s(board), max(products, softmax) / _cores(board) / board.clock_hz)


def _bytes_per_s(board: Board) -> float:
    return (board.hbm.bandwidth_bytes_per_s + board.lpddr.bandwidth_bytes_per_s) * board.dram_efficiency


def _cores(board: Board) -> int:
    return board.cores * (board.hbm.chips + board.lpddr.chips)
