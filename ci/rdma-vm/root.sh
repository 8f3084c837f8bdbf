#!/bin/sh
# Build the machine that the RDMA tests run in: a small Debian and its kernel, as `kernel` and `root.cpio` in a folder
# that must not exist. Needs root (debootstrap changes into the new system), debootstrap, apt, and a Python, which the
# second argument names.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
folder=$1
python=${2:-python3}

fail() {
  echo "rdma-vm: $*" >&2
  exit 1
}
# What one step says is of interest only when it fails.
quietly() {
  "$@" >"$work/log" 2>&1 || {
    tail -n 20 "$work/log" >&2
    fail "\`$1\` failed while the machine was built (its last lines are above)"
  }
}

# shellcheck source=ci/debian.sh
. "$here/../debian.sh"
# shellcheck disable=SC1091
release=$(. /etc/os-release && echo "$VERSION_CODENAME")
rm -rf "$folder.part"
for place in "${TMPDIR:-/var/tmp}" /var/tmp /tmp "$(dirname "$folder")" ""; do
  [ -n "$place" ] || fail "/var/tmp and others are mounted nodev or noexec; set TMPDIR to a folder that is not"
  ! may_hold_a_system "$place" || break
done
work=$(mktemp -d "$place/rdma-vm.XXXXXX")
root=$work/root
clean() {
  # An interrupted debootstrap may leave them; what is in them is the system's own.
  umount "$root/sys" "$root/proc" 2>/dev/null || true
  rm -rf --one-file-system "$work"
}
trap clean EXIT
trap 'exit 130' INT TERM

mirror=$(mirror_of "$release")
[ -n "$mirror" ] || fail "apt knows of no place with the packages of $release, and 'apt-get update' finds none"

# libstdc++ is for our native module; the rest is named in the tests.
quietly bootstrap "$release" "$root" "$mirror" \
  kmod,iproute2,rdma-core,ibverbs-utils,rdmacm-utils,perftest,libstdc++6,python3,python3-pyverbs

# Only the kernel and the modules that init loads: installing the package would build an initramfs of its own.
kernel=$(apt-cache depends linux-image-amd64 | awk '$1 == "Depends:" { print $2; exit }')
[ -n "$kernel" ] || fail "apt knows of no linux-image-amd64, which a Debian has; see apt's sources"
chmod 755 "$work"
mkdir -m 777 "$work/kernel"
(cd "$work/kernel" && quietly apt-get download "$kernel")
quietly dpkg-deb -x "$work"/kernel/*.deb "$work/unpacked"
mkdir "$work/done"
cp "$work"/unpacked/boot/vmlinuz-* "$work/done/kernel"
version=$(ls "$work/unpacked/lib/modules")
mkdir -p "$root/lib/modules"
mv "$work/unpacked/lib/modules/$version" "$root/lib/modules/all"
modules=$root/lib/modules/$version
mv "$root/lib/modules/all" "$modules"
quietly chroot "$root" depmod "$version"
grep -v '^#' "$here/modules" | xargs chroot "$root" modprobe -S "$version" -a --show-depends |
  awk '$1 == "insmod" { print $2 }' | sort -u >"$work/needed"
mkdir "$work/kept"
(cd "$root" && sed 's|^/||' "$work/needed" | xargs cp --parents -t "$work/kept")
cp "$modules/modules.builtin" "$modules/modules.order" "$work/kept/lib/modules/$version"
rm -rf "$modules"
cp -r "$work/kept/lib/modules/$version" "$root/lib/modules"
quietly chroot "$root" depmod "$version"

# Every byte is copied at each start.
rm -rf "$root"/usr/share/doc "$root"/usr/share/man "$root"/usr/share/info "$root"/usr/share/locale \
  "$root"/usr/share/zoneinfo "$root"/usr/lib/udev/hwdb* "$root"/var/cache "$root"/var/lib/apt "$root"/var/lib/dpkg "$root"/var/log \
  "$root"/debootstrap "${root:?}/dev" "$root"/proc "$root"/sys "$root"/tmp
mkdir -m 755 "$root/dev" "$root/proc" "$root/sys" "$root/tmp"
readlink "$root/usr/bin/python3" >"$work/done/python"
install -m 644 "$here/modules" "$root/modules"
"$python" "$here/archive.py" "$root" "$work/done/root.cpio"
# Complete or not at all, and owned by the folder's owner.
mv -T "$work/done" "$folder.part"
chown -R --reference="$(dirname "$folder")" "$folder.part"
mv -T "$folder.part" "$folder"
