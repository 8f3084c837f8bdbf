# shellcheck shell=sh
# To be sourced by what makes a Debian of its own (ci/bare.sh, ci/rdma-vm/root.sh). Needs a `fail`, and root for the last.

# Whether a folder's file system may have devices and programs, which a system has.
may_hold_a_system() {
  case ,$(findmnt --noheadings --output OPTIONS --target "$1"), in
    *,nodev,* | *,noexec,*) return 1 ;;
  esac
}

# From where this machine gets packages of a release, or nothing. With apt's own settings; other people's packages are
# often stored under Debian's names.
mirror_of() {
  command -v apt-get >/dev/null || return 0
  # apt's lists may be empty, as in a new container, or outdated. If they cannot be updated, what it
  # knows may do.
  apt-get -qq update >/dev/null 2>&1 || true
  # shellcheck disable=SC2016
  apt-get indextargets --format '$(CODENAME) $(COMPONENT) $(REPO_URI) $(ORIGIN)' 'Created-By: Packages' |
    awk -v release="$1" '$1 == release && $2 == "main" { found[$4 == "Debian"] = $3 }
      END { print (1 in found) ? found[1] : found[0] }'
}

# bootstrap RELEASE FOLDER MIRROR PACKAGE,PACKAGE: the smallest Debian, and these packages.
bootstrap() {
  if command -v apt-config >/dev/null; then
    eval "$(apt-config shell http_proxy Acquire::http::Proxy https_proxy Acquire::https::Proxy)"
    export http_proxy="${http_proxy:-}" https_proxy="${https_proxy:-}"
  fi
  # shellcheck disable=SC2086
  debootstrap --variant=minbase --include="$4" "$1" "$2" $3
}
