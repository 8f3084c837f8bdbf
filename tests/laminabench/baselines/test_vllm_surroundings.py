"""What the runner tells of its variables."""

from __future__ import annotations

from laminabench.baselines.vllm.decode_replay.surroundings import told


def test_what_vllm_goes_by_is_told_and_no_secret() -> None:
    variables = {
        "VLLM_CPU_OMP_THREADS_BIND": "0|1",
        "VLLM_MAX_TOKENS": "9",
        "HF_HUB_OFFLINE": "1",
        "HF_ENDPOINT": "https://somebody:hush@models.example/x",
        "HF_TOKEN": "hush",
        "VLLM_API_KEY": "hush",
        "HOME": "/home/somebody",
    }
    assert told(variables) == {
        "HF_ENDPOINT": "https://models.example/x",
        "HF_HUB_OFFLINE": "1",
        "HF_TOKEN": "(secret)",
        "VLLM_API_KEY": "(secret)",
        "VLLM_CPU_OMP_THREADS_BIND": "0|1",
        "VLLM_MAX_TOKENS": "9",
    }
