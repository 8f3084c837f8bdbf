"""Every command and code block of README, CONTRIBUTING and docs/ runs, or says why it does not."""

from __future__ import annotations

import json
import os
import tomllib
from collections import Counter
from collections.abc import Callable

import doc_blocks
import pytest
import yaml
from doc_blocks import blocks
from doc_runner import (
    DATA,
    PRINTED,
    PRINTED_SHAPE,
    SHELL,
    PageRun,
    agree,
    all_commands,
    declared,
    entry,
    is_long,
    kind,
    rewrite,
)

PAGES = doc_blocks.pages()
RunPage = Callable[..., PageRun]


def require_success(run: PageRun) -> None:
    if run.changed and os.environ.get("LAMINABENCH_DOCS_UPDATE"):
        rewrite(run)
    assert not run.failures, "\n".join(run.failures)


@pytest.mark.parametrize("page", [page for page in PAGES if any(block.language for block in blocks(page))])
def test_page_runs(page: str, page_run: RunPage) -> None:
    require_success(page_run(page, long=False))


@pytest.mark.long
@pytest.mark.parametrize("page", [page for page in PAGES if is_long(page)])
def test_page_runs_whole(page: str, page_run: RunPage) -> None:
    require_success(page_run(page, long=True))


def test_nothing_is_unaccounted_for() -> None:
    """Every block is of a kind that is run or parsed, or shows output; what is not run has a reason."""
    all_blocks = [block for page in PAGES for block in blocks(page)]
    known = {*SHELL, *DATA, "python", "pycon", "text", ""}
    assert [block.where for block in all_blocks if block.language not in known] == []
    notes = {block.note for block in all_blocks if block.note and block.language}
    assert [
        note for note in notes if note not in (PRINTED, PRINTED_SHAPE) and not note.startswith("not run: ")
    ] == []
    counted = Counter("not-run" if block.note else kind(command) for block, command in all_commands())
    counted.update(
        f"{block.language} {'not run' if block.note else 'run'}"
        for block in all_blocks
        if block.language == "python" or block.language in DATA
    )
    print(", ".join(f"{count} {name}" for name, count in sorted(counted.items())))
    assert counted["quick"] + counted["long"] > 2 * counted["not-run"]


@pytest.mark.parametrize("table", ["elsewhere", "not-run", "long"])
def test_each_declaration_has_a_command_and_a_reason(table: str) -> None:
    used = {entry(table, command) for _, command in all_commands()}
    assert [prefix for prefix in declared()[table] if prefix not in used] == []
    assert all(len(reason) > 3 for reason in declared()[table].values())
    assert set(declared()["pages"]) <= set(PAGES)


def test_data_of_pages_parses() -> None:
    read = {"toml": tomllib.loads, "json": json.loads, "yaml": yaml.safe_load}
    results = [block for page in PAGES for block in blocks(page) if block.language in DATA and not block.note]
    assert results
    for block in results:
        assert read[block.language](block.text), block.where


def test_what_is_printed_is_compared_but_for_what_may_differ() -> None:
    shown = "mean 41.8, p50 1,641, at http://127.0.0.1:46183\nsimulated in 7.9 ms\n...\nlast 3\n"
    printed = "mean  22, p50 97, at http://127.0.0.1:8000\nsimulated in 12 ms\na\nb\nlast 4\n"
    assert agree(shown, printed, shape=True)
    assert not agree(shown, printed, shape=False)
    assert not agree(shown, printed.replace("mean", "median"), shape=True)
    assert agree("simulated in 7.9 ms", "simulated in 12 ms", shape=False)
    assert not agree("one line", "one line\nand another", shape=False)
