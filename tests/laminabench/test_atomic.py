"""Files appear whole or not at all."""

from __future__ import annotations

from pathlib import Path

import pytest

from laminabench.atomic import replacing
from laminabench.errors import UserError


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
