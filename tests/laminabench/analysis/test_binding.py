"""What binds is memory where it was full, and the longest part of a token's time."""

from __future__ import annotations

import pytest

from laminabench.analysis.binding import Binding


@pytest.mark.parametrize(("share", "memory"), [(0.999, True), (0.5, False), (None, False)])
def test_memory_binds_where_it_was_full(share, memory):
    result = Binding(share, "attention", 0.4)
    assert result.memory is memory
    assert str(result).startswith("KV memory") is memory
    assert "40%" in str(result)
