"""What every test may ask for."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# CI tries the same examples every time; elsewhere new ones are tried, and one that fails is printed.
settings.register_profile(
    "laminabench",
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    print_blob=True,
    derandomize=bool(os.environ.get("CI")),
)
settings.load_profile("laminabench")


@pytest.fixture(scope="session")
def real_traces() -> Path:
    """The folder of real trace files; without it the test is skipped."""
    folder = os.environ.get("LAMINABENCH_TRACES")
    if not folder:
        pytest.skip("set LAMINABENCH_TRACES to a folder of the real trace files to run this")
    return Path(folder)


@pytest.fixture(scope="session")
def real_profiles() -> Path:
    """The folder of real measurement files; without it the test is skipped."""
    folder = os.environ.get("LAMINABENCH_PROFILES")
    if not folder:
        pytest.skip("set LAMINABENCH_PROFILES to a folder of the measurement files to run this")
    return Path(folder)
