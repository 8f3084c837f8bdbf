#!/bin/sh
# Make sure that there is pyverbs, with which work requests are compared (tests/lamina/fhbn/test_wqe.py) and devices are
# listed, and rdma-core's headers, with which our declarations are (test_ibverbs_layout.py). Where they cannot be had it
# says what to do and succeeds: those tests then skip, and say so. Argument: the virtual environment.
set -eu
venv=${1:-.venv}

say() { echo "pyverbs: $*"; }
found() {
  "$venv/bin/python" -c 'from lamina.fhbn.nic.pyverbs_package import pyverbs; pyverbs()' 2>/dev/null &&
    [ -e /usr/include/infiniband/mlx5dv.h ]
}

if found; then
  say "it is here"
  exit 0
fi
if [ "$(id -u)" -eq 0 ]; then
  as_root=
elif command -v sudo >/dev/null && sudo -n true 2>/dev/null; then
  as_root='sudo -n'
else
  as_root=no
fi
if [ "$as_root" = no ] || ! command -v apt-get >/dev/null; then
  say "there is no pyverbs, or no libibverbs-dev, and nobody may install them here; install both"
  exit 0
fi
say "installing python3-pyverbs and libibverbs-dev"
# shellcheck disable=SC2086
if $as_root apt-get update -qq >/dev/null 2>&1 &&
  $as_root env DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends \
    python3-pyverbs libibverbs-dev >/dev/null 2>&1 && found; then
  say "it is here"
else
  say "there is no python3-pyverbs for this Python; install 'laminabench[rdma]'"
fi
