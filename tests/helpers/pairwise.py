"""Products of parameters of which the fast suite runs a sample."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from typing import Any

import pytest

Pair = tuple[int, int, int, int]


def pairwise(**axes: Sequence[Any]) -> pytest.MarkDecorator:
    """Parametrize a test over the product of `axes`, and mark `long` what a pairwise sample does not need.

    In the sample every two values of two axes are together in at least one case. An axis whose name is of the
    form `a__b` sets several parameters, from tuples.
    """
    cases = list(itertools.product(*map(range, map(len, axes.values()))))
    random.Random(0).shuffle(cases)
    missing = set().union(*map(_pairs, cases))
    sample = set()
    while missing:
        best = max(cases, key=lambda case: len(missing & _pairs(case)))
        sample.add(best)
        missing -= _pairs(best)
    names = [name for axis in axes for name in axis.split("__")]
    parameters = []
    for case in sorted(cases):
        values: list[Any] = []
        for (axis, choices), index in zip(axes.items(), case, strict=True):
            values += choices[index] if "__" in axis else [choices[index]]
        parameters.append(pytest.param(*values, marks=[] if case in sample else pytest.mark.long))
    return pytest.mark.parametrize(names, parameters)


def _pairs(case: tuple[int, ...]) -> set[Pair]:
    return {(a, case[a], b, case[b]) for a, b in itertools.combinations(range(len(case)), 2)}
