#!/bin/sh
# Build the virtual environment with laminabench in it, editable. Says in one sentence what is missing. Arguments: its
# folder, and how much goes into it: `core`, what modelled replays and pages about them need, or `all`, with the engine
# and what develops it.
set -eu
venv=$1
extent=${2:-all}

say() { echo "make setup: $*"; }
fail() {
  say "$*" >&2
  exit 1
}
new_enough() { "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; }

python=${PYTHON:-}
if [ -n "$python" ]; then
  command -v "$python" >/dev/null || fail "PYTHON is $python, which cannot be run; unset it or name an interpreter"
  new_enough "$python" || fail "PYTHON is $python, which is no Python 3.11 or newer; unset it or name a newer one"
else
  for candidate in python3 python3.14 python3.13 python3.12 python3.11; do
    if new_enough "$candidate"; then
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
# Of C++20, what csrc/ uses: g++ 10 has concepts but not all of this. $compiler may be two words, as in "ccache g++".
# shellcheck disable=SC2086
$compiler -std=c++20 -x c++ -fsyntax-only - 2>/dev/null <<'CODE' ||
#include <bit>
#include <compare>
#include <memory>
#include <span>
struct Order { int a; auto operator<=>(const Order&) const = default; };
int main() {
  std::shared_ptr<int[]> numbers(new int[std::bit_ceil(3u)]);
  std::span<int> view(numbers.get(), 4);
  auto least = [](auto x) requires(sizeof(x) > 0) { return x; };
  return least(Order{1} < Order{2}) ? static_cast<int>(view.size()) : std::countr_zero(4u);
}
CODE
  fail "$compiler does not compile C++20; on Debian and Ubuntu: sudo apt-get install g++ (11 or newer)"

# An interrupted run may have left an environment without pip.
if ! "$venv/bin/python" -m pip --version >/dev/null 2>&1; then
  say "creating $venv with $("$python" --version)"
  "$python" -m venv --clear "$venv"
fi
# Bytecode is written where something is imported: of most packages that is little. Only files whose hashes ci/locked has,
# and no build scripts of others; pip resolves nothing.
pip="$venv/bin/python -m pip --disable-pip-version-check --quiet"
locked="$pip install --no-compile --require-hashes --no-deps --only-binary :all:"
say "installing the build tools"
# Without build isolation a rebuild is incremental, and the build uses the pinned tools.
$locked --requirement ci/locked/build.txt
if [ "$extent" = core ]; then
  say "building the simulator and installing what a modelled replay and its pages need (a minute the first time)"
  what='.[report,view]'
  $locked --requirement ci/locked/core.txt
  engine=OFF softnic=OFF
else
  say "building laminabench and installing what it needs (torch included: some minutes the first time)"
  what='.[dev,docs,engine,figures,report,serve,endpoint,view]'
  # pip would prefer a build for CUDA that an index has, which needs gigabytes more of it.
  $locked --requirement ci/locked/torch-cpu.txt >/dev/null 2>&1 ||
    say "pip finds no CPU build of torch that is pinned, and takes what its index has"
  $locked --requirement ci/locked/core.txt --requirement ci/locked/engine.txt \
    --requirement ci/locked/dev.txt
  "$venv/bin/python" -c 'import importlib.metadata as m, sys; sys.exit(any("nvidia" in r for r in m.requires("torch") or ()))' ||
    $locked --requirement ci/locked/cuda.txt
  engine=ON softnic=ON
fi
# Of what is there: pip asks no index, and says so if something is missing.
PATH="$PWD/$venv/bin:$PATH" CXX="$compiler" $pip install --no-compile --no-index --no-build-isolation --editable "$what" \
  --config-settings=cmake.define.LAMINA_ENGINE=$engine \
  --config-settings=cmake.define.LAMINA_SOFTNIC=$softnic \
  --config-settings=cmake.define.LAMINA_WERROR="${LAMINA_WERROR:-OFF}"
