"""Free memory: what the kernel says is available, unless the container leaves less."""

from __future__ import annotations

from pathlib import Path

import pytest

from lamina import host_memory


def test_the_smaller_of_machine_and_container_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    meminfo = tmp_path / "meminfo"
    meminfo.write_text("MemTotal: 2000 kB\nMemFree: 10 kB\nMemAvailable: 1000 kB\n")
    monkeypatch.setattr(host_memory, "MEMINFO", meminfo)
    monkeypatch.setattr(host_memory, "CGROUP", tmp_path)
    assert host_memory.free_bytes() == 1000 * 1024
    (tmp_path / "memory.max").write_text("max\n")
    (tmp_path / "memory.current").write_text("500\n")
    assert host_memory.free_bytes() == 1000 * 1024
    (tmp_path / "memory.max").write_text("70500\n")
    assert host_memory.free_bytes() == 70_000
    (tmp_path / "memory.max").write_text("100\n")
    assert host_memory.free_bytes() == 0
    (tmp_path / "memory.stat").write_text("anon 100\ninactive_file 450\nactive_file 20\n")
    assert host_memory.free_bytes() == 50


def test_where_the_kernel_says_nothing_free_pages_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host_memory, "MEMINFO", tmp_path / "nothing")
    monkeypatch.setattr(host_memory, "CGROUP", tmp_path)
    assert host_memory.free_bytes() > 0
