"""Where --trace looks, and in which order."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from laminabench.errors import UserError
from laminabench.traces import catalogue
from laminabench.traces import resolve as module
from laminabench.traces.fetch import DownloadError
from laminabench.traces.resolve import resolve
from laminabench.traces.store import save
from laminabench.traces.table import TraceMeta, make_trace

AZURE = """TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:15:46.6805900,374,44
2023-11-16 18:15:50.9951690,396,109"""


@pytest.fixture(autouse=True)
def nowhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No downloads, no data, and a working folder of its own."""
    monkeypatch.setenv("LAMINABENCH_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("LAMINABENCH_TRACES", raising=False)
    (tmp_path / "cwd").mkdir()
    monkeypatch.chdir(tmp_path / "cwd")


def small_trace(name: str) -> object:
    return make_trace(np.arange(3.0), np.array([7, 8, 9], np.int32), np.ones(3, np.int32), TraceMeta(name))


def test_a_path_is_a_file() -> None:
    Path("mine.csv").write_text(AZURE)
    trace = resolve("mine.csv")
    assert (trace.meta.name, trace.meta.source, len(trace)) == ("mine", "file", 2)


def test_a_missing_path_is_not_taken_for_a_name() -> None:
    with pytest.raises(UserError, match=r"no/such\.csv"):
        resolve("no/such.csv")


def test_an_imported_name() -> None:
    save(small_trace("mine"), catalogue.imports() / "mine.parquet")
    assert resolve("mine").prompt_tokens.tolist() == [7, 8, 9]


def test_a_download_comes_before_the_shared_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    entry = catalogue.find("azure-conv")
    shared = tmp_path / "shared"
    shared.mkdir()
    (shared / entry.file.name).write_text(AZURE + "\n2023-11-16 18:16:00.0000000,1,1")
    monkeypatch.setenv("LAMINABENCH_TRACES", str(shared))
    assert len(resolve("azure-conv")) == 3
    entry.downloaded_path.parent.mkdir(parents=True)
    entry.downloaded_path.write_text(AZURE)
    trace = resolve("azure-conv")
    assert len(trace) == 2
    assert trace.meta.name == "azure-conv"
    assert trace.meta.license == "CC-BY-4.0"
    # It is not the published file, and the trace says so.
    assert any("not the published file" in note for note in trace.meta.notes)


def test_a_download_is_tried_unless_offline(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def no_network(entry: catalogue.Entry, **_: object) -> Path:
        asked.append(entry.name)
        raise DownloadError("no network")

    monkeypatch.setattr(module, "fetch", no_network)
    notices: list[str] = []
    trace = resolve("azure-code", notice=notices.append)
    assert asked == ["azure-code"]
    assert trace.meta.source == "profile"
    assert len(notices) == 1
    assert notices[0].startswith("azure-code is not here (no network): ")
    assert "fitted profile" in notices[0]
    resolve("azure-code", offline=True)
    assert asked == ["azure-code"]


def test_a_successful_download_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    def bring(entry: catalogue.Entry, **_: object) -> Path:
        entry.downloaded_path.parent.mkdir(parents=True)
        entry.downloaded_path.write_text(AZURE)
        return entry.downloaded_path

    monkeypatch.setattr(module, "fetch", bring)
    assert resolve("azure-code").meta.source == "file"


def test_large_files_are_not_downloaded_on_the_side(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "fetch", lambda *_, **__: pytest.fail("downloaded"))
    notices: list[str] = []
    trace = resolve("azure-2024-conv", requests=1000, notice=notices.append)
    assert len(trace) == 1000
    assert "laminabench traces fetch azure-2024-conv" in notices[0]


def test_an_unknown_name_suggests_imports_too() -> None:
    save(small_trace("my-traffic"), catalogue.imports() / "my-traffic.parquet")
    with pytest.raises(UserError, match="did you mean my-traffic"):
        resolve("my-trafic")


def test_a_wrong_checksum_in_the_shared_folder_is_told(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    entry = replace(catalogue.find("azure-conv"))
    (tmp_path / entry.file.name).write_text(AZURE)
    monkeypatch.setenv("LAMINABENCH_TRACES", str(tmp_path))
    assert any("sha256" in note for note in resolve("azure-conv").meta.notes)
    shutil.rmtree(tmp_path / "home", ignore_errors=True)
