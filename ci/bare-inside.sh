#!/bin/sh
# The part of ci/bare.sh that is root in namespaces of its own: makes the root of what it is given and runs commands in
# it as the newcomer, each as if typed in the clone. Arguments: the root, the work folder, commands.
set -eu
root=$1
work=$2
shift 2

mount --make-rprivate /
mount --bind "$root" "$root"
# What is mounted over needs to be there.
place() {
  if [ -d "$1" ]; then
    mkdir -p "$root$2"
  elif [ ! -e "$root$2" ]; then
    mkdir -p "$(dirname "$root$2")"
    : >"$root$2"
  fi
}
readonly_bind() {
  place "$1" "$2"
  mount --rbind "$1" "$root$2"
  mount -o remount,bind,ro "$root$2"
}
while read -r path; do readonly_bind "$path" "$path"; done <"$work/paths"
readonly_bind "$work/pip.conf" /etc/pip.conf
for name in resolv.conf hosts; do readonly_bind "/etc/$name" "/etc/$name"; done
mount -t proc proc "$root/proc"
mount --rbind /sys "$root/sys"
mount -t tmpfs -o mode=755 tmpfs "$root/dev"
for name in null zero full random urandom tty; do
  : >"$root/dev/$name"
  mount --bind "/dev/$name" "$root/dev/$name"
done
mkdir -m 1777 "$root/dev/shm" && mount -t tmpfs -o mode=1777 tmpfs "$root/dev/shm"
mkdir "$root/dev/pts" && mount -t devpts -o newinstance,ptmxmode=0666 devpts "$root/dev/pts"
ln -s pts/ptmx "$root/dev/ptmx"
for number in 0 1 2; do ln -s "/proc/self/fd/$number" "$root/dev/std$(echo in out err | cut -d ' ' -f $((number + 1)))"; done
ln -s /proc/self/fd "$root/dev/fd"
for name in tmp var/tmp run; do mount -t tmpfs -o mode=1777 tmpfs "$root/$name"; done
mount --bind "$work/home" "$root/home/newcomer"
mount -o remount,bind,ro "$root"

# Proxies are how the network is reached; CI says which examples hypothesis tries. Nothing else of this environment.
keep=
for name in http_proxy https_proxy no_proxy HTTP_PROXY HTTPS_PROXY NO_PROXY CI; do
  eval "value=\${$name:-}"
  [ -z "$value" ] || keep="$keep $name=$value"
done
for command; do
  began=$(date +%s)
  # shellcheck disable=SC2086
  chroot --userspec=1000:1000 "$root" /usr/bin/env -i HOME=/home/newcomer USER=newcomer SHELL=/bin/bash \
    PATH=/usr/local/bin:/usr/bin:/bin $keep sh -c "cd /home/newcomer/laminabench && $command" || {
    echo "bare: \`$command\` failed after $(($(date +%s) - began)) s" >&2
    exit 1
  }
  echo "bare: \`$command\` took $(($(date +%s) - began)) s"
done
