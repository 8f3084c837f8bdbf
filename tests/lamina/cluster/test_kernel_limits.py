"""How long kernels on a GPU wait for messages: longer than the front end, and never for good."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from lamina.cluster import Layout
from lamina.cluster.meeting import Meeting, kernel_limit_s
from lamina.cluster.messages import Peers
from lamina.pipeline import EngineError

VARIABLE = "LAMINA_FHBN_LONGEST_S"


class RecordedLink:
    """The waits that ends are opened with."""

    why = ""

    def __init__(self) -> None:
        self.waits: list[float] = []

    def _end(self, *_: str, timeout_s: float, **__: object) -> Any:
        self.waits.append(timeout_s)
        return SimpleNamespace(engine="shm", share=lambda _: None)

    device_sender = device_receiver = _end


@pytest.mark.usefixtures("emulated")
def test_ends_on_a_gpu_wait_twice_as_long_as_a_worker_may_be_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    layout = Layout(1, 1, model_on="cuda", timeout_s=7.0)
    config: Any = SimpleNamespace(
        device="cuda",
        layout=layout,
        streams=False,
        schedule=SimpleNamespace(batches=2),
        number=0,
        kv_copy="",
    )
    front: Any = SimpleNamespace(call=SimpleNamespace(partition=SimpleNamespace(chunks=1, workers=1)))
    nothing: Any = None
    meeting, link = Meeting(config, front, nothing, Peers(addresses={})), RecordedLink()
    either: Any = link
    meeting._sender(either, "qkv")
    meeting._receiver(either, "out", 100)
    assert link.waits == [14.0, 14.0]


def test_the_environment_names_the_longest_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "30")
    assert kernel_limit_s(120.0) == 30.0


@pytest.mark.parametrize("named", ["soon", "0", "-1", "inf", "nan"])
def test_a_wait_that_is_no_time_is_refused(named: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, named)
    with pytest.raises(EngineError, match="layout-longest-wait"):
        kernel_limit_s(120.0)
