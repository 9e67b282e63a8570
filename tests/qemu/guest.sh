#!/bin/bash
# Runs a script in a small virtual machine with Debian's kernel, for what this machine does not have: fs-DAX on persistent
# memory, a memory node without processors, a device whose writes stop reaching it.
#   tests/qemu/guest.sh SCRIPT [[NAME=]FILE...]    SCRIPT runs as root in the guest; FILEs (programs with their
#                                                  libraries, data) lie in the folder in which it starts, programs
#                                                  also where they lie here
# The guest has 448 MiB of persistent memory (/dev/pmem0), a 1 GiB disk (/dev/vda), a second NUMA node without processors,
# and no network. Output goes to stdout; the exit status is SCRIPT's; 124 after KVTIER_GUEST_SECONDS (default 300).
# Software emulation where there is no /dev/kvm that works: several times slower than the host.
set -euo pipefail
shopt -s inherit_errexit  # else what fails in $(kernel_folder) leaves a folder that counts as ready

[ $# -ge 1 ] || { echo "usage: $0 SCRIPT [FILE...]" >&2; exit 2; }
script="$1"
shift
cache="${KVTIER_CACHE:-$HOME/.cache/kvtier}/qemu"
work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT

# Debian's kernel, unpacked and kept; apt checks what it downloads.
kernel_folder() {
  local package
  package="$(apt-cache depends linux-image-amd64 | awk '/Depends:/ {print $2; exit}')"
  [ -n "$package" ] || { echo "guest: apt knows no linux-image-amd64" >&2; return 1; }
  if [ ! -e "$cache/$package/ready" ]; then
    rm -rf "${cache:?}/$package"
    mkdir -p "$cache/$package"
    (cd "$cache/$package" && apt-get -q download "$package" >&2 && dpkg -x ./*.deb . && rm ./*.deb)
    depmod -b "$cache/$package" "${package#linux-image-}"
    touch "$cache/$package/ready"
  fi
  echo "$cache/$package"
}

# add_program PATH TO: a program, and the libraries that it loads where it looks for them.
add_program() {
  install -D -s -m 755 "$1" "$root/$2"
  ldd "$1" 2>/dev/null | grep -o '/[^ ]*' | while read -r library; do
    [ -e "$root$library" ] || install -D -s -m 755 "$library" "$root$library"
  done || true
}

kernel="$(kernel_folder)"
release="$(basename "$kernel" | sed 's/^linux-image-//')"
root="$work/root"
mkdir -p "$root"/{bin,sbin,dev,proc,sys,tmp,mnt,run,etc,job,lib/modules}
install -m 755 /bin/busybox "$root/bin/busybox"
for tool in dmsetup mkfs.ext4 blockdev mount umount findmnt; do
  path="$(command -v "$tool" || true)"
  [ -z "$path" ] || add_program "$(readlink -f "$path")" "sbin/$tool"
done
modules="virtio_pci virtio_blk ext4 dm_flakey nd_e820 nd_pmem device_dax crc32c_generic crc32c_intel"
for module in $modules; do
  modprobe -d "$kernel" -S "$release" --show-depends "$module" | awk '/^insmod/ {print $2}'
done | awk '!seen[$0]++' >"$work/modules"
while read -r module; do
  install -D -m 644 "$module" "$root/lib/modules/$(basename "$module")"
  echo "$(basename "$module")"
done <"$work/modules" >"$root/lib/modules/order"
install -m 755 "$script" "$root/job/script"
for argument in "$@"; do
  file="${argument#*=}"
  name="$(basename "${argument%%=*}")"
  case "$(head -c 4 "$file" | tail -c 3)" in
    ELF)
      program="$(realpath "$file")"
      add_program "$program" "$program"
      ln -s "$program" "$root/job/$name"
      ;;
    *) cp -r "$file" "$root/job/$name" ;;
  esac
done
cat >"$root/init" <<'INIT'
#!/bin/busybox sh
/bin/busybox --install -s /bin
export PATH=/sbin:/bin HOME=/tmp
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
mkdir -p /dev/shm /dev/pts
mount -t tmpfs shm /dev/shm
mount -t tmpfs tmp /tmp
mount -t tmpfs run /run
ip link set lo up 2>/dev/null
while read -r module; do insmod "/lib/modules/$module" 2>/dev/null; done </lib/modules/order
cd /job
./script </dev/null
echo "guest: exit $?"
poweroff -f
INIT
chmod 755 "$root/init"
(cd "$root" && find . | cpio -o -H newc --quiet | gzip -1) >"$work/initramfs"
truncate -s 1G "$work/disk"

accelerator="tcg,thread=multi"
# /dev/kvm may be there without a processor that can be used through it.
grep -qE '^flags.*\b(vmx|svm)\b' /proc/cpuinfo && [ -w /dev/kvm ] && accelerator=kvm
status=0
timeout "${KVTIER_GUEST_SECONDS:-300}" qemu-system-x86_64 -machine q35 -accel "$accelerator" -cpu max -smp 2 -m 3G \
  -object memory-backend-ram,id=near,size=2560M -object memory-backend-ram,id=far,size=512M \
  -numa node,nodeid=0,cpus=0-1,memdev=near -numa node,nodeid=1,memdev=far \
  -kernel "$kernel/boot/vmlinuz-$release" -initrd "$work/initramfs" \
  -append "console=ttyS0 quiet panic=-1 memmap=448M!512M" \
  -drive "file=$work/disk,format=raw,if=virtio,cache=none" -no-reboot -nographic -nodefaults -serial stdio \
  </dev/null | stdbuf -o0 tr -d "\r" | tee "$work/output" || status=${PIPESTATUS[0]}
[ "$status" != 124 ] || { echo "guest: no end within ${KVTIER_GUEST_SECONDS:-300} s" >&2; exit 124; }
code="$(sed -n 's/^guest: exit \([0-9]*\)$/\1/p' "$work/output" | tail -1)"
[ -n "$code" ] || { echo "guest: it ended without a result" >&2; exit 1; }
exit "$code"
