"""What tests of benchmarks share: the command line, and a model that takes next to no time."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from laminabench.cli.main import run

Shell = Callable[..., tuple[object, str, str]]


@pytest.fixture
def shell(capsys: pytest.CaptureFixture[str]) -> Shell:
    """`laminabench bench ...`: exit code, stdout and stderr."""

    def shell(*arguments: str) -> tuple[object, str, str]:
        with pytest.raises(SystemExit) as exit_:
            run(["bench", *arguments])
        return exit_.value.code, *capsys.readouterr()

    return shell


@pytest.fixture
def facts(shell: Shell) -> Callable[..., dict[str, Any]]:
    """The one object that `laminabench bench ... --json` prints."""

    def facts(*arguments: str) -> dict[str, Any]:
        code, out, err = shell(*arguments, "--json")
        assert code == 0, err
        found: dict[str, Any] = json.loads(out)
        return found

    return facts


@pytest.fixture(scope="session")
def tiny() -> Callable[[], Any]:
    """In place of `mini_config`."""
    transformers = pytest.importorskip("transformers")
    return lambda: transformers.LlamaConfig(
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        vocab_size=100,
        max_position_embeddings=1 << 16,
        bos_token_id=None,
        eos_token_id=None,
    )
