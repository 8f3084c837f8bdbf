"""Sizes and engines as people write them."""

from __future__ import annotations

import pytest

from laminabench.errors import UserError

pytest.importorskip("msgpack")

from laminabench.bench.fhbn.options import engines_of, sizes_of
from laminabench.bench.fhbn.results import size_text

KIB, MIB = 1 << 10, 1 << 20


@pytest.mark.parametrize(
    ("text", "sizes"),
    [
        ("64:16M", [64, 256, KIB, 4 * KIB, 16 * KIB, 64 * KIB, 256 * KIB, MIB, 4 * MIB, 16 * MIB]),
        ("64:100", [64, 100]),
        ("1k:1K", [KIB]),
        ("4K, 64,1MiB,64", [64, 4 * KIB, MIB]),
        ("100B,2kB", [100, 2 * KIB]),
        ("1G", [1 << 30]),
    ],
)
def test_sizes_are_read(text: str, sizes: list[int]) -> None:
    assert sizes_of(text) == sizes


@pytest.mark.parametrize(
    "text",
    [
        *("64:16X", "", ":", "64:", "-1", "1e3", "64;4K", "1.5K", "64iB", "\N{SUPERSCRIPT TWO}"),
        *("4K:64", "0", "2G"),
    ],
)
def test_senseless_sizes_are_told(text: str) -> None:
    with pytest.raises(UserError, match="fhbn-sizes") as told:
        sizes_of(text)
    assert f"--sizes '{text}'" in str(told.value)


def test_sizes_are_said_as_people_say_them() -> None:
    assert [size_text(size) for size in (64, 1000, KIB, 1536, 16 * MIB, 1 << 30)] == [
        *("64 B", "1,000 B", "1 KiB", "1.5 KiB", "16 MiB", "1 GiB")
    ]


def test_auto_says_what_it_has_come_to() -> None:
    found = engines_of("auto")
    assert (found.names, found.auto, found.skipped) == (("shm",), "shm", {})


def test_what_cannot_be_used_is_skipped_unless_nothing_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    found = engines_of("shm,nccl, gloo,shm")
    assert found.names == ("shm",)
    assert found.skipped == {"nccl": "torch is not installed", "gloo": "torch is not installed"}
    with pytest.raises(UserError, match="fhbn-engines-unusable"):
        engines_of("gloo")
    with pytest.raises(UserError, match="fhbn-engine-unknown"):
        engines_of("shm,pigeon")
