# shellcheck shell=sh
# To be sourced. `as_root` is what to put before a command that only root may run, or `no` without such a right.
if [ "$(id -u)" -eq 0 ]; then
  as_root=
elif command -v sudo >/dev/null && sudo -n true 2>/dev/null; then
  as_root='sudo -n'
else
  # shellcheck disable=SC2034
  as_root=no
fi
