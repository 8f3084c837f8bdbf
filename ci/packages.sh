#!/bin/sh
# What the tests of shell completions, of the manual page and of other processors use: other shells, groff, a compiler and an
# emulator for aarch64. Where they cannot be had it says so and succeeds: those tests then skip, and say so.
set -eu
packages='bash-completion zsh fish groff-base g++-aarch64-linux-gnu qemu-user'

say() { echo "packages: $*"; }

# shellcheck source=ci/as-root.sh
. "$(dirname "$0")/as-root.sh"
missing=
for program in zsh fish groff aarch64-linux-gnu-g++ qemu-aarch64; do
  command -v "$program" >/dev/null || missing=yes
done
[ -e /usr/share/bash-completion/bash_completion ] || missing=yes
if [ -z "$missing" ]; then
  say "all here"
elif [ "$as_root" = no ] || ! command -v apt-get >/dev/null; then
  say "this user may not install packages; install $packages"
else
  say "installing $packages"
  # shellcheck disable=SC2086
  if ! { $as_root apt-get update -qq && $as_root env DEBIAN_FRONTEND=noninteractive \
    apt-get install -qq -y --no-install-recommends $packages; } >/dev/null 2>&1; then
    say "they could not be installed: their tests skip"
  fi
fi
