#!/bin/sh
# Installs the Debian 12 packages that kvtier needs and that are missing; the one list of them.
#   deploy/install-deps.sh         to build and run
#   deploy/install-deps.sh engine  and for the llama.cpp engine (deploy/fetch-llamacpp.sh)
#   deploy/install-deps.sh observe and for deploy/observe.sh
#   deploy/install-deps.sh package and for the Debian package (cpack -G DEB)
#   deploy/install-deps.sh test    to build and run, and for tests/run.sh
#   deploy/install-deps.sh full    and for tests/run.sh --full
set -eu

build="ca-certificates cmake ccache g++ libboost-context-dev libcli11-dev libfmt-dev libgmock-dev libgrpc++-dev
  libgtest-dev libhwy-dev libisal-dev libnuma-dev libpmem2-dev libprotobuf-dev librocksdb-dev libspdlog-dev
  libssl-dev libtomlplusplus-dev liburing-dev ninja-build pkg-config prometheus-cpp-dev protobuf-compiler
  protobuf-compiler-grpc python3 python3-numpy"
engine="curl libcpp-httplib-dev nlohmann-json3-dev python3-pip"
observe="curl prometheus"
packaging="dpkg-dev"
test="abigail-tools chromium clang-format e2fsprogs fish fuse3 git libfuse3-dev man-db mandoc python3-pip python3-pytest
  python3-seccomp python3-setuptools python3-wheel python3-yaml shellcheck systemd valgrind xfsprogs zsh"
# A kubectl of another package, Kubernetes' own for one, does as well, and Debian's does not install beside it.
command -v kubectl >/dev/null || test="$test kubernetes-client"
full="busybox-static clang clang-tidy cpio debootstrap dmsetup fio g++-aarch64-linux-gnu googletest kmod libclang-rt-14-dev
  qemu-system-x86 qemu-user-static"

case "${1:-build}" in
  build) wanted="$build" ;;
  engine) wanted="$build $engine" ;;
  observe) wanted="$build $observe" ;;
  package) wanted="$build $packaging" ;;
  test) wanted="$build $observe $packaging $test" ;;
  full) wanted="$build $engine $observe $packaging $test $full" ;;
  *) echo "usage: $0 [build|engine|observe|package|test|full]" >&2; exit 2 ;;
esac

missing=""
for package in $wanted; do
  state=$(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null || true)
  [ "$state" = installed ] || missing="$missing $package"
done
if [ -z "$missing" ]; then
  exit 0
fi

echo "installing:$missing"
as_root=""
if [ "$(id -u)" != 0 ]; then
  if ! command -v sudo >/dev/null; then
    echo "error: run this as root, or install the packages above" >&2
    exit 1
  fi
  as_root="sudo -n"
fi
lock="-o DPkg::Lock::Timeout=300"
$as_root env DEBIAN_FRONTEND=noninteractive apt-get $lock -q update </dev/null
# shellcheck disable=SC2086
$as_root env DEBIAN_FRONTEND=noninteractive apt-get $lock -q -y --no-install-recommends install $missing </dev/null
