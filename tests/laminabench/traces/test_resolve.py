"""Where --trace looks, and in which order; the committed descriptors are complete."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from laminabench.traces import catalogue, fetch
from laminabench.traces.catalogue import record, sha256_of
from laminabench.traces.fetch import DownloadError
from laminabench.traces.formats import FORMATS
from laminabench.traces.resolve import AUTOMATIC_BYTES, AUTOMATIC_TIMEOUT_S, resolve
from laminabench.traces.store import save
from laminabench.traces.table import TraceMeta, make_trace
from laminabench.util.errors import CheckFailedError, UserError

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


def test_a_download_is_attempted_unless_offline(monkeypatch: pytest.MonkeyPatch) -> None:
    requests: list[str] = []

    def no_network(entry: catalogue.Entry, **_: object) -> Path:
        requests.append(entry.name)
        raise DownloadError("trace-download-failed", "no network")

    monkeypatch.setattr(fetch, "fetch", no_network)
    notices: list[str] = []
    trace = resolve("azure-code", notice=notices.append)
    assert requests == ["azure-code"]
    assert trace.meta.source == "profile"
    assert len(notices) == 1
    assert notices[0].startswith("azure-code is not here (no network): ")
    assert "fitted profile" in notices[0]
    resolve("azure-code", offline=True)
    assert requests == ["azure-code"]


def test_a_successful_download_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    def bring(entry: catalogue.Entry, **_: object) -> Path:
        entry.downloaded_path.parent.mkdir(parents=True)
        entry.downloaded_path.write_text(AZURE)
        return entry.downloaded_path

    monkeypatch.setattr(fetch, "fetch", bring)
    assert resolve("azure-code").meta.source == "file"


def test_large_files_are_not_downloaded_on_the_side(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch, "fetch", lambda *_, **__: pytest.fail("downloaded"))
    notices: list[str] = []
    trace = resolve("azure-2024-conv", requests=1000, notice=notices.append)
    assert len(trace) == 1000
    assert "laminabench traces fetch azure-2024-conv" in notices[0]


def test_a_profile_can_be_requested_although_the_trace_is_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch, "fetch", lambda *_, **__: pytest.fail("downloaded"))
    save(small_trace("azure-code"), catalogue.imports() / "azure-code.parquet")
    assert len(resolve("azure-code")) == 3
    trace = resolve("profile:azure-code", notice=pytest.fail)
    assert (trace.meta.name, trace.meta.source) == ("azure-code", "profile")


def test_an_import_may_be_called_like_a_file() -> None:
    save(small_trace("v1.csv"), catalogue.imports() / "v1.csv.parquet")
    assert resolve("v1.csv").prompt_tokens.tolist() == [7, 8, 9]
    Path("v1.csv").write_text(AZURE)
    assert len(resolve("v1.csv")) == 2


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("no/such.csv", "trace-unreadable"),  # and not taken for a name
        ("mine.toml", "trace-is-a-profile"),
        (".mine-x1", "trace-unknown"),  # which is half written
        ("my-trafic", "trace-unknown"),
        ("azur-conv", "trace-unknown"),
        ("profile:azure-cod", "trace-unknown"),
    ],
)
def test_what_is_no_trace(text: str, code: str) -> None:
    save(small_trace("mine"), catalogue.imports() / ".mine-x1.parquet")
    assert catalogue.imported_names() == []
    save(small_trace("my-traffic"), catalogue.imports() / "my-traffic.parquet")
    Path("mine.toml").write_text("")
    with pytest.raises(UserError, match=code):
        resolve(text)


@pytest.mark.parametrize(
    "error",
    [DownloadError("trace-download-failed", "no network"), CheckFailedError("trace-checksum", "sums differ")],
)
def test_a_failed_download_leaves_the_profile(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    requests: list[dict[str, object]] = []

    def fail(_: catalogue.Entry, **terms: object) -> Path:
        requests.append(terms)
        raise error

    monkeypatch.setattr(fetch, "fetch", fail)
    notices: list[str] = []
    # Of kimi-ta the size is not known, but the sum is.
    assert resolve("kimi-ta", notice=notices.append).meta.source == "profile"
    assert notices[0].startswith(f"kimi-ta is not here ({error}): ")
    (terms,) = requests
    assert (terms["attempts"], terms["timeout_s"]) == (1, AUTOMATIC_TIMEOUT_S)
    assert terms["most_bytes"] == AUTOMATIC_BYTES


def test_a_home_that_cannot_be_written_leaves_the_profile(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("LAMINABENCH_HOME", str(tmp_path / "file"))
    notices: list[str] = []
    assert resolve("azure-code", notice=notices.append).meta.source == "profile"
    assert "cannot write" in notices[0]


def test_a_missing_folder_is_reported(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("LAMINABENCH_TRACES", str(tmp_path / "shard"))
    notices: list[str] = []
    resolve("azure-code", offline=True, notice=notices.append)
    assert notices[0] == (f"$LAMINABENCH_TRACES is {tmp_path}/shard, which is not a folder")


@pytest.mark.parametrize("variable", ["LAMINABENCH_HOME", "LAMINABENCH_TRACES", None])
def test_an_unknown_user_is_named(variable: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    if variable is not None:
        monkeypatch.setenv(variable, "~nosuchuser/x")
    with pytest.raises(OSError, match="~nosuchuser is no user here") as caught:
        resolve("azure-code" if variable else "~nosuchuser/x", offline=True)
    assert caught.value.filename == "~nosuchuser/x"


def test_the_first_of_a_generated_trace_do_not_depend_on_how_many_are_wanted() -> None:
    few, all_ = resolve("azure-code", offline=True, requests=10), resolve("azure-code", offline=True)
    assert len(few) == len(all_)
    assert few.prompt_tokens[:10].tolist() == all_.prompt_tokens[:10].tolist()


def test_a_changed_download_without_published_sum_is_reported() -> None:
    entry = catalogue.find("azure-2024-conv")
    entry.downloaded_path.parent.mkdir(parents=True)
    entry.downloaded_path.write_text(AZURE)
    record(entry.downloaded_path, sha256_of(entry.downloaded_path))
    assert resolve("azure-2024-conv").meta.notes == ()
    entry.downloaded_path.write_text(AZURE.replace("44", "45"))
    (note,) = resolve("azure-2024-conv").meta.notes
    assert "changed since it was downloaded" in note


# Table 4 of the Lamina paper.
TABLE_4 = {
    "azure-conv": (19366, 1154.7, 211.1),
    "azure-code": (8819, 2047.8, 27.9),
    "kimi-conv": (12031, 12035.1, 342.6),
    "kimi-ta": (23608, 8560.0, 182.1),
}


NAMES = {*TABLE_4, "sharegpt", "azure-2024-conv", "azure-2024-code", "burstgpt"}


def test_every_trace_of_the_project_is_there() -> None:
    assert set(catalogue.entries()) == NAMES


@pytest.mark.parametrize("name", sorted(NAMES))
def test_a_descriptor_names_content_owner_and_place(name: str) -> None:
    entry = catalogue.find(name)
    assert entry.name == name
    assert entry.format in FORMATS
    assert all([entry.description, entry.license, entry.citation])
    assert entry.file.url.startswith("https://")
    assert entry.file.url.endswith(entry.file.name)
    assert entry.profile_path.is_file()
    assert entry.file.sha256 is None or len(entry.file.sha256) == 64


@pytest.mark.parametrize("name", sorted(TABLE_4))
def test_published_statistics_are_those_of_the_paper(name: str) -> None:
    published = catalogue.find(name).published
    assert published is not None
    assert (published.requests, published.mean_prompt_tokens, published.mean_output_tokens) == TABLE_4[name]
