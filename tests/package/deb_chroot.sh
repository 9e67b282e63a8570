#!/bin/bash
# The Debian package, installed, used and purged in a fresh Debian 12 of its own (debootstrap; as root, with a mirror in reach).
#   tests/package/deb_chroot.sh [FOLDER OF THE BUILD]
# Part of tests/run.sh --full. There is no systemd in such a tree: the daemon is started as the unit would start it.
set -euo pipefail
cd "$(dirname "$0")/../.."

build="${1:-build}"
state=""
tree=""
daemon=""

finish() {
  if [ -n "$daemon" ]; then
    kill -KILL "$daemon" 2>/dev/null || true
    # Until it is gone its tree cannot be taken down.
    wait "$daemon" 2>/dev/null || true
  fi
  if [ -n "$state" ]; then
    umount "$tree/proc" 2>/dev/null || true
    rm -rf --one-file-system "$state"
  fi
}

# A mirror as the machine itself uses it.
mirror() {
  # shellcheck disable=SC2016  # apt's own variable
  apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' | head -n 1
}

clean=(env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/ LC_ALL=C DEBIAN_FRONTEND=noninteractive)
as_kvtier=(setpriv --reuid=kvtier --regid=kvtier --clear-groups --no-new-privs --bounding-set=-all)

in_tree() {
  "${clean[@]}" chroot "$tree" "$@"
}

check_as_installed() {
  in_tree test -e /etc/kvtier/kvtier.toml
  in_tree kvtierctl config check /etc/kvtier/kvtier.toml
  in_tree getent passwd kvtier
  # What systemd makes for the unit, RuntimeDirectory and StateDirectory; and capacities that fit any machine.
  in_tree install -d -o kvtier -g kvtier -m 0700 /run/kvtier /var/lib/kvtier
  in_tree sed -i 's/"1GiB"/"64MiB"/; s/"4GiB"/"64MiB"/; s/"64GiB"/"512MiB"/' /etc/kvtier/kvtier.toml
  in_tree sed -i 's/^listen = .*/listen = "off"/' /etc/kvtier/kvtier.toml
  # No function: each of these becomes the next by exec, so that the process is the daemon in the end.
  "${clean[@]}" chroot "$tree" "${as_kvtier[@]}" kvtierd --config /etc/kvtier/kvtier.toml &
  daemon=$!
  local answered=no
  for _ in $(seq 100); do
    if in_tree "${as_kvtier[@]}" kvtierctl status; then
      answered=yes
      break
    fi
    sleep 0.1
  done 2>/dev/null
  [ "$answered" = yes ] || { echo "the installed daemon did not answer kvtierctl in 10 s"; exit 1; }
  local ended=0
  kill -TERM "$daemon" || true
  wait "$daemon" || ended=$?
  daemon=""
  [ "$ended" = 0 ] || { echo "the installed daemon ended with $ended"; exit 1; }
}

main() {
  state=$(mktemp -d)
  tree="$state/root"
  trap finish EXIT
  echo "== package, and a tree to put it in"
  (cd "$build" && cpack -G DEB -B "$state/package" >/dev/null)
  debootstrap --variant=minbase bookworm "$tree" "$(mirror)" >"$state/debootstrap.log" 2>&1 ||
    { tail -n 20 "$state/debootstrap.log"; exit 1; }
  cp "$state"/package/*.deb "$tree/kvtier.deb"
  mount -t proc proc "$tree/proc"

  echo "== install"
  in_tree apt-get -q -y --no-install-recommends install /kvtier.deb >"$state/install.log" 2>&1 ||
    { tail -n 20 "$state/install.log"; exit 1; }
  check_as_installed

  echo "== install again: what the administrator changed stays"
  in_tree sh -c 'echo "# mine" >>/etc/kvtier/kvtier.toml'
  in_tree dpkg -i /kvtier.deb >/dev/null
  in_tree grep -q "^# mine" /etc/kvtier/kvtier.toml

  echo "== remove, then purge"
  in_tree dpkg --remove kvtier >/dev/null
  in_tree test -e /etc/kvtier/kvtier.toml
  in_tree dpkg --purge kvtier >/dev/null
  local left
  left=$(find "$tree/etc" "$tree/usr" "$tree/var/lib" -name '*kvtier*' -not -path '*/dpkg/*')
  [ -z "$left" ] || { echo "left behind: $left"; exit 1; }
  echo "== all well"
}

main
