"""The variables that vLLM and the libraries below it may go by, as a manifest may keep them."""

from __future__ import annotations

import re
from collections.abc import Mapping

_OF_INTEREST = ("VLLM_", "OMP_", "KMP_", "GOMP_", "LD_PRELOAD", "CUDA_", "NCCL_", "TORCH", "PYTORCH_", "HF_")
# HF_TOKEN and VLLM_API_KEY are secrets; a number of TOKENS is none.
_SECRET = re.compile(r"KEY|TOKEN(?!S)|SECRET|PASSW|CREDENTIAL")
_IN_ADDRESS = re.compile(r"//[^/@\s]*@")


def told(variables: Mapping[str, str]) -> dict[str, str]:
    """Value by name, in order; of a secret only that it is set."""
    return {
        name: "(secret)" if _SECRET.search(name) else _IN_ADDRESS.sub("//", value)
        for name, value in sorted(variables.items())
        if name.startswith(_OF_INTEREST)
    }
