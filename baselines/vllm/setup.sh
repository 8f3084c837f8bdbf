#!/bin/sh
# Build the environment of the vLLM runner, DIR or .venv-vllm. Says in one sentence what is missing.
set -eu
here=$(dirname "$0")
venv=${1:-.venv-vllm}
wanted=$here/requirements.txt
installed=$venv/.requirements.txt # what was installed when all of it was

say() { echo "make vllm: $*"; }
fail() {
  say "$*" >&2
  exit 1
}
right_version() { "$1" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 15))' 2>/dev/null; }

if cmp -s "$wanted" "$installed" && "$venv/bin/python" -c '' 2>/dev/null; then
  say "$venv is ready"
  exit 0
fi

[ "$(uname -s) $(uname -m)" = "Linux x86_64" ] || fail "the versions it needs are pinned for Linux on x86_64 only"
python=${PYTHON:-}
if [ -n "$python" ]; then
  command -v "$python" >/dev/null || fail "PYTHON is $python, which cannot be run; unset it or name an interpreter"
  right_version "$python" || fail "PYTHON is $python, which is no Python 3.11 to 3.14; unset it or name another one"
else
  # 3.11 is what the versions were resolved for.
  for candidate in python3.11 python3 python3.12 python3.13 python3.14; do
    if right_version "$candidate"; then
      python=$candidate
      break
    fi
  done
fi
[ -n "$python" ] || fail "Python 3.11 is needed; on Debian and Ubuntu: sudo apt-get install python3 python3-venv"
"$python" -c 'import ensurepip' 2>/dev/null ||
  fail "$python cannot make virtual environments; on Debian and Ubuntu: sudo apt-get install python3-venv"
# vLLM compiles the model's kernels when it loads it.
command -v g++ >/dev/null || fail "a C++ compiler is needed; on Debian and Ubuntu: sudo apt-get install g++"
folder=$(dirname "$venv")
# What is there is cleared away, so it has to be an environment.
[ -z "$(ls -A "$venv" 2>/dev/null)" ] || [ -f "$venv/pyvenv.cfg" ] ||
  fail "$venv is there and is no virtual environment; name another folder"
[ -d "$folder" ] || fail "$folder is no folder"
# 2.4 GB when it is done, and room for the download of a wheel.
free_kib=$(df -Pk "$folder" | awk 'END { print $4 }')
[ "$free_kib" -ge 4000000 ] || fail "4 GB of disk are needed, and $folder has $((free_kib / 1000000)) GB free"

rm -f "$installed"
# An interrupted run may have left an environment without pip, or with something that is no longer wanted.
say "creating $venv with $("$python" --version); it takes 2.4 GB of disk"
"$python" -m venv --clear "$venv"
pip="$venv/bin/python -m pip --disable-pip-version-check --quiet --retries 2"
torch=$(grep '^torch==' "$wanted")
say "installing $torch"
# First and alone, so that where pip finds only CUDA builds nothing else is fetched: +cpu is satisfied by none.
$pip install --no-deps --only-binary :all: "$torch" ||
  fail "pip finds no $torch: point it at a folder or an index with the CPU builds of torch (PIP_FIND_LINKS, PIP_EXTRA_INDEX_URL)"
say "installing vLLM and what it needs (some minutes)"
$pip install --no-deps --only-binary :all: --requirement "$wanted" || fail "not all of $wanted could be installed"
say "loading vLLM once"
VLLM_NO_USAGE_STATS=1 "$venv/bin/python" -c '
from vllm.platforms import current_platform
from vllm.v1.engine.llm_engine import LLMEngine
import sys
sys.exit(not current_platform.is_cpu())
' >"$venv/load.log" 2>&1 || fail "vLLM does not load as a CPU build; $venv/load.log says why"
cp "$wanted" "$installed"
say "$venv is ready; $venv/bin/python $here/decode_steps.py --help says what for"
