"""Wrong use of every command: exit code 2, one sentence, the error's code as JSON, and nothing is written."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

FILES = {
    "mine.csv": "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03.9799600,4808,10\n",
    "bare.csv": "prompt_tokens,output_tokens\n100,20\n200,30\n",
    "small.csv": "",
    "taken/precious": "",
    "full/file": "",
    "broken.json": "{",
    "bloom.json": '{"model_type": "bloom"}',
    "unknown.json": '{"model_type": "nonesuch"}',
}


def table() -> Iterator[tuple[str, list[tuple[str, str]]]]:
    """Every command of the table, with the codes and arguments below it."""
    text = (Path(__file__).parent / "wrong_use.txt").read_text()
    for block in text.split("\n\n")[1:]:
        command, *lines = block.splitlines()
        cases = [line.strip().partition(":") for line in lines]
        yield command.removeprefix("laminabench").strip(), [(code, more) for code, _, more in cases]


TABLE = dict(table())


def rows(count: int, row: Callable[[int], str]) -> str:
    return "\n".join(["arrival_s,prompt_tokens,output_tokens", *map(row, range(count))]) + "\n"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the commands of the table name."""
    folder = tmp_path_factory.mktemp("wrong")
    for name, text in FILES.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)
    (folder / "few.csv").write_text(rows(60, lambda i: f"{i / 10},{100 + 37 * i % 900},{10 + 7 * i % 50}"))
    (folder / "plan.csv").write_text(
        rows(200, lambda i: f"{i / 5:.1f},{500 + 997 * i % 2500},{20 + 37 * i % 180}")
    )
    return folder


@pytest.fixture
def here(folder: Path, shell: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The shell, in that folder, which has a Run too."""
    monkeypatch.chdir(folder)
    if not Path("run").exists():
        shell("replay --trace few.csv --system vllm --out run -q")
    return shell


def listing() -> list[Path]:
    """All files; a sweep that reaches no cluster has made its folder, without a table."""
    return sorted(
        path for path in Path().rglob("*") if path.parts[0] != "sweeps" or path.suffix == ".parquet"
    )


@pytest.mark.parametrize("command", TABLE)
def test_wrong_use_ends_with_its_code(command: str, here: Any) -> None:
    before = listing()
    for code, more in TABLE[command]:
        words = shlex.split(f"{command} {more}")
        as_json = words[0] != "serve"
        status, out, err = here(*map(shlex.quote, words[:1]), *words[1:], "--json" if as_json else "-v")
        assert status == 2, words
        *notes, sentence = err.splitlines()
        assert sentence.startswith("laminabench: error: "), words
        assert all(note.startswith("laminabench: ") for note in notes), words
        message = json.loads(out)["error"]["code"] if as_json else sentence.rpartition("[")[2].rstrip("]")
        assert message == code, words
    assert listing() == before
