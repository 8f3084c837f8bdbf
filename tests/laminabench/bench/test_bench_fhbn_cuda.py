"""The channel's GPU benchmark says what it needs, and measures every way where it can."""

from __future__ import annotations

import pytest
import torch

from laminabench.bench import fhbn_cuda
from laminabench.errors import UserError


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device here")
def test_without_a_gpu_it_says_so_in_a_sentence() -> None:
    with pytest.raises(UserError, match=r"^this benchmark needs a GPU: [^\n]+$"):
        fhbn_cuda.run()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device for torch here")
def test_a_row_has_every_way() -> None:
    empty, some = fhbn_cuda.run(sizes=(0, 5000), rounds=3)["rows"]
    assert set(empty["one_way_s"]) == {"channel"}
    assert set(some["one_way_s"]) == {"channel", "staged"}
    ways = {"launched_ahead", "graph_ahead", "launched_after", "graph_after"}
    assert set(empty["round_trip_s"]) == ways
    assert set(some["round_trip_s"]) == ways | {"torch"}
