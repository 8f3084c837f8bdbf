#!/bin/sh
# Build a wheel as a user's pip would, and use it where there is no checkout: what the editable install hides.
set -eu
root=$PWD
python=$root/$1/bin/python
wheel=$root/build/check-wheel
packages=$("$python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')

rm -rf "$wheel"
# What `make setup` has compiled is not compiled again.
PATH="$root/$1/bin:$PATH" "$python" -m pip --disable-pip-version-check --quiet wheel --no-build-isolation --no-deps \
  --config-settings=build-dir='build/editable-{cache_tag}' \
  --config-settings=cmake.define.LAMINA_WERROR="${LAMINA_WERROR:-OFF}" --wheel-dir "$wheel" .
"$python" -m zipfile -e "$wheel"/laminabench-*.whl "$wheel/site"

found=$(cd "$wheel/site" && set -- * && echo "$#: $*")
case "$found" in
  '3: lamina laminabench laminabench-'*.dist-info) ;;
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
  test -s "site/laminabench/report/$part" || { echo "the wheel lacks $part of laminabench report" >&2; exit 1; }
done
for part in pins-cpu.txt pins-cuda.txt decode_replay/__main__.py; do
  test -s "site/laminabench/_tree/baselines/vllm/$part" || { echo "the wheel lacks vLLM's $part" >&2; exit 1; }
done
for part in lamina/_native laminabench/_sim; do
  test -s "site/$part.pyi" && test -f "site/${part%/*}/py.typed" || { echo "the wheel lacks the types of $part" >&2; exit 1; }
done
echo "the wheel works on its own: $("$python" -c 'import json; print(json.load(open("info.json"))["origin"])')"
