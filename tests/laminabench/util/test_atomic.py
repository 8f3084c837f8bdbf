"""Files appear whole or not at all."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from laminabench.runs.replace import replacing_directory
from laminabench.util.atomic import replacing
from laminabench.util.errors import UserError


def test_success_replaces_the_target_and_leaves_nothing_else(tmp_path: Path) -> None:
    target = tmp_path / "deep" / "file.txt"
    with replacing(target) as temporary:
        temporary.write_text("whole")
        assert not target.exists()
    assert target.read_text() == "whole"
    assert list(target.parent.iterdir()) == [target]


def test_failure_keeps_the_old_file(tmp_path: Path) -> None:
    target = tmp_path / "file.txt"
    target.write_text("old")

    def fail_half_way() -> None:
        with replacing(target) as temporary:
            temporary.write_text("ha")
            raise RuntimeError("half way")

    with pytest.raises(RuntimeError, match="half way"):
        fail_half_way()
    assert target.read_text() == "old"
    assert list(tmp_path.iterdir()) == [target]


def test_a_folder_that_cannot_be_made_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="file-cannot-write"), replacing(tmp_path / "file" / "inside.txt"):
        pass


def test_a_link_stays_and_what_it_leads_to_is_replaced(tmp_path: Path) -> None:
    target, link = tmp_path / "there" / "file.txt", tmp_path / "link.txt"
    target.parent.mkdir()
    link.symlink_to(target)
    for text in ("new", "newer"):
        with replacing(link) as temporary:
            temporary.write_text(text)
        assert link.is_symlink()
        assert target.read_text() == text
    assert list(target.parent.iterdir()) == [target]


def test_only_files_are_replaced(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="file-not-regular"), replacing(tmp_path):
        pass
    assert not Path("/dev/null").is_file()
    with pytest.raises(UserError, match="file-not-regular"), replacing(Path("/dev/null")):
        pass


def test_the_result_has_ordinary_permissions(tmp_path: Path) -> None:
    reference = tmp_path / "reference"
    reference.write_text("")
    with replacing(tmp_path / "file") as temporary:
        temporary.write_text("")
    assert (tmp_path / "file").stat().st_mode == reference.stat().st_mode


def test_the_mask_of_new_files_is_left_alone_by_threads(tmp_path: Path) -> None:
    expected, masked = 0o640, os.umask(0o027)
    try:

        def write(part: int) -> None:
            for number in range(150):
                with replacing(tmp_path / f"{part}-{number}", durable=False) as temporary:
                    temporary.write_text("")

        writers = [threading.Thread(target=write, args=(part,)) for part in range(2)]
        for thread in writers:
            thread.start()
        while any(thread.is_alive() for thread in writers):
            other = tmp_path / "other"
            other.unlink(missing_ok=True)
            other.touch()
        for thread in writers:
            thread.join()
        assert not [path.name for path in tmp_path.iterdir() if path.stat().st_mode & 0o777 != expected]
    finally:
        os.umask(masked)


def test_the_mask_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(_: int) -> int:
        raise AssertionError("it is the whole process'")

    monkeypatch.setattr("os.umask", refused)
    with replacing(tmp_path / "file") as temporary:
        temporary.write_text("")
    with replacing_directory(tmp_path / "run") as folder:
        (folder / "file").write_text("")


def test_leftovers_of_a_killed_writer_are_removed_and_other_files_stay(tmp_path: Path) -> None:
    left = tmp_path / ".run.0123abcd.partial"
    others = [tmp_path / ".run-backup", tmp_path / ".run.partial", tmp_path / ".other.0123abcd.partial"]
    for folder in (left, *others):
        folder.mkdir()
        (folder / "file").write_text("")
    with replacing_directory(tmp_path / "run") as temporary:
        (temporary / "file").write_text("")
    assert not left.exists()
    assert sorted(tmp_path.iterdir()) == sorted([*others, tmp_path / "run"])


def test_the_second_of_two_writers_gets_a_sentence(tmp_path: Path) -> None:
    with replacing_directory(tmp_path / "run") as temporary:
        (temporary / "file").write_text("first")
        with pytest.raises(UserError, match="output-in-use"), replacing_directory(tmp_path / "run"):
            pass
    assert (tmp_path / "run" / "file").read_text() == "first"
    assert [path.name for path in tmp_path.iterdir()] == ["run"]
