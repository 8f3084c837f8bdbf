"""The supported tools, and detection of the one that wrote a file."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from laminabench.interchange import aiperf, aiperf_export, guidellm, guidellm_export, vllm_bench
from laminabench.interchange.benchmark import Benchmark, Table, read_json, read_text
from laminabench.interchange.calls import Calls
from laminabench.interchange.run_info import RunInfo
from laminabench.util.errors import UserError

Files = dict[str, list[Table]]


@dataclass(frozen=True, slots=True)
class Tool:
    """The reader and writer of one tool. An export is a file, or a folder of files."""

    is_like: Callable[[Any], bool]
    read: Callable[[Path], Iterator[Benchmark]]
    export: Callable[[Calls, RunInfo], Files]
    folder: bool
    writes: str  # in words, for error messages


TOOLS: Mapping[str, Tool] = {
    aiperf.NAME: Tool(
        aiperf.is_like, aiperf.read, aiperf_export.export, True, "aiperf's folder of artifacts"
    ),
    vllm_bench.NAME: Tool(
        vllm_bench.is_like, vllm_bench.read, vllm_bench.export, False, "a result of vllm bench serve"
    ),
    guidellm.NAME: Tool(
        guidellm.is_like, guidellm.read, guidellm_export.export, False, "guidellm's benchmarks.json"
    ),
}


def tool_of(path: Path) -> str:
    """Return the tool that wrote a file, by its content; a UserError if none of them did."""
    if path.is_dir():
        if (path / aiperf.RECORDS).exists() or (path / aiperf.SUMMARY).exists():
            return aiperf.NAME
        if (path / "benchmarks.json").exists():
            return guidellm.NAME
        raise UserError(
            "import-unknown-tool",
            f"{path} has neither {aiperf.RECORDS} (aiperf) nor benchmarks.json (guidellm); "
            "name a file of a load generator",
        )
    text = read_text(path)
    first = next((line for line in text.splitlines() if line.strip()), "")
    try:
        document: Any = json.loads(first)  # of JSON lines
    except (ValueError, RecursionError):
        document = read_json(text, str(path))
    for name, tool in TOOLS.items():
        if tool.is_like(document):
            return name
    known = ", ".join(tool.writes for tool in TOOLS.values())
    raise UserError("import-unknown-tool", f"{path} is none of: {known}; name its tool by --from")


def read(path: Path, name: str | None = None) -> list[Benchmark]:
    """Read every benchmark of a file or folder."""
    if not path.exists():
        raise UserError("file-not-readable", f"cannot read {path}: there is no such file")
    return list(TOOLS[name or tool_of(path)].read(path))
