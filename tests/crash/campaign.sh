#!/bin/bash
# The crash campaign: a real daemon with a small cold tier is killed at random points while a client writes, reads and
# removes; after every restart everything that was acknowledged is checked. Exits non-zero when anything was lost, wrong
# or back, or the disk held more than its cap.
#   tests/crash/campaign.sh [--kills N] [--seed S]      1000 kills without an argument; about 20 minutes
#     --work-ms MS         the longest time between a checked restart and the kill
#     --live-blocks N      what there is at once at most
#     --rewrite-share S    of the cold tier: blocks that are read are written again when their segment is reclaimed
#     --after-kill COMMAND of the shell, after every kill: tests/qemu/power_loss.sh loses there what was not synced
#     --journal FILE       where what was acknowledged is written down; must outlive what COMMAND does
set -euo pipefail
cd "$(dirname "$0")/../.."

build="${KVTIER_BUILD:-build}"
[ -f "$build/build.ninja" ] || cmake -S . -B "$build" -G Ninja >/dev/null
ninja -C "$build" kvtierd kvtier_crash_campaign >/dev/null
exec "$build/bin/kvtier_crash_campaign" "$@"
