"""Sizes and engines as people write them, and what a GPU measures."""

from __future__ import annotations

import threading

import pytest
import torch

from laminabench.util.errors import UserError

pytest.importorskip("msgpack")

from laminabench.bench.fhbn import cuda
from laminabench.bench.fhbn.cuda import linked
from laminabench.bench.fhbn.options import engines_of, sizes_of

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
def test_senseless_sizes_are_refused(text: str) -> None:
    with pytest.raises(UserError, match="fhbn-sizes") as error:
        sizes_of(text)
    assert f"--sizes '{text}'" in str(error.value)


def test_what_cannot_be_used_is_skipped_unless_nothing_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    result = engines_of("shm,nccl, gloo,shm")
    assert result.names == ("shm",)
    assert result.skipped == {"nccl": "torch is not installed", "gloo": "torch is not installed"}
    with pytest.raises(UserError, match="fhbn-engines-unusable"):
        engines_of("gloo")
    with pytest.raises(UserError, match="fhbn-engine-unknown"):
        engines_of("shm,pigeon")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device here")
def test_without_a_gpu_it_says_so_in_a_sentence() -> None:
    with pytest.raises(UserError, match="bench-no-gpu"):
        cuda.run()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device for torch here")
def test_a_row_has_every_way() -> None:
    rows = cuda.run("shm,softnic", sizes=(0, 5000), rounds=3).json()["rows"]
    assert [(row["engine"], row["bytes"]) for row in rows] == [
        ("shm", 0), ("shm", 5000), ("softnic", 0), ("softnic", 5000),
    ]  # fmt: skip
    for empty, some in (rows[:2], rows[2:]):
        assert set(empty["one_way_s"]) == {"channel"}
        assert set(some["one_way_s"]) == {"channel", "staged"}
        ways = {"launched_ahead", "graph_ahead", "launched_after", "graph_after"}
        assert set(empty["round_trip_s"]) == ways
        assert set(some["round_trip_s"]) == ways | {"torch"}


def test_engines_are_those_with_ends_on_a_stream() -> None:
    assert engines_of("auto, softnic, shm", on_stream=True).names == ("shm", "softnic")
    some = engines_of("softnic,verbs", on_stream=True)
    assert some.names == ("softnic",)
    assert some.skipped["verbs"].startswith("the host posts")
    with pytest.raises(UserError, match="fhbn-engines-unusable"):
        engines_of("verbs", on_stream=True)
    with pytest.raises(UserError, match="fhbn-engine-unknown"):
        engines_of("tcp", on_stream=True)


def test_a_process_opens_channels_with_itself() -> None:
    before = threading.active_count()
    with linked(30) as both:
        for network in ("shm", "softnic"):
            sender, receiver = both(
                lambda link, network=network: link.sender("a", network=network),
                lambda link, network=network: link.receiver("a", message_bytes=8, network=network),
            )
            sender.send(b"to it")
            with receiver.recv() as message:
                assert bytes(message[0]) == b"to it"
            sender.close()
            receiver.close()
    assert threading.active_count() == before


def test_what_one_side_cannot_open_ends_both() -> None:
    with linked(30) as both, pytest.raises(ValueError, match="unknown"):
        both(
            lambda link: link.sender("a", network="none"),
            lambda link: link.receiver("a", message_bytes=8),
        )
