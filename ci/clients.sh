#!/bin/sh
# Let real load generators drive our server, and hold what they say against what it counted. Arguments: our environment,
# theirs (made here), and vLLM's, for `vllm bench serve`; without that one it says so and goes on with the others.
set -eu
here=$(dirname "$0")
ours=$1
venv=$2
vllm=$3
wanted=$here/clients/requirements.txt
installed=$venv/.requirements.txt # what was installed when all of it was

say() { echo "make clients: $*"; }
fail() {
  say "$*" >&2
  exit 1
}
right_version() { "$1" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 15))' 2>/dev/null; }

if ! cmp -s "$wanted" "$installed" || ! "$venv/bin/python" -c '' 2>/dev/null; then
  [ "$(uname -s) $(uname -m)" = "Linux x86_64" ] || fail "the versions it needs are pinned for Linux on x86_64 only"
  python=${PYTHON:-}
  # 3.11 is what the versions were resolved for.
  for candidate in python3.11 python3 python3.12 python3.13 python3.14; do
    [ -n "$python" ] || ! right_version "$candidate" || python=$candidate
  done
  [ -n "$python" ] || fail "Python 3.11 is needed; on Debian and Ubuntu: sudo apt-get install python3 python3-venv"
  right_version "$python" || fail "PYTHON is $python, which is no Python 3.11 to 3.14; unset it or name another one"
  "$python" -c 'import ensurepip' 2>/dev/null ||
    fail "$python cannot make virtual environments; on Debian and Ubuntu: sudo apt-get install python3-venv"
  # What is there is cleared away, so it has to be an environment.
  [ -z "$(ls -A "$venv" 2>/dev/null)" ] || [ -f "$venv/pyvenv.cfg" ] ||
    fail "$venv is there and is no virtual environment; name another folder"
  rm -f "$installed"
  say "creating $venv with $("$python" --version); it takes 2.2 GB of disk"
  "$python" -m venv --clear "$venv"
  pip="$venv/bin/python -m pip --disable-pip-version-check --quiet --retries 2 install --no-deps --only-binary :all:"
  pip="$pip --require-hashes --requirement"
  sed -n '/^torch==/,/[^\\]$/p' "$wanted" >"$venv/torch.txt" # with its hashes
  torch=$(sed -n '1s/ .*//p' "$venv/torch.txt")
  say "installing $torch"
  # First and alone, so that where pip finds only CUDA builds nothing else is fetched.
  $pip "$venv/torch.txt" ||
    fail "pip finds no $torch that is pinned: point it at a folder or an index with the CPU builds of torch (PIP_FIND_LINKS, PIP_EXTRA_INDEX_URL)"
  say "installing aiperf, guidellm, openai and what they need (some minutes)"
  $pip "$wanted" || fail "not all of $wanted could be installed"
  cp "$wanted" "$installed"
fi
say "$venv is ready"
set -- --clients "$venv/bin/python"
python=${LAMINABENCH_VLLM:-$vllm/bin/python}
if [ -x "$python" ]; then
  set -- "$@" --vllm "$python"
else
  say "there is no $python: \`vllm bench serve\` is left out (make vllm builds its environment)"
fi
failed=0
"$ours/bin/python" "$here/clients/check.py" "$@" || failed=1
say "10,000 requests whose clients leave (some minutes)"
LAMINABENCH_DISCONNECTS=10000 "$ours/bin/pytest" -q -n 0 tests/lamina/http/hostile/test_http_load.py || failed=1
exit $failed
