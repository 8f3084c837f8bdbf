#!/bin/sh
# Make sure that there is a Chromium for the tests that open the HTML report. Where none can be had it says what to do and
# succeeds: those tests then skip, and say so.
set -eu

say() { echo "browser: $*"; }

# As the tests look for it.
for name in "${LAMINABENCH_BROWSER:-}" chromium chromium-browser google-chrome; do
  if [ -n "$name" ] && found=$(command -v "$name"); then
    say "$found"
    exit 0
  fi
done

# shellcheck source=ci/as-root.sh
. "$(dirname "$0")/as-root.sh"
if [ "$as_root" = no ] || ! command -v apt-get >/dev/null; then
  say "there is no Chromium and this user may not install packages; install chromium, or name a browser in LAMINABENCH_BROWSER"
  exit 0
fi
say "installing chromium"
# shellcheck disable=SC2086
if $as_root apt-get update -qq >/dev/null 2>&1 &&
  $as_root env DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends chromium >/dev/null 2>&1 &&
  found=$(command -v chromium); then
  say "$found"
else
  say "chromium could not be installed; install it, or name a browser in LAMINABENCH_BROWSER"
fi
