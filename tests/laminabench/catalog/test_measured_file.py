"""Thousands of curves in one text: written, read back, and refused where it is broken."""

from __future__ import annotations

import numpy as np
import pytest

from laminabench.catalog.cost_terms import Origin
from laminabench.catalog.measured import AttentionLines, Curve, Measured
from laminabench.catalog.measured_file import packed, unpacked
from laminabench.util.errors import UserError

ROWS = np.array([1.0, 8.0, 512.0])
HERE = Origin("measured", "made up", "1-512", {"held_out_op": 2.5}, 3)
LINES = AttentionLines(
    ROWS, np.array([1e-5, 2e-5, 3e-5]), np.array([2e-9, 1e-9, 1.5e-9]), Origin("measured", "lines")
)
MANY = Measured(
    gemm={("h100", "bf16", 4096, 512): Curve(ROWS, np.array([1e-5, 1.2346e-5, 1e-3]), HERE)},
    experts={
        ("h100", "fp8_block", 4096, 1536, 8, 128, 1, 8): Curve(ROWS, np.array([3e-5, 4e-5, 1e-3]), HERE)
    },
    lines={("h100", 8, 1, 128, "bf16", 0): LINES},
    latent={("h100", 16, "fp8"): LINES},
)


def test_curves_and_lines_are_read_back():
    text = packed(MANY)
    found = unpacked(text, "mine")
    assert packed(Measured(**found)) == text
    curve = found["experts"]["h100", "fp8_block", 4096, 1536, 8, 128, 1, 8]
    assert curve.origin == HERE
    assert curve.at([8, 1024]) == pytest.approx([4e-5, 2e-3])
    assert float(found["gemm"]["h100", "bf16", 4096, 512].at(8)) == pytest.approx(1.235e-5)  # four digits
    lines = found["lines"]["h100", 8, 1, 128, "bf16", 0]
    assert lines.per_token_s == pytest.approx(LINES.per_token_s)
    assert lines.origin == LINES.origin


@pytest.mark.parametrize(
    ("right", "wrong"), [("30,40,1000", "30,40"), ("30,40,1000", "30,-40,1000"), ("[1,8,512]", "[8,1,512]")]
)
def test_a_broken_text_is_refused(right, wrong):
    text = packed(MANY)
    assert right in text
    with pytest.raises(UserError, match="costs-file-incomplete"):
        unpacked(text.replace(right, wrong), "mine")


def test_lines_between_two_numbers_of_requests_and_beyond_the_last():
    assert LINES.seconds(1000, 1) == pytest.approx(1e-5 + 2e-6)
    assert LINES.seconds(1000, 4.5) == pytest.approx(1.5e-5 + 1.5e-6)
    assert LINES.seconds([0, 1e6], 1024) == pytest.approx([6e-5, 6e-5 + 1.5e-3])
    assert LINES.seconds(0, 0) == 0
