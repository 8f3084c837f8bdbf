"""A small deterministic minimiser (Nelder-Mead): fits of five coefficients need no scipy."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

Vector = NDArray[np.float64]
Loss = Callable[[Vector], float]


def minimise(loss: Loss, start: Vector, *, rounds: int = 6, steps: int = 400, size: float = 0.4) -> Vector:
    """The best point found from `start`; each round restarts around it, against simplexes that collapsed."""
    best = np.asarray(start, np.float64)
    for turn in range(rounds):
        best = _nelder_mead(loss, best, steps, size * 0.5**turn)
    return best


def _nelder_mead(loss: Loss, start: Vector, steps: int, size: float) -> Vector:
    points = np.vstack([start, start + size * np.eye(len(start))])
    values = np.array([loss(point) for point in points])
    for _ in range(steps):
        order = np.argsort(values, kind="stable")
        points, values = points[order], values[order]
        if values[-1] - values[0] < 1e-9:
            break
        centre, worst = points[:-1].mean(axis=0), points[-1]
        reflected = centre + (centre - worst)
        value = loss(reflected)
        if value < values[0]:
            stretched = centre + 2 * (centre - worst)
            further = loss(stretched)
            points[-1], values[-1] = (stretched, further) if further < value else (reflected, value)
            continue
        if value < values[-2]:
            points[-1], values[-1] = reflected, value
            continue
        # Contract towards the better of the reflected and the worst point.
        anchor, bound = (reflected, value) if value < values[-1] else (worst, float(values[-1]))
        contracted = centre + 0.5 * (anchor - centre)
        value = loss(contracted)
        if value < bound:
            points[-1], values[-1] = contracted, value
        else:
            points[1:] = points[0] + 0.5 * (points[1:] - points[0])
            values[1:] = [loss(point) for point in points[1:]]
    found: Vector = points[int(np.argmin(values))]
    return found
