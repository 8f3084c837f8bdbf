"""What a model's average would be if another value were assumed where the paper gives none."""

from __future__ import annotations

from laminabench.catalog.boards import Board
from laminabench.figures.papers.h2m2_ground import LPDDR_ONLY, Case, Way, plan_of, points_of


def mean_speed_up_assuming(way: Way, case: Case, assumed: Board) -> float:
    """Over LPDDR alone, of which the same is assumed; the boards of table 4 have a fixed baseline instead."""
    each = [
        plan_of(LPDDR_ONLY, case.model, point, assumed).iteration_s
        / plan_of(way, case.model, point, assumed).iteration_s
        for point in points_of(case)
    ]
    return sum(each) / len(each)
