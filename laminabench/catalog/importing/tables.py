"""The folder that aiconfigurator has of a GPU: GPU/FAMILY/FRAMEWORK/VERSION/NAME_perf.parquet."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from laminabench.catalog.hardware import Device
from laminabench.catalog.importing.names import device_called
from laminabench.util.errors import UserError

SOURCE = "ai-dynamo/aiconfigurator (Apache-2.0)"
FRAMEWORKS = {"vllm": "vLLM", "nccl": "NCCL", "sglang": "SGLang", "trtllm": "TensorRT-LLM"}


@dataclass(frozen=True, slots=True)
class GpuTables:
    """All tables of one GPU."""

    folder: Path
    device: Device

    def newest(
        self, family: str, name: str, framework: str = "vllm", without: Iterable[str] = ()
    ) -> Path | None:
        """Return the table of the newest version that has it: not every version measured everything."""
        return next(iter(self.versions(family, name, framework, without)), None)

    def versions(
        self, family: str, name: str, framework: str = "vllm", without: Iterable[str] = ()
    ) -> list[Path]:
        """Return all versions of the table, newest first."""
        paths = self.folder.glob(f"{family}/{framework}/*/{name}_perf.parquet")
        usable = (path for path in paths if not path.parent.name.startswith(tuple(without)))
        return sorted(
            usable,
            key=lambda path: [int(part) for part in re.findall(r"\d+", path.parent.name)],
            reverse=True,
        )

    def source(self, table: Path) -> str:
        family, framework, version = table.parents[2].name, table.parents[1].name, table.parent.name
        return f"{SOURCE}, {FRAMEWORKS[framework]} {version}, {self.folder.name}/{family}"


def tables_in(folder: Path, devices: Mapping[str, str]) -> list[GpuTables]:
    """Return the tables of every GPU whose folder is this one or under it."""
    folders = {path.parents[3] for path in folder.resolve().rglob("gemm/vllm/*/gemm_perf.parquet")}
    if not folders:
        raise UserError(
            "costs-no-measurements", f"{folder}: there is no GPU/gemm/vllm/VERSION/gemm_perf.parquet in it"
        )
    return [GpuTables(each, device_called(each.name, devices, each)) for each in sorted(folders)]
