#!/bin/sh
# Compile the CUDA kernels as strictly as can be without a GPU: no warning, machine code for every architecture, every
# kernel, and none that spills registers to memory. Where there is no nvcc, says so. Argument: the virtual environment.
set -eu
venv=${1:-.venv}
PATH="$PWD/$venv/bin:$PATH"
export PATH
build=build/check-cuda

if ! command -v "${CUDACXX:-nvcc}" >/dev/null; then
  echo "check-cuda: the CUDA kernels are not checked, because there is no nvcc here"
  exit 0
fi
rm -rf "$build/ptx"
mkdir -p "$build/ptx"
architectures="sm_80 sm_90 sm_100"
unset CUDAARCHS
# The compiler's report comes with compiling: everything is compiled again.
cmake --fresh -S csrc/cuda -B "$build" -G Ninja -DLAMINA_CUDA=ON -DLAMINA_WERROR=ON \
  "-DCMAKE_CUDA_ARCHITECTURES=80-real;90;100-real" \
  "-DCMAKE_CUDA_FLAGS=-Xptxas=-v --keep --keep-dir=$PWD/$build/ptx" >"$build/configure.log" || { cat "$build/configure.log" >&2; exit 1; }
if ! cmake --build "$build" --clean-first --parallel "${CUDA_JOBS:-2}" --verbose >"$build/build.log" 2>&1; then
  grep -vE '^ptxas info|bytes stack frame' "$build/build.log" >&2
  exit 1
fi

# From the intermediate code: how many threads a block of a kernel has.
awk '/\.entry/ { sub(/\(.*/, "", $NF); kernel = $NF } /\.maxntid/ { sub(/,/, "", $2); print kernel, $2 }' \
  "$build"/ptx/*.ptx | sort -u >"$build/threads.txt"
# From ptxas -v: which kernel, its registers, its static shared memory, its spills, and of how many of a multiprocessor's
# 64 warps its registers leave room. The attention kernels' shared memory is allocated at launch, so it is not in
# this table: there may be room for fewer.
awk '
  function warps(registers, threads) {
    each = int((threads + 31) / 32)
    blocks = int(int(65536 / (int((registers * 32 + 255) / 256) * 256)) / each)
    if (blocks > 32) blocks = 32
    return blocks * each > 64 ? int(64 / each) * each : blocks * each
  }
  function short(name) {
    if (name ~ /7WarpMma|9LatentMma/) {
      element = name ~ /4Bf16/ ? "bf16" : "f16"
    } else if (name ~ /F32/ || name ~ /8WarpSimt|10LatentSimt/) {
      element = "f32"
    } else if (name ~ /6finish|4norm|6rotate|4gate/) {
      element = name ~ /4Bf16/ ? "bf16" : "f16"
    } else {
      element = ""
    }
    split("attend finish share_out combine append norm rotate gate send recv poll fetch give_back post poll_nic", verbs, " ")
    for (i = 1; i <= 15; ++i) if (index(name, length(verbs[i]) verbs[i])) found = verbs[i]
    if (found == "attend" && name ~ /6Latent/) {
      heads = match(name, /ELi[0-9]+E/) ? substr(name, RSTART + 3, RLENGTH - 4) : 16
      return sprintf("attend %s, latent, %s heads", element, heads)
    }
    if (found == "attend") {
      size = substr(name, match(name, /ELi[0-9]+ELi[0-9]+E|WarpSimtILi[0-9]+ELi[0-9]+E/), RLENGTH)
      gsub(/[^0-9]+/, " ", size)
      split(size, sizes, " ")
      return sprintf("attend %s, dimensions to %s, %s heads", element, sizes[1], sizes[2])
    }
    if (found == "norm") {
      match(name, /Li[0-9]+E/)
      return sprintf("norm %s, %s threads a row", element, substr(name, RSTART + 2, RLENGTH - 3))
    }
    return found (element == "" ? "" : " " element)
  }
  NR == FNR { threads[$1] = $2; next }
  /Compiling entry function/ { split($0, words, "\047"); kernel = words[2]; arch = words[4] }
  /bytes spill stores/ { spills = $5 + $9 }
  /Used [0-9]+ registers/ {
    registers = 0; shared = 0
    for (i = 1; i <= NF; ++i) {
      if ($i == "Used") registers = $(i + 1)
      if ($i == "smem," || $i == "smem") shared = $(i - 2)
    }
    printf "%-6s %-40s %4d threads %3d registers %2d warps %5d bytes shared %5d bytes spilled\n", arch, short(kernel),
      threads[kernel], registers, warps(registers, threads[kernel]), shared, spills
  }' "$build/threads.txt" "$build/build.log" | sort >"$build/kernels.txt"
cat "$build/kernels.txt"

fail() {
  echo "check-cuda: $*" >&2
  exit 1
}
# 6 attention kernels for each 16-bit type, 3 for fp32, of latent KV 2 and 1, a finish for each type, the three that know
# no type, the channel's five, the NIC's two, and the operators' fourteen.
for arch in $architectures; do
  count=$(grep -c "^$arch " "$build/kernels.txt" || true)
  [ "$count" -eq 47 ] || fail "there are $count kernels for $arch instead of 47"
done
grep -v ' 0 bytes spilled' "$build/kernels.txt" >&2 && fail "these kernels spill registers to memory"

library=$build/liblamina_cuda.so
if command -v cuobjdump >/dev/null; then
  for arch in $architectures; do
    cuobjdump --list-elf "$library" | grep -q "$arch" || fail "the library has no code for $arch"
  done
  cuobjdump --list-ptx "$library" | grep -q sm_90 || fail "the library has no PTX for newer GPUs"
  count=$(cuobjdump -res-usage "$library" | grep -c '^ Function ')
  [ "$count" -eq 141 ] || fail "the library has $count kernels instead of 141"
fi
# It loads without a driver, and then either finds a device or says in a sentence that there is none.
python - "$library" <<'CODE'
import ctypes
import sys

library = ctypes.CDLL(sys.argv[1])
library.lamina_cuda_message.restype = ctypes.c_char_p
status = library.lamina_cuda_check_device()
print("check-cuda:", "there is a device" if status == 0 else library.lamina_cuda_message().decode())
sys.exit(status not in (0, 2))
CODE
echo "check-cuda: all kernels compile, none spills"
