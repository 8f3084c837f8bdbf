"""Which RDMA device a worker should use: the one that is nearest to its GPU on the bus."""

from __future__ import annotations

import os
from pathlib import Path


def nearest(gpu: str, root: Path = Path("/")) -> str | None:
    """Of several RDMA devices that which shares most bridges with the GPU at this address on the bus, such as
    0000:17:00.0; of equally near ones the first. None where there is nothing to choose from.
    """
    folder = root / "sys/class/infiniband"
    names = sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []
    place = root / "sys/bus/pci/devices" / gpu.lower()
    if len(names) < 2 or not place.exists():
        return None
    way = place.resolve()
    # Bridges that both are behind, as folders.
    shared = {
        name: len(Path(os.path.commonpath([way, (folder / name / "device").resolve()])).parts)
        for name in names
    }
    return max(names, key=shared.__getitem__)
