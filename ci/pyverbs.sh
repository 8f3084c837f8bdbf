#!/bin/sh
# Make sure that there is pyverbs, with which work requests are compared (tests/lamina/fhbn/test_wqe.py) and devices are
# listed, and rdma-core's headers, with which our declarations are (test_ibverbs_layout.py). Where they cannot be had it
# says what to do and succeeds: those tests then skip, and say so. Argument: the virtual environment.
set -eu
venv=${1:-.venv}

say() { echo "pyverbs: $*"; }
headers() { [ -e /usr/include/infiniband/mlx5dv.h ]; }
# Nothing if it can be loaded, else why not.
why_not() { "$venv/bin/python" -c 'from lamina.fhbn.nic.devices import pyverbs; pyverbs()' 2>&1 | tail -n 1; }

if headers && [ -z "$(why_not)" ]; then
  say "it is here"
  exit 0
fi
# shellcheck source=ci/as-root.sh
. "$(dirname "$0")/as-root.sh"
if [ "$as_root" = no ] || ! command -v apt-get >/dev/null; then
  say "there is no pyverbs, or no libibverbs-dev, and this user may not install packages; install both"
  exit 0
fi
say "installing python3-pyverbs and libibverbs-dev"
# shellcheck disable=SC2086
if ! said=$({ $as_root apt-get update -qq && $as_root env DEBIAN_FRONTEND=noninteractive \
  apt-get install -qq -y --no-install-recommends python3-pyverbs libibverbs-dev; } 2>&1); then
  say "they could not be installed ($(echo "$said" | tail -n 1)); install them"
elif why=$(why_not) && [ -n "$why" ]; then
  say "$why"
else
  say "it is here"
fi
