"""Free memory: what the kernel says is available, unless the container leaves less."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from lamina.serve import memory

CPU = torch.device("cpu")


def test_the_smaller_of_machine_and_container_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    meminfo = tmp_path / "meminfo"
    meminfo.write_text("MemTotal: 2000 kB\nMemFree: 10 kB\nMemAvailable: 1000 kB\n")
    monkeypatch.setattr(memory, "MEMINFO", meminfo)
    monkeypatch.setattr(memory, "CGROUP", tmp_path)
    assert memory.free_bytes(CPU) == 1000 * 1024
    (tmp_path / "memory.max").write_text("max\n")
    (tmp_path / "memory.current").write_text("500\n")
    assert memory.free_bytes(CPU) == 1000 * 1024
    (tmp_path / "memory.max").write_text("70500\n")
    assert memory.free_bytes(CPU) == 70_000
    (tmp_path / "memory.max").write_text("100\n")
    assert memory.free_bytes(CPU) == 0


def test_where_the_kernel_says_nothing_free_pages_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "MEMINFO", tmp_path / "nothing")
    monkeypatch.setattr(memory, "CGROUP", tmp_path)
    assert memory.free_bytes(CPU) > 0
