"""What a process of one worker or of several prepares before they begin."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from lamina.cluster import worker


@pytest.mark.parametrize(("devices", "loads"), [(["cuda"], 0), (["cuda", "cuda"], 1), (["cpu", "cpu"], 0)])
def test_several_workers_of_a_gpu_load_all_kernels_first(
    devices: list[str], loads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker that has the process alone starts seconds earlier without."""
    loaded: list[None] = []
    monkeypatch.setattr(worker.gpu, "load_all_kernels", lambda: loaded.append(None))
    monkeypatch.setattr(worker, "_live", lambda *_: 0)
    configs: Any = [SimpleNamespace(device=device) for device in devices]
    nothing: Any = None
    assert worker.run(configs, nothing, nothing, []) == 0
    assert len(loaded) == loads
