"""What every test may ask for."""

from __future__ import annotations

import contextlib
import fnmatch
import gc
import os
import shutil
import signal
import tempfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

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

# Started in the background of a script, this process ignores Ctrl-C, and so would all that tests start to see
# what that does.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

RAY_STORE_BYTES = 80 << 20  # the least that Ray takes
RAY_KINDS = ("compute_gpu", "memory_gpu")
RAY_DEVICES = 2  # of each: one for another front end


REAL_DATA = {"real_traces", "real_profiles"}  # fixtures


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Where only some cases of a test are `long` (see CONTRIBUTING.md), take the mark off the others.

    What uses real data is `outside`. It runs before `-m` selects.
    """
    saved: dict[tuple[str, str], int] = {}
    for item in items:
        if REAL_DATA.intersection(getattr(item, "fixturenames", ())):
            item.add_marker("outside")
        mark = item.get_closest_marker("long")
        if mark is None or not mark.kwargs:
            continue
        test = item.nodeid.partition("[")[0]
        for pattern in mark.kwargs["but"]:
            matches = fnmatch.fnmatchcase(item.callspec.id, pattern)  # type: ignore[attr-defined]
            saved[test, pattern] = saved.get((test, pattern), 0) + matches
            if matches and mark in item.own_markers:
                item.own_markers.remove(mark)
    lost = [f"{test}: no case is {pattern!r}" for (test, pattern), count in saved.items() if not count]
    # One case may have been asked for by its name.
    if lost and len(items) > 1:
        raise pytest.UsageError("; ".join(lost))
    part = os.environ.get("LAMINABENCH_LONG_PART")
    if part:
        _keep_part(items, *map(int, part.split("/")))


def _keep_part(items: list[pytest.Item], number: int, parts: int) -> None:
    """Of the long cases of tests that have several, those of one part: CI takes another one each time."""
    items[:] = [
        item
        for item in items
        if not (item.get_closest_marker("long") and hasattr(item, "callspec"))
        or zlib.crc32(item.nodeid.encode()) % parts == number % parts
    ]


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    """What was imported and collected stays: to look for garbage in it takes half a second each time."""
    gc.collect()
    gc.freeze()


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


@pytest.fixture(scope="session")
def machine() -> Iterator[Any]:
    """Where the workers of most tests start: torch and transformers are imported there once."""
    from lamina import Machine

    with Machine() as made:
        yield made


@pytest.fixture(scope="session")
def emulated_library() -> Path:
    """That of a GPU that there is not, one for all of pytest's processes."""
    from emulated_gpu import built

    return built()


@pytest.fixture
def emulated(emulated_library: Path) -> Iterator[None]:
    """This process and those that it starts have such a GPU."""
    from emulated_gpu import in_use

    with in_use(emulated_library):
        yield


@pytest.fixture
def shared_machine(machine: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Engines that would make a machine of their own, which takes eight seconds, use the one of all tests."""
    monkeypatch.setattr("lamina.cluster.core.Machine", lambda: contextlib.nullcontext(machine))
    monkeypatch.setattr("lamina.cluster.Machine", lambda: contextlib.nullcontext(machine))
    return machine


@pytest.fixture(scope="module")
def ray_cluster() -> Iterator[Any]:
    """Two nodes: model workers belong on the one, attention workers on the other."""
    with pytest.MonkeyPatch.context() as patch:
        # Ray would look for an address of this machine that others reach, and listen there.
        patch.setenv("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.setenv("RAY_worker_niceness", "0")  # beside other tests, nice workers hardly get on
        patch.delenv("RAY_ADDRESS", raising=False)
        patch.setattr("ray._private.ray_constants.ENABLE_RAY_CLUSTER", False)
        from ray.cluster_utils import Cluster

        # Not where Ray notes which cluster "auto" is; and the paths of sockets have to be short.
        folder = tempfile.mkdtemp(prefix="ray-", dir="/tmp")
        patch.setenv("RAY_TMPDIR", folder)
        Path(folder, "ray").mkdir()
        made = Cluster()
        try:
            for kind in RAY_KINDS:
                made.add_node(
                    num_cpus=1,
                    resources={kind: RAY_DEVICES},
                    node_ip_address="127.0.0.1",
                    include_dashboard=False,
                    object_store_memory=RAY_STORE_BYTES,
                    temp_dir=folder,
                )
            yield made
        finally:
            made.shutdown()
            shutil.rmtree(folder)
