"""Environment of child processes: a list of allowed variables, since others may be keys."""

from __future__ import annotations

import os
import re

_ALLOWED = re.compile(
    "(HOME|LANG|LD_LIBRARY_PATH|LD_PRELOAD|LOGNAME|PATH|TMPDIR|TZ|USER|VIRTUAL_ENV)$"
    "|CPATH|CUDA_|CXX|GLIBC_|GOMP_|KMP_|LAMINA|LC_|MALLOC_|MKL_|NCCL_|NVIDIA_|OMP_|OPENBLAS_|PYTHON"
    "|PYTORCH_|TORCH|TRITON_|VLLM_|XDG_"
)
# How pip reaches an index, whose URL may have the password that it needs.
_OF_PIP = re.compile("PIP_|SSL_CERT_|REQUESTS_CA_BUNDLE|(https?|no|all)_proxy$", re.IGNORECASE)
_SECRET = re.compile("KEY|TOKEN|SECRET|PASSW|CREDENTIAL|AUTH")


def child_environment(**more: str) -> dict[str, str]:
    """Return the allowed variables, and `more`."""
    return {name: value for name, value in os.environ.items() if _may_have(name)} | more


def pip_environment(**more: str) -> dict[str, str]:
    """Return the child's environment with pip's options."""
    return {
        name: value for name, value in os.environ.items() if _may_have(name) or _OF_PIP.match(name)
    } | more


def _may_have(name: str) -> bool:
    return _ALLOWED.match(name) is not None and _SECRET.search(name) is None
