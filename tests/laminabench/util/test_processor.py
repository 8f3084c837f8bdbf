"""What this machine's processor is called."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from laminabench.util.processor import processor


@pytest.mark.skipif(
    "model name" not in Path("/proc/cpuinfo").read_text(), reason="the kernel does not name processors here"
)
def test_its_design_is_told_beside_its_name() -> None:
    assert re.fullmatch(r".+ \(family \d+, model \d+\)", processor())
