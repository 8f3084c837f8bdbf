#!/bin/sh
# Build an sdist, and from it a wheel, with no network: pip finds the build requirements in a folder that was filled
# before. What the sdist lacks is missing then. Without optimisation: that it builds is the question.
set -eu
root=$PWD
python=$root/$1/bin/python
work=$root/build/check-sdist
pip="$python -m pip --disable-pip-version-check --quiet"

rm -rf "$work"
mkdir -p "$work/requirements"
"$python" -c 'import sys; from scikit_build_core.build import build_sdist; build_sdist(sys.argv[1])' "$work" >/dev/null
# cmake and ninja are requested too if the machine has none that are new enough.
$pip download --require-hashes --no-deps --only-binary=:all: --dest "$work/requirements" --requirement ci/locked/build.txt
cd "$work"
# An index of this machine's own would be one that pip asks all the same.
# shellcheck disable=SC2086
env PIP_CONFIG_FILE=/dev/null PIP_NO_INDEX=1 PIP_FIND_LINKS="$work/requirements" $pip wheel --no-deps \
  --config-settings=cmake.build-type=Plain --config-settings=cmake.define.LAMINA_CUDA=OFF \
  --wheel-dir "$work/wheel" "$work"/laminabench-*.tar.gz
"$python" -m zipfile -l "$work"/wheel/laminabench-*.whl >content.txt
for part in laminabench/_sim. lamina/_native. LICENSE NOTICE; do
  grep -q "$part" content.txt || { echo "a wheel from the sdist lacks $part" >&2; exit 1; }
done
echo "the sdist builds with no network"
