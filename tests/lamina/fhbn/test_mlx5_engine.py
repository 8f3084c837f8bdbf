"""The mlx5 engine where there is no ConnectX: it is refused with the reason, on both sides.

What it does on one is driven in tests/csrc/mlx5dv_set_up.cpp, over libraries whose NIC is a softnic.
"""

from __future__ import annotations

import pytest

pytest.importorskip("msgpack")

from lamina._native import mlx5_port
from lamina.fhbn.control import Place
from lamina.fhbn.engines import engine, find
from lamina.fhbn.errors import ChannelError, HandshakeError


@pytest.fixture
def why() -> str:
    """What keeps this machine from it."""
    try:
        mlx5_port("")
    except ChannelError as error:
        return str(error)
    pytest.skip("there is a ConnectX here")


def test_it_is_missing_with_the_reason(why: str) -> None:
    here = Place.here()
    assert engine("mlx5").missing(here, here) == why
    with pytest.raises(HandshakeError, match="channel-network-unusable"):
        find("mlx5", here, here)


def test_auto_takes_no_nic_on_one_machine() -> None:
    here = Place.here()
    assert not {"verbs", "mlx5", "softnic"} & set(find("auto", here, here).usable)


def test_an_invalid_device_is_an_error(why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAMINA_RDMA_DEVICE", "mlx5_0:zero")
    here = Place.here()
    message = engine("mlx5").missing(here, here)
    assert message is not None
    assert why
    assert "mlx5_0:zero" in message
