"""A page's folder, with the files that readers have or name."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from doc_blocks import ROOT
from doc_runner import PageRun, environment, of_page

from laminabench.cli.main import run


def traffic() -> str:
    """Requests of a reader's own, enough to fill batches; with a second set of columns, by other names."""
    rows = ["arrival_s,prompt_tokens,output_tokens,t,in,out"]
    for number in range(2000):
        row = f"{number / 5},{200 + number * 37 % 3000},{50 + number * 13 % 400}"
        rows.append(f"{row},{row}")
    return "\n".join(rows) + "\n"


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small model with weights, as `path/to/model`."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        num_hidden_layers=2, hidden_size=64, num_attention_heads=4, num_key_value_heads=2, head_dim=16,
        intermediate_size=128, vocab_size=16000, max_position_embeddings=2048,
    )  # fmt: skip
    folder = tmp_path_factory.mktemp("model")
    LlamaForCausalLM(config).save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def conversions(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What pages keep of the models that they convert, each of some seconds, for the next ones."""
    return tmp_path_factory.mktemp("conversions")


@pytest.fixture
def page_run(
    tmp_path: Path,
    conversions: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    request: pytest.FixtureRequest,
) -> Iterator[Callable[..., PageRun]]:
    """Run a page in a folder of its own; what failed is in the result."""
    for name, value in environment(tmp_path / "home").items():
        monkeypatch.setenv(name, value)
    for name in ("LAMINABENCH_TRACES", "LAMINABENCH_DEBUG", "LAMINABENCH_VLLM"):
        monkeypatch.delenv(name, raising=False)
    # Work is done in this process: a pool takes seconds to start.
    monkeypatch.setattr("laminabench.util.parallel.cores", lambda: 1)
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "conversions").symlink_to(conversions)
    folder = tmp_path / "page"
    folder.mkdir()
    monkeypatch.chdir(folder)

    def call(words: list[str]) -> tuple[int, str, str]:
        capsys.readouterr()
        with pytest.raises(SystemExit) as exit_:
            run(words)
        out, err = capsys.readouterr()
        assert isinstance(exit_.value.code, int)
        return exit_.value.code, out, err

    def made(page: str, *, long: bool) -> PageRun:
        expected = of_page(page, "files", [])
        for each in expected:  # a name, or NAME=its source in the tree
            name, _, copied = each.partition("=")
            if name == "mine.csv":
                (folder / name).write_text(traffic())
                continue
            source = ROOT / "tests" / "docs" / "files" / name
            if name == "path/to/model":
                if not long:
                    continue
                source = request.getfixturevalue("model_folder")
            elif not source.exists():
                source = ROOT / (copied or name)
            target = folder / name
            target.parent.mkdir(parents=True, exist_ok=True)
            (shutil.copytree if source.is_dir() else shutil.copyfile)(source, target)
        result = PageRun(page, folder, call, long)
        result.run()
        return result

    yield made
    os.chdir("/")


__all__ = ["conversions", "model_folder", "page_run"]
