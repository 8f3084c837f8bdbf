"""Messages are the same on both sides of the wire."""

from __future__ import annotations

import numpy as np
import pytest

from lamina.cluster.messages import ChosenTokens, decode, encode
from lamina.pipeline.batch_rows import Revealed


@pytest.mark.parametrize("most", [0, 1, 3], ids=lambda most: f"{most}-likeliest")
@pytest.mark.parametrize("rows", [0, 2])
def test_tables_without_rows_or_columns_arrive(rows: int, most: int) -> None:
    """With `logprobs: 0` a row has the chosen token's log-probability and no others."""
    table = np.arange(rows * most).reshape(rows, most)
    logs = np.zeros((rows, most), np.float32)
    revealed = Revealed(np.arange(rows), np.zeros(rows, np.float32), table, logs)
    read = decode(encode(ChosenTokens(0, np.arange(rows), revealed)), "model 0")
    assert isinstance(read, ChosenTokens)
    assert read.revealed is not None
    assert read.revealed.tokens.shape == read.revealed.logs.shape == (rows, most)
    assert read.revealed.tokens.tolist() == table.tolist()
