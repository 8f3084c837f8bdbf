"""The tools whose files are read and written, and which of them wrote a file."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from laminabench.interchange import aiperf, aiperf_export, guidellm, guidellm_export, vllm_bench
from laminabench.interchange.calls import Calls
from laminabench.interchange.found import Found, Table, read_json, read_text
from laminabench.interchange.said import Said
from laminabench.util.errors import UserError

Files = dict[str, list[Table]]


@dataclass(frozen=True, slots=True)
class Tool:
    """One of them. An export is a file, or a folder of files with names of their own."""

    is_like: Callable[[Any], bool]
    read: Callable[[Path], Iterator[Found]]
    export: Callable[[Calls, Said], Files]
    folder: bool
    lists: str  # where a document that is a sum of several results says so


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
    """Which tool wrote a file, by what is in it; a UserError where none of them did."""
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
        document: Any = json.loads(first)  # of many lines, each of which is one
    except (ValueError, RecursionError):
        document = read_json(text, str(path))
    for name, tool in TOOLS.items():
        if tool.is_like(document):
            return name
    known = ", ".join(tool.lists for tool in TOOLS.values())
    raise UserError("import-unknown-tool", f"{path} is none of: {known}; --from says which tool wrote it")


def read(path: Path, name: str | None = None) -> list[Found]:
    """Read every benchmark of a file or folder."""
    if not path.exists():
        raise UserError("file-not-readable", f"cannot read {path}: there is no such file")
    return list(TOOLS[name or tool_of(path)].read(path))
