"""The papers' figures, of the beginnings of traces, each computed once."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import pytest

from laminabench.papers.claims import Claim
from laminabench.papers.context import Context, saved_results
from laminabench.papers.paper import Made, make


@pytest.fixture(scope="session")
def context() -> Context:
    return Context(saved_results(), num_requests=200, offline=True)


@pytest.fixture(scope="session")
def made(context: Context) -> Callable[[str], Made]:
    return cache(lambda name: make(name, context))


@pytest.fixture(scope="session")
def claim(made: Callable[[str], Made]) -> Callable[[str, str], Claim]:
    """Return one of a figure's claims by how it begins."""
    return lambda name, words: next(each for each in made(name).claims if each.what.startswith(words))
