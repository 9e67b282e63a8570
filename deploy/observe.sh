#!/bin/bash
# A daemon, a load on it and a Prometheus that watches both, to look at in a browser; everything ends with this script and leaves
# nothing behind.
#   deploy/observe.sh                  installs and builds what is missing, runs until Ctrl-C
#   deploy/observe.sh --no-build       with what is in build/ (or in the folder $KVTIER_BUILD)
#   deploy/observe.sh --seconds 600    ends by itself
set -euo pipefail
cd "$(dirname "$0")/.."

build="${KVTIER_BUILD:-build}"
seconds=""
with_build=yes
state=""
processes=()

usage() {
  echo "usage: $0 [--no-build] [--seconds N]" >&2
  exit 2
}

parse() {
  while [ $# -gt 0 ]; do
    case "$1" in
      --no-build) with_build=no ;;
      --seconds)
        [[ "${2:-}" =~ ^[1-9][0-9]*$ ]] || usage
        seconds="$2"
        shift
        ;;
      *) usage ;;
    esac
    shift
  done
}

# Last started, first stopped: the load ends before the daemon does.
finish() {
  for ((i = ${#processes[@]} - 1; i >= 0; --i)); do
    kill -TERM "${processes[i]}" 2>/dev/null || true
    wait "${processes[i]}" 2>/dev/null || true
  done
  [ -z "$state" ] || rm -rf "$state"
}

# A port as near to the wanted one as there is: that, or any.
port() {
  /usr/bin/python3 - "$1" <<'PYTHON'
import socket, sys
for wanted in (int(sys.argv[1]), 0):
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", wanted))
        except OSError:
            continue
        print(probe.getsockname()[1])
        break
PYTHON
}

# wait_for NAME PROCESS URL: until it answers, at most 30 s.
wait_for() {
  for _ in $(seq 300); do
    if curl --silent --fail --max-time 2 --output /dev/null "$3"; then
      return
    fi
    kill -0 "$2" 2>/dev/null || break
    sleep 0.1
  done
  echo "error: $1 does not answer; the end of its log:" >&2
  tail -n 5 "$state/$1.log" >&2
  exit 1
}

# start NAME COMMAND...
start() {
  local name="$1"
  shift
  "$@" >"$state/$name.log" 2>&1 &
  processes+=($!)
}

start_daemon() {
  metrics="127.0.0.1:$(port 9464)"
  mkdir "$state/cold"
  cat >"$state/kvtier.toml" <<TOML
[server]
socket = "$state/kvtierd.sock"
[tier.hot]
medium = "host"
capacity = "32MiB"
[tier.warm]
capacity = "32MiB"
[[tier.cold]]
medium = "nvme"
path = "$state/cold"
capacity = "128MiB"
segment = "16MiB"
[metrics]
listen = "$metrics"
TOML
  start kvtierd "$build/bin/kvtierd" --config "$state/kvtier.toml"
  wait_for kvtierd "${processes[-1]}" "http://$metrics/readyz"
}

start_prometheus() {
  prometheus="127.0.0.1:$(port 9090)"
  cp -r monitoring "$state/monitoring"
  sed -i "s/127\.0\.0\.1:9464/$metrics/; s/scrape_interval: .*/scrape_interval: 2s/
          s/evaluation_interval: .*/evaluation_interval: 2s/; s/scrape_timeout: .*/scrape_timeout: 1s/" \
    "$state/monitoring/prometheus.yml"
  start prometheus prometheus --config.file="$state/monitoring/prometheus.yml" --storage.tsdb.path="$state/tsdb" \
    --web.listen-address="$prometheus" --web.console.templates="$state/monitoring/consoles" \
    --web.console.libraries="$state/monitoring/consoles/lib"
  wait_for prometheus "${processes[-1]}" "http://$prometheus/-/ready"
}

main() {
  parse "$@"
  if [ "$with_build" = yes ]; then
    deploy/install-deps.sh observe
    cmake -S . -B "$build" -G Ninja >/dev/null
    ninja -C "$build" kvtierd kvtierctl kvtier
  fi
  state=$(mktemp -d)
  trap finish EXIT
  trap 'exit 0' INT TERM

  start_daemon
  KVTIER_LIBRARY="$build/lib/libkvtier.so.1" start load /usr/bin/python3 deploy/observe/load.py "$state/kvtierd.sock" --rate 60
  start_prometheus
  cat <<TEXT
overview     http://$prometheus/consoles/kvtier.html
a tier       http://$prometheus/consoles/kvtier-tier.html?tier=cold
queries      http://$prometheus/classic/graph
alerts       http://$prometheus/classic/alerts
metrics      http://$metrics/metrics
dashboard    monitoring/grafana/kvtier.json, to import into a Grafana that reads http://$prometheus
control      $build/bin/kvtierctl --socket $state/kvtierd.sock status
TEXT
  echo "numbers come within ten seconds; Ctrl-C ends it"
  # Ends early with whichever process ends first, which none should.
  [ -z "$seconds" ] || start clock sleep "$seconds"
  wait -n || true
  if [ -n "$seconds" ] && ! kill -0 "${processes[-1]}" 2>/dev/null; then
    return
  fi
  echo "error: a process ended; the ends of the logs:" >&2
  tail -n 3 "$state"/*.log >&2
  exit 1
}

main "$@"
