#!/bin/sh
# Run README's commands as a newcomer does: in a root of its own, a Debian 12 with the packages that README names and no
# more, as an ordinary user with an empty home, on a clone of what is committed. Of this machine it sees the network and
# what pip's own configuration names (indexes, folders of wheels, certificates), read-only. Where there can be no such
# root it says so: that is a failure in CI (CI=true); elsewhere it is skipped (exit code 77).
#
#     ci/bare.sh              make replay, again, a page about a CSV, and make test
#     ci/bare.sh COMMAND...   each argument a command for sh instead, as in `ci/bare.sh 'make replay' bash`
set -eu
here=$(cd "$(dirname "$0")" && pwd)
project=$(dirname "$here")
release=bookworm

say() { echo "bare: $*"; }
fail() {
  say "$*" >&2
  exit 1
}
unavailable() {
  [ "${CI:-}" != true ] || fail "$*"
  say "skipped: $*"
  exit 77
}
# shellcheck source=ci/as-root.sh
. "$here/as-root.sh"
# shellcheck source=ci/debian.sh
. "$here/debian.sh"

[ "$(uname -s)" = Linux ] || unavailable "a root of its own can be had on Linux only"
[ "$as_root" != no ] || unavailable "only root can make a root of its own; run it as root or with sudo"
if [ -n "$as_root" ]; then
  exec $as_root env "HOME=$HOME" "CI=${CI:-}" "LAMINABENCH_HOME=${LAMINABENCH_HOME:-}" "PATH=$PATH" "$0" "$@"
fi
unshare --mount --pid --ipc true 2>/dev/null || unavailable "root may make no namespaces here (is this a container?)"
if ! command -v debootstrap >/dev/null; then
  say "installing debootstrap"
  { apt-get -qq update && DEBIAN_FRONTEND=noninteractive \
    apt-get -qq -y install --no-install-recommends debootstrap debian-archive-keyring; } >/dev/null 2>&1 ||
    unavailable "debootstrap could not be installed; install it"
fi

# The root, built once for each list of packages.
packages=$(sed -n 's/^sudo apt-get install \([^#]*\).*/\1/p' "$project/README.md" | head -n 1)
[ -n "$packages" ] || fail "README.md has no line 'sudo apt-get install ...', which says what a newcomer installs"
packages=$(echo $packages | tr ' ' ,)
cache=${LAMINABENCH_HOME:-${XDG_CACHE_HOME:-$HOME/.cache}/laminabench}/bare
mkdir -p "$cache"
may_hold_a_system "$cache" || unavailable "$cache is mounted nodev or noexec; set LAMINABENCH_HOME to another folder"
exec 9>"$cache/lock"
flock 9
root=$cache/$release-$( (echo "$packages" && cat "$here/debian.sh") | sha256sum | cut -c 1-12)
if [ ! -d "$root" ]; then
  say "building a Debian with $packages (a minute, once)"
  rm -rf --one-file-system "$cache"/*/
  if ! bootstrap "$release" "$root.part" "$(mirror_of "$release")" "$packages" >"$cache/log" 2>&1; then
    tail -n 20 "$cache/log" >&2
    umount "$root.part/sys" "$root.part/proc" 2>/dev/null || true
    unavailable "its Debian could not be built (debootstrap's last lines are above)"
  fi
  chroot "$root.part" useradd --create-home --shell /bin/bash newcomer
  rm -rf "$root.part/var/cache/apt" "$root.part/var/lib/apt/lists" "$root.part/debootstrap"
  mv "$root.part" "$root"
fi
flock --unlock 9

# What the newcomer has: a clone, and nothing else in the home.
work=$project/build/bare
rm -rf --one-file-system "$work"
mkdir -p "$work/home"
trap 'rm -rf --one-file-system "$work"' EXIT
trap 'exit 130' INT TERM HUP
git -c safe.directory='*' clone --quiet --no-hardlinks "$project" "$work/home/laminabench"
chown -R 1000:1000 "$work/home"
say "$(git -c safe.directory='*' -C "$project" log -1 --format='commit %h (%s)'), $(basename "$root")"
if [ -n "$(git -c safe.directory='*' -C "$project" status --porcelain --untracked-files=no)" ]; then
  say "what is not committed is not in it"
fi

# pip's configuration here, from files and the environment, as one file; and the paths that it names.
python=$project/.venv/bin/python
[ -x "$python" ] || python=python3
"$python" -m pip config list 2>/dev/null | "$python" "$here/bare_pip.py" "$work" || fail "pip's configuration cannot be read"

# A newcomer's own traffic, and README's question about it.
csv='BEGIN { print "arrival_s,prompt_tokens,output_tokens"; for (i = 0; i < 2000; i++) print i / 5 "," 200 + i * 37 % 3000 "," 50 + i * 13 % 400 }'
ask=".venv/bin/laminabench compare --trace ~/mine.csv --model llama3-70b --report ~/answer.html"
[ $# -gt 0 ] || set -- 'make replay' 'make replay' "awk '$csv' >~/mine.csv" "$ask" 'test -s ~/answer.html' 'make test'
unshare --mount --pid --ipc --fork --kill-child sh "$here/bare-inside.sh" "$root" "$work" "$@" </dev/null
untracked=$(git -c safe.directory='*' -C "$work/home/laminabench" status --porcelain)
[ -z "$untracked" ] || fail "the commands leave this in the tree: $untracked"
