#!/bin/bash
# A real engine on kvtier, on a CPU: fetches llama.cpp and SmolLM2-135M, builds, starts kvtierd and kvtier-llama-server,
# holds conversations, and prints the time to the first token: computed, from each tier, and after kill -9 of the daemon.
# The first run takes 10 to 30 minutes (llama.cpp has to be built), later ones a minute. Exits non-zero when a check fails.
#   deploy/llama-demo.sh              everything
#   deploy/llama-demo.sh --no-build   with what is in build/ (or in the folder $KVTIER_BUILD) and in the cache
# A model of your own: KVTIER_DEMO_MODEL=FILE.gguf. Threads of the engine: KVTIER_DEMO_THREADS, 1 when not set.
set -euo pipefail
cd "$(dirname "$0")/.."

build="${KVTIER_BUILD:-build}"
cache="${KVTIER_CACHE:-$HOME/.cache/kvtier}"
model="${KVTIER_DEMO_MODEL:-$cache/models/SmolLM2-135M-Instruct.Q4_1.gguf}"
state=""
server=""
. deploy/daemon.sh

finish() {
  kill_process "$server"
  kill_daemon
  [ -z "$state" ] || rm -rf "$state"
}

start_server() {
  "$build/bin/kvtier-llama-server" --model "$model" --port 0 --socket "$state/kvtierd.sock" --context 4096 --block 64 \
    --threads "${KVTIER_DEMO_THREADS:-1}" --cache-timeout 2000 --restore-budget 10000 >"$state/server.log" 2>&1 &
  server=$!
  for _ in $(seq 600); do
    url=$(sed -n 's/^listening on //p' "$state/server.log")
    [ -z "$url" ] || return 0
    kill -0 "$server" 2>/dev/null || break
    sleep 0.1
  done
  fail "kvtier-llama-server does not listen" "$state/server.log"
}

talk() {
  /usr/bin/python3 -B deploy/llamacpp/conversations.py "$url" "$1" "$state/cold.json"
}

demote() {
  "$build/bin/kvtierctl" --socket "$state/kvtierd.sock" demote "$1" >/dev/null
}

build_programs() {
  step "llama.cpp and the model"
  deploy/fetch-llamacpp.sh llama smollm2
  step "kvtier"
  cmake -S . -B "$build" -G Ninja -DKVTIER_LLAMACPP="$(deploy/fetch-llamacpp.sh folder)" >/dev/null
  ninja -C "$build" kvtierd kvtierctl kvtier-llama-server
}

write_config() {
  mkdir "$state/cold"
  cat >"$state/kvtier.toml" <<TOML
[server]
socket = "$state/kvtierd.sock"
staging = "256MiB"
[tier.hot]
medium = "host"
capacity = "1GiB"
[tier.warm]
capacity = "1GiB"
[[tier.cold]]
medium = "nvme"
path = "$state/cold"
capacity = "2GiB"
tails = "never"
[metrics]
listen = "off"
TOML
}

main() {
  [ "${1:-}" = --no-build ] || build_programs
  state=$(mktemp -d)
  trap finish EXIT
  step "kvtierd: hot FP16, warm INT4, cold INT2 on disk; kvtier-llama-server on it"
  write_config
  start_daemon
  start_server
  echo "$url serves $(basename "$model")"

  step "a conversation"
  talk turns
  step "three prompts, first computed, then with their KV from each tier (medians)"
  talk cold
  talk 0:hot
  demote hot
  talk 1:warm
  demote hot
  demote warm
  talk 2:cold

  step "kill -9 of the daemon, a conversation without it, and a new daemon on the same disk"
  kill_daemon
  talk turns >"$state/alone" 2>&1 && fail "the conversation cannot have found anything" "$state/alone"
  grep -q "found nothing of the one before" "$state/alone" || fail "the server did not answer alone" "$state/alone"
  echo "the server answers without a daemon"
  start_daemon
  sleep 6 # the server asks again for a daemon that was away after at most 5 s
  talk 2:restarted
  step "SIGTERM to the server"
  kill -TERM "$server"
  wait "$server"
  server=""
  step "all checks passed"
}

main "$@"
