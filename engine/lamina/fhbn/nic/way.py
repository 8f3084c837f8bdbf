"""RDMA devices on the network over which two processes have met: these reach the peer."""

from __future__ import annotations

import ipaddress
from pathlib import Path

from lamina.fhbn.nic.bus import names, text

_IPV4 = 4


def ports_on_the_way(own_host: str, root: Path = Path("/")) -> list[str]:
    """Ports, such as mlx5_0:1, that have this address of a machine among their own, as RoCE's have."""
    try:
        address = ipaddress.ip_address(own_host)
    except ValueError:
        return []
    wanted = ipaddress.IPv6Address(f"::ffff:{own_host}" if address.version == _IPV4 else own_host).exploded
    folder = root / "sys/class/infiniband"
    return [
        f"{device}:{port}"
        for device in names(folder)
        for port in names(folder / device / "ports")
        for gids in [folder / device / "ports" / port / "gids"]
        if any(text(gids / number) == wanted for number in names(gids))
    ]
