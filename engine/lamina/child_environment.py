"""The environment variables that child processes inherit: an allowlist, as others hold keys."""

from __future__ import annotations

import os
import re

# Of C and its compilers, Python, libraries of threads and devices, sanitizers, Ray, and our own.
_ALLOWED = re.compile(
    "(HOME|LANG|LD_LIBRARY_PATH|LD_PRELOAD|LOGNAME|PATH|TMPDIR|TZ|USER|VIRTUAL_ENV)$"
    "|ASAN_|COVERAGE_|CPATH|CUDA_|CXX|GLIBC_|GOMP_|IBV_|KMP_|LAMINA|LC_|LSAN_|MALLOC_|MKL_|MLX5_"
    "|NVIDIA_|OMP_|OPENBLAS_|PYTHON|PYTORCH_|RAY_|RDMA|TORCH|TRITON_|TSAN_|UBSAN_|XDG_"
)
_SECRET = re.compile("KEY|TOKEN|SECRET|PASSW|CREDENTIAL|AUTH")


def child_environment() -> dict[str, str]:
    return {
        name: value for name, value in os.environ.items() if _ALLOWED.match(name) and not _SECRET.search(name)
    }
