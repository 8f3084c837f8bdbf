"""Hooks for mkdocs: generated pages, and links that leave docs/.

The reference of the command line is made from the commands themselves, CONTRIBUTING.md and CHANGELOG.md are
shown as they are, and a link to another file of the tree goes to the repository, or to a copy of the picture.
"""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "ci"))

import site_cli  # noqa: E402 - next to this file, which mkdocs loads by its path

REPOSITORY = "https://github.com/laminabench/laminabench/blob/main/"
SHOWN = {"CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md"}
PICTURES = {".svg", ".png"}
_LINK = re.compile(r"(?P<before>\]\()(?P<target>[^)\s]+)(?P<after>\))")


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Put the pages of the command line into the navigation."""
    (reference,) = (entry["Reference"] for entry in config.nav or () if "Reference" in entry)
    reference.insert(0, {"Command line": site_cli.navigation()})
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add what is made, and the pictures that pages show from elsewhere in the tree."""
    for name, text in site_cli.pages().items():
        files.append(File.generated(config, name, content=text))
    for source, name in SHOWN.items():
        files.append(File.generated(config, name, content=(ROOT / source).read_text()))
    linked = {
        _in_tree(match["target"])
        for page in (ROOT / "docs").glob("*.md")
        for match in _LINK.finditer(page.read_text())
    }
    for path in sorted(each for each in linked if each and Path(each).suffix in PICTURES):
        files.append(File.generated(config, path, abs_src_path=str(ROOT / path)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Have links to files outside docs/ lead somewhere."""
    del config, files
    shown = {name: source for source, name in SHOWN.items()}
    outside = page.file.src_uri in shown

    def led(match: re.Match[str]) -> str:
        target = match["target"]
        if outside:
            target = _of_shown(target)
        elif path := _in_tree(target):
            name, _, anchor = path.partition("#")
            if name in SHOWN:
                target = SHOWN[name] + (f"#{anchor}" if anchor else "")
            else:
                target = path if Path(name).suffix in PICTURES else REPOSITORY + path
        return match["before"] + target + match["after"]

    return _LINK.sub(led, markdown)


def _in_tree(target: str) -> str | None:
    """Return the path in the tree of a link that leaves docs/."""
    return os.path.normpath(f"docs/{target}") if target.startswith("../") else None


def _of_shown(target: str) -> str:
    """Return a link of a page that is at the root of the tree, from docs/."""
    if "://" in target or target.startswith("#"):
        return target
    return target.removeprefix("docs/") if target.startswith("docs/") else REPOSITORY + target
