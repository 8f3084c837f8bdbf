"""What every test may ask for."""

from __future__ import annotations

import os
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def real_traces() -> Path:
    """The folder of real trace files; without it the test is skipped."""
    folder = os.environ.get("LAMINABENCH_TRACES")
    if not folder:
        pytest.skip("set LAMINABENCH_TRACES to a folder of the real trace files to run this")
    return Path(folder)
