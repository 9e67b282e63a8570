# Sourced by quickstart.sh and llama-demo.sh, which set $build, a folder of binaries, and $state, the folder of one run
# with its kvtier.toml: steps, and one kvtierd.
# shellcheck shell=bash disable=SC2154
daemon=""

step() {
  echo
  echo "== $(printf '%3d' $SECONDS) s  $*"
}

fail() { # MESSAGE LOG
  echo "error: $1; the end of its log:" >&2
  tail -n 5 "$2" >&2
  exit 1
}

kill_process() { # PID, or nothing
  [ -n "$1" ] || return 0
  kill -KILL "$1" 2>/dev/null || true
  wait "$1" 2>/dev/null || true
}

kill_daemon() {
  kill_process "$daemon"
  daemon=""
}

start_daemon() {
  "$build/bin/kvtierd" --config "$state/kvtier.toml" 2>>"$state/kvtierd.log" &
  daemon=$!
  for _ in $(seq 100); do
    if "$build/bin/kvtierctl" --socket "$state/kvtierd.sock" status >/dev/null 2>&1; then
      return
    fi
    kill -0 "$daemon" 2>/dev/null || break
    sleep 0.1
  done
  fail "kvtierd does not answer" "$state/kvtierd.log"
}
