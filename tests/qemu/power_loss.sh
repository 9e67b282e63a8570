#!/bin/bash
# Power cuts under the real daemon: the crash campaign in a guest (guest.sh) whose disk, after every SIGKILL, loses every write
# that was not synced. Then everything acknowledged as durable must be there, and nothing wrong. Exits non-zero when not, and
# when the disk does not lose what it should.
#   tests/qemu/power_loss.sh [KILLS]      20 without an argument; about 5 minutes under software emulation
set -euo pipefail
cd "$(dirname "$0")/../.."
build="${KVTIER_BUILD:-build}"
[ -f "$build/build.ninja" ] || cmake -S . -B "$build" -G Ninja >/dev/null
ninja -C "$build" kvtierd kvtier_crash_campaign >/dev/null
kills="$(mktemp)"
trap 'rm -f "$kills"' EXIT
echo "${1:-20}" >"$kills"
KVTIER_GUEST_SECONDS="${KVTIER_GUEST_SECONDS:-1200}" tests/qemu/guest.sh tests/qemu/power_loss_guest.sh \
  "kills=$kills" "$build/bin/kvtierd" "$build/bin/kvtier_crash_campaign"
