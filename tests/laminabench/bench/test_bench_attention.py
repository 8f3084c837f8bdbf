"""Where there is no GPU the GPU's benchmark says so."""

from __future__ import annotations

import pytest

from laminabench.cli.main import run


def test_without_a_gpu_the_gpus_benchmark_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    torch = pytest.importorskip("torch")
    if torch.cuda.is_available():
        pytest.skip("there is a CUDA device here")
    with pytest.raises(SystemExit) as exit_:
        run(["bench", "attention", "--device", "cuda"])
    assert exit_.value.code == 2
    assert "this benchmark needs a GPU" in capsys.readouterr().err
