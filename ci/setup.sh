#!/bin/sh
# Build the virtual environment with laminabench in it, editable. Says in one sentence what is missing.
set -eu
venv=$1

fail() {
  echo "make setup: $*" >&2
  exit 1
}

python=${PYTHON:-}
if [ -z "$python" ]; then
  for candidate in python3 python3.14 python3.13 python3.12 python3.11; do
    if "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
      python=$candidate
      break
    fi
  done
fi
[ -n "$python" ] || fail "Python 3.11 or newer is needed; on Debian and Ubuntu: sudo apt-get install python3 python3-dev python3-venv"
"$python" -c 'import ensurepip' 2>/dev/null ||
  fail "$python cannot make virtual environments; on Debian and Ubuntu: sudo apt-get install python3-venv"
"$python" -c 'import os, sys, sysconfig; sys.exit(not os.path.exists(sysconfig.get_path("include") + "/Python.h"))' ||
  fail "$python has no C headers; on Debian and Ubuntu: sudo apt-get install python3-dev"
compiler=${CXX:-}
for candidate in c++ g++ clang++; do
  [ -n "$compiler" ] || ! command -v "$candidate" >/dev/null || compiler=$candidate
done
[ -n "$compiler" ] || fail "a C++20 compiler is needed; on Debian and Ubuntu: sudo apt-get install g++"
echo 'int main() { return [](auto x) requires(sizeof(x) > 0) { return 0; }(1); }' |
  "$compiler" -std=c++20 -x c++ -fsyntax-only - 2>/dev/null ||
  fail "$compiler does not compile C++20; on Debian and Ubuntu: sudo apt-get install g++ (11 or newer)"

say() { echo "make setup: $*"; }
if [ ! -x "$venv/bin/python" ]; then
  say "creating $venv with $("$python" --version)"
  "$python" -m venv "$venv"
fi
pip="$venv/bin/python -m pip --disable-pip-version-check --quiet"
say "installing the build tools"
# Without build isolation a rebuild is incremental, and the build uses the pinned tools.
$pip install --constraint ci/constraints.txt scikit-build-core nanobind ninja cmake
say "building laminabench and installing what it needs (a few minutes the first time)"
PATH="$PWD/$venv/bin:$PATH" CXX="$compiler" $pip install --constraint ci/constraints.txt --no-build-isolation \
  --config-settings=cmake.define.LAMINA_WERROR="${LAMINA_WERROR:-OFF}" --editable '.[dev]'
