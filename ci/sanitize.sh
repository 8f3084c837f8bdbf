#!/bin/sh
# Build the native code with AddressSanitizer and UndefinedBehaviorSanitizer and run the tests that exercise it.
# Arguments: the virtual environment; `build` for no more than that.
set -eu
venv=$1
site=build/sanitize/site
PATH="$PWD/$venv/bin:$PATH"
export PATH

cmake -S . -B build/sanitize -G Ninja -DCMAKE_BUILD_TYPE=Debug -DCMAKE_CXX_FLAGS_DEBUG= -DLAMINA_SANITIZE=ON -DLAMINA_SOFTNIC=ON -DLAMINA_WERROR=ON \
  -DPython_EXECUTABLE="$PWD/$venv/bin/python" >/dev/null
cmake --build build/sanitize
[ "${2:-}" != build ] || exit 0
ctest --test-dir build/sanitize --parallel 2 --output-on-failure --timeout 240

# The sanitised module next to the Python sources, ahead of the editable install (whose import hook -S leaves out).
rm -rf "$site"
mkdir -p "$site"
cp -r engine/lamina laminabench "$site"
cmake --install build/sanitize --prefix "$site" >/dev/null
packages=$(python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
preload="$(${CXX:-c++} -print-file-name=libasan.so):$(${CXX:-c++} -print-file-name=libubsan.so)"
# The interpreter does not free everything at exit; leaks of ours are caught by the C++ tests above. -P leaves
# the checkout out, where laminabench lies without its native module.
run() {
  LD_PRELOAD=$preload ASAN_OPTIONS=detect_leaks=0 PYTHONPATH="$site:$packages" python -S -P "$@"
}
for module in lamina._native laminabench._sim; do
  run -c "import $module as n; assert 'sanitize' in n.__file__, f'the tests would run {n.__file__} instead'"
done
# Only tests of the native code: tests on torch take minutes here, and errors in torch are not ours to fix.
# Two at a time; xdist's processes would have the import hook.
tests() {
  run -m pytest -q -p no:cacheprovider "$@"
}
tests tests/lamina/fhbn &
tests tests/lamina/core tests/lamina/kv \
  tests/lamina/attention/test_attention_native.py tests/laminabench/systems/modelled/h2m2/test_h2m2_pages.py \
  tests/laminabench/systems/modelled/h2m2/test_h2m2_slots.py tests/laminabench/systems/modelled/h2m2/test_h2m2_memory.py \
  tests/laminabench/systems/modelled/h2m2/test_h2m2_room.py tests/laminabench/sim/test_sim_reference.py \
  tests/laminabench/sim/test_fleet_reference.py tests/laminabench/sim/test_instances.py || { wait; exit 1; }
wait $!
