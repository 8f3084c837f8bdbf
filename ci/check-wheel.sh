#!/bin/sh
# Build a wheel as a user's pip would, and use it where there is no checkout: what the editable install hides. Then make
# of it what a release has, install that where there is no compiler, and replay, compare and report from an empty folder.
set -eu
root=$PWD
python=$root/$1/bin/python
wheel=$root/build/check-wheel
packages=$("$python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')

rm -rf "$wheel"
# What `make setup` has compiled is not compiled again.
PATH="$root/$1/bin:$PATH" "$python" -m pip --disable-pip-version-check --quiet wheel --no-build-isolation --no-deps \
  --config-settings=build-dir='build/editable-{cache_tag}' \
  --config-settings=cmake.define.LAMINA_SOFTNIC=OFF \
  --config-settings=cmake.define.LAMINA_WERROR="${LAMINA_WERROR:-OFF}" --wheel-dir "$wheel" .
"$python" -m zipfile -e "$wheel"/laminabench-*.whl "$wheel/site"

found=$(cd "$wheel/site" && set -- * && echo "$#: $*")
case "$found" in
  '4: lamina laminabench laminabench-'*'.data laminabench-'*.dist-info) ;;
  *) echo "the wheel installs other names than lamina and laminabench: $found" >&2; exit 1 ;;
esac
# -S leaves out the editable install's import hook; the dependencies are then named by hand.
cd "$wheel"
LAMINABENCH_TRACES='' LAMINABENCH_HOME="$wheel/home" PYTHONPATH="$wheel/site:$packages" "$python" -S -c '
import sys
from laminabench.cli.main import run
where = sys.modules["laminabench"].__file__
assert "check-wheel" in where, f"this would test {where} instead"
run(["traces", "info", "kimi-ta", "--offline", "--quiet", "--json"])' >info.json
for part in report.css report.js; do
  test -s "site/laminabench/render/$part" || { echo "the wheel lacks $part of laminabench report" >&2; exit 1; }
done
for paper in v1 v2 h2m2 today; do
  test -s "site/laminabench/papers/$paper/figures.toml" || { echo "the wheel lacks figures of $paper" >&2; exit 1; }
done
for part in pins-cpu.txt pins-cuda.txt attention_kernel.py decode_replay/__main__.py; do
  test -s "site/laminabench/_tree/baselines/vllm/$part" || { echo "the wheel lacks vLLM's $part" >&2; exit 1; }
done
for part in lamina/_native laminabench/_sim; do
  test -s "site/$part.pyi" && test -f "site/${part%/*}/py.typed" || { echo "the wheel lacks the types of $part" >&2; exit 1; }
done
echo "the wheel works on its own: $("$python" -c 'import json; print(json.load(open("info.json"))["origin"])')"

# As a release's wheel, which names the systems it runs on; and as people install it, where there is no compiler.
tools=$wheel/tools/bin
"$python" -m venv "$wheel/tools"
locked="--disable-pip-version-check --quiet install --require-hashes --no-deps --only-binary :all:"
# shellcheck disable=SC2086
"$tools/python" -m pip $locked --requirement "$root/ci/locked/wheel.txt"
PATH="$tools:$PATH" "$tools/auditwheel" repair --plat auto --wheel-dir repaired laminabench-*.whl 2>repair.log ||
  { cat repair.log >&2; exit 1; }
repaired=$(cd repaired && echo laminabench-*manylinux*.whl)
test -f "repaired/$repaired" || { echo "auditwheel made no manylinux wheel: $(ls repaired)" >&2; exit 1; }
"$python" -m venv "$wheel/user"
mkdir empty
cd empty
alone="env PATH=$wheel/user/bin LAMINABENCH_TRACES= LAMINABENCH_HOME=$wheel/home"
# shellcheck disable=SC2086
{
  # Then from no index: what it asks for is in ci/locked.
  $alone pip $locked --requirement "$root/ci/locked/core.txt"
  $alone pip --disable-pip-version-check --quiet install --no-index "../repaired/${repaired}[report]"
  for system in vllm lamina; do
    $alone laminabench replay --trace azure-conv --num-requests 300 --offline --quiet --system "$system" >replay.txt
  done
  $alone laminabench compare runs/* >compare.txt
  $alone laminabench report runs/* -o report.html --quiet >/dev/null
}
grep -q tokens/s replay.txt && grep -q lamina compare.txt && test -s report.html ||
  { echo "the installed command answers nothing: see $wheel/empty" >&2; exit 1; }
for part in bash-completion/completions/laminabench fish/vendor_completions.d/laminabench.fish man/man1/laminabench.1 \
  zsh/site-functions/_laminabench; do
  test -s "$wheel/user/share/$part" || { echo "the wheel installs no share/$part" >&2; exit 1; }
done
echo "the wheel installs without a compiler and answers: $repaired"
