"""What the process that workers are forked from loads, and what it keeps others from loading."""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path
from unittest.mock import patch

import pytest

from lamina import gpu
from lamina.cluster.models import without_unused


def test_there_is_no_scikit_learn_where_there_is_no_scipy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """transformers imports the one if it is there, and that fails without the other."""
    for name in ("sklearn", "scipy"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    with patch.dict(sys.modules):
        for name in ("sklearn", "scipy"):
            sys.modules.pop(name, None)
            assert importlib.util.find_spec(name)
        without_unused()
        assert not importlib.util.find_spec("sklearn")
        assert not importlib.util.find_spec("scipy")


def test_all_kernels_are_loaded_first_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_MODULE_LOADING", raising=False)
    gpu.load_all_kernels()
    assert os.environ["CUDA_MODULE_LOADING"] == "EAGER"
    monkeypatch.setenv("CUDA_MODULE_LOADING", "LAZY")
    gpu.load_all_kernels()
    assert os.environ["CUDA_MODULE_LOADING"] == "LAZY"
