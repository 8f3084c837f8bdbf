"""Long prompts alongside decoding requests, in short: no request is lost, no iteration computes too much."""

from __future__ import annotations

import pytest

from experiments.long_prompts import Sizes, long_prompts

SIZES = Sizes(decoding=4, one=1600, many=3, each=600, alone=10, made=20)


@pytest.mark.long(but=["2"])
@pytest.mark.parametrize("seed", range(4))
def test_no_request_is_lost(seed: int) -> None:
    tally = long_prompts([seed], SIZES)
    assert (tally.attempts, tally.survived, tally.failures) == (1, 1, [])
    (most,) = [value for name, value in tally.facts.items() if name.endswith("prompt tokens of an iteration")]
    assert most == (0 if seed % 2 else 512)
    assert all(value > 0 for name, value in tally.facts.items() if "TBT" in name)
