#!/bin/sh
# `make gpu`: build for this GPU only, then run all measurements. Missing tools are reported before anything is built.
# Argument: the virtual environment. Not verified on hardware.
set -eu
venv=$1

fail() {
  echo "make gpu: $*" >&2
  exit 2
}
capabilities=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null | tr -d '. ' | grep -x '[0-9][0-9]*' | sort -u) || true
[ -n "$capabilities" ] || fail "this needs an NVIDIA GPU and its driver, and nvidia-smi lists none here"
command -v "${CUDACXX:-nvcc}" >/dev/null ||
  fail "nvcc is needed to build the kernels: install the CUDA toolkit, or set CUDACXX to where its nvcc is"
CUDAARCHS=$(echo "$capabilities" | sed 's/$/-real/' | paste -sd ';' -)
export CUDAARCHS

# A build for others, or without nvcc, is made anew; what changed below csrc/ is noticed by make.
built=$venv/.cuda-architectures
[ "$(cat "$built" 2>/dev/null)" = "$CUDAARCHS" ] || rm -f "$venv/.ready"
echo "make gpu: building for $CUDAARCHS"
"${MAKE:-make}" --no-print-directory setup
echo "$CUDAARCHS" >"$built"
exec "$venv/bin/python" tools/bench.py gpu
