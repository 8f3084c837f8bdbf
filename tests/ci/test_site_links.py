"""The checker of the built site's links."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def checker() -> ModuleType:
    spec = importlib.util.spec_from_file_location("site_links", ROOT / "ci" / "site_links.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def site(folder: Path, body: str) -> Path:
    (folder / "sub").mkdir()
    (folder / "index.html").write_text(f"<h1 id=top>x</h1>{body}")
    (folder / "sub" / "other.html").write_text('<h2 id="a b">x</h2><a href="../index.html#top">up</a>')
    return folder


@pytest.mark.parametrize(
    "body",
    [
        '<a href="sub/other.html">x</a><a href="#top"></a><a href="sub/other.html#a%20b"></a>',
        '<a href=".">x</a><a href="sub/../">x</a>',
        '<a href="https://example.org/x#y">x</a><link rel=canonical href="https://a.b/">',
        '<img src="data:image/png;base64,AA==">',
    ],
)
def test_sound(checker: ModuleType, tmp_path: Path, body: str) -> None:
    assert checker.problems(site(tmp_path, body)) == []


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ('<a href="sub/none.html">x</a>', "leads nowhere"),
        ('<a href="../elsewhere.html">x</a>', "leads nowhere"),
        ('<a href="#nowhere">x</a>', "no such place"),
        ('<a href="sub/other.html#nowhere">x</a>', "no such place"),
        ('<img src="none.png">', "leads nowhere"),
        ('<script src="https://unpkg.com/x"></script>', "from elsewhere"),
        ('<link rel="stylesheet" href="//fonts.example.org/a.css">', "from elsewhere"),
        ('<a href="https://exa mple.org">x</a>', "no address"),
        ('<a href="javascript:alert(1)">x</a>', "no address"),
    ],
)
def test_broken(checker: ModuleType, tmp_path: Path, body: str, message: str) -> None:
    (problem,) = checker.problems(site(tmp_path, body))
    assert problem.startswith("index.html: ")
    assert message in problem


def test_a_folder_without_pages_is_no_site(checker: ModuleType, tmp_path: Path) -> None:
    assert len(checker.problems(tmp_path)) == 1
    assert checker.main([str(tmp_path)]) == 1
