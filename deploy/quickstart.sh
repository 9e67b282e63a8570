#!/bin/bash
# From a fresh clone on Debian 12, as root: installs what is missing, builds, and shows the ladder at work on real KV, without
# a GPU. Exits non-zero when a check fails. A second run takes seconds.
#   deploy/quickstart.sh              everything
#   deploy/quickstart.sh --no-build   with what is in build/ (or in the folder $KVTIER_BUILD)
set -euo pipefail
cd "$(dirname "$0")/.."

build="${KVTIER_BUILD:-build}"
state=""
. deploy/daemon.sh

finish() {
  kill_daemon
  [ -z "$state" ] || rm -rf "$state"
}

build_programs() {
  step "packages"
  deploy/install-deps.sh
  step "build (cold: several minutes)"
  cmake -S . -B "$build" -G Ninja >/dev/null
  ninja -C "$build" kvtierd kvtierctl kvtier-quickstart
}

write_config() {
  local port
  port=$(/usr/bin/python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
  metrics="127.0.0.1:$port"
  mkdir "$state/cold"
  cat >"$state/kvtier.toml" <<TOML
[server]
socket = "$state/kvtierd.sock"
[tier.hot]
medium = "host"
capacity = "16MiB"
[tier.warm]
capacity = "16MiB"
[[tier.cold]]
medium = "nvme"
path = "$state/cold"
capacity = "256MiB"
segment = "16MiB"
tails = "never"                  # the rung that pressure ends at
[limits]
models_per_session = 256
[metrics]
listen = "$metrics"
TOML
}

main() {
  [ "${1:-}" = --no-build ] || build_programs
  state=$(mktemp -d)
  trap finish EXIT

  step "kvtierd with 16 MiB of hot, 16 MiB of warm, and cold on disk; no GPU"
  write_config
  start_daemon
  echo "metrics while this runs: curl http://$metrics/metrics"

  step "hot, warm, cold"
  "$build/bin/kvtier-quickstart" climb "$state/kvtierd.sock" tests/data "$state"

  step "the same errors by an independent implementation (numpy)"
  /usr/bin/python3 -B deploy/quickstart/compare_errors.py tests/data tests/reference/errors.py "$state/errors.csv"

  step "metrics at http://$metrics/metrics"
  "$build/bin/kvtierctl" --socket "$state/kvtierd.sock" tiers

  step "kill -9, start again, and read what was in cold"
  kill_daemon
  start_daemon
  "$build/bin/kvtier-quickstart" again "$state/kvtierd.sock" tests/data "$state"

  step "all checks passed"
  cat <<TEXT
To run a daemon of your own, with its socket in /run/kvtier and its metrics at http://127.0.0.1:9464/metrics:
  mkdir -p /run/kvtier /var/lib/kvtier
  $build/bin/kvtierd --config deploy/kvtier.toml
and then: $build/bin/kvtierctl status
TEXT
}

main "$@"
