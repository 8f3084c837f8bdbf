"""This process's part in a Ray cluster: joined for the first machine, left with the last one."""

from __future__ import annotations

import logging
import os
import socket
from typing import Any

from lamina.pipeline.options import EngineError

LOOPBACK = "127.0.0.1"
_REACH_S = 3.0
_START = "start one with `ray start --head` (or `ray start --address` on more nodes) and give its host:port"


class Session:
    """Ray as all machines of this process share it."""

    def __init__(self) -> None:
        self._machines = 0
        self._joined_here = False

    def join(self, address: str) -> None:
        """Once for each machine. If Ray is initialised in this process already it is used as it is."""
        ray = installed()
        if not ray.is_initialized():
            _require_address(address)
            try:
                ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
            except (OSError, RuntimeError, ValueError, AssertionError) as error:
                why = str(error).strip().split("\n", 1)[0]
                raise EngineError(
                    "ray-join-failed", f"cannot join the Ray cluster at '{address}': {why}; {_START}"
                ) from error
            self._joined_here = True
        self._machines += 1

    def leave(self) -> None:
        """Once for each machine that has joined."""
        self._machines -= 1
        if self._machines == 0 and self._joined_here:
            self._joined_here = False
            installed().shutdown()


SESSION = Session()


def installed() -> Any:
    """Ray, or an EngineError. It is imported only where it is needed."""
    try:
        import ray
    except ImportError as error:
        raise EngineError(
            "ray-not-installed",
            "Ray is not installed, or not whole: pip install 'laminabench[engine]' here and on every node",
        ) from error
    return ray


def own_host() -> str:
    """Where this process listens for workers: on its node's address if there are nodes with another one."""
    hosts = {node["NodeManagerAddress"] for node in alive_nodes()}
    own: str = installed().util.get_node_ip_address()
    return own if hosts - {own} else LOOPBACK


def alive_nodes() -> list[dict[str, Any]]:
    return [node for node in installed().nodes() if node["Alive"]]


def _require_address(address: str) -> None:
    """Ray would start a cluster of its own, or try for minutes to reach one that is not there."""
    if address == "auto":
        address = os.environ.get("RAY_ADDRESS", address)
    if address in ("", "local"):
        raise EngineError("ray-no-cluster", f"there is no Ray cluster to join: {_START}")
    if "://" in address:
        raise EngineError(
            "ray-client-address",
            f"'{address}' is for Ray's client, and the front end has to be on a node of the cluster: give "
            "host:port of its head",
        )
    if address == "auto":  # Ray knows where it has started one
        return
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or not 1 <= int(port) <= 65535:
        raise EngineError(
            "ray-address-invalid", f"'{address}' is no address of a Ray cluster: give host:port, or auto"
        )
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=_REACH_S).close()
    except OSError as error:
        why = error.strerror or "no answer in time"
        raise EngineError(
            "ray-no-cluster", f"there is no Ray cluster at {address} ({why}): {_START}"
        ) from error
