#!/bin/sh
# Inside the guest, for power_loss.sh.
set -e
export DM_DISABLE_UDEV=1
sectors=$(blockdev --getsz /dev/vda)
cat >/run/disk.sh <<DISK
set -e
export DM_DISABLE_UDEV=1
# Without flushing anything first: what the page cache has not written yet is lost like the rest.
switch() {
  dmsetup reload disk --table "0 $sectors flakey /dev/vda 0 \$1"
  dmsetup suspend --noflush --nolockfs disk
  dmsetup resume disk
}
lose() { switch "0 3600 1 drop_writes"; }
restore() {
  umount /mnt
  switch "3600 0"
  mount -t ext4 /dev/mapper/disk /mnt
}
DISK
. /run/disk.sh
dmsetup create disk --table "0 $sectors flakey /dev/vda 0 3600 0"
dmsetup mknodes
mkfs.ext4 -q -b 4096 /dev/mapper/disk
mount -t ext4 /dev/mapper/disk /mnt

# What is synced stays, what is not is lost: else nothing below says anything.
echo synced >/mnt/old
sync
echo synced | dd of=/mnt/new conv=fsync 2>/dev/null
echo unsynced >/mnt/old
echo unsynced >/mnt/lost
lose
restore
[ "$(cat /mnt/old)" = synced ] && [ "$(cat /mnt/new)" = synced ] || { echo "a synced file is lost"; exit 3; }
[ ! -s /mnt/lost ] || { echo "the disk lost nothing"; exit 3; }
echo "the disk loses what is not synced, and nothing else"
rm -f /mnt/old /mnt/new /mnt/lost

export TMPDIR=/mnt
campaign() {
  journal="$(mktemp /run/journal-XXXXXX)"
  ./kvtier_crash_campaign --work-ms 5000 --live-blocks 160 --journal "$journal" \
    --after-kill '. /run/disk.sh; lose; restore' "$@"
}

# A disk that loses what was synced as well must be found out.
(while sleep 10; do lose; done) &
liar=$!
campaign --kills 2 --seed 1 >/run/liar 2>&1 || true
kill $liar
if ! grep 'acknowledged as durable: [0-9]* checks, [1-9]' /run/liar; then
  cat /run/liar
  echo "a disk that lies was not found out"
  exit 3
fi
. /run/disk.sh
switch "3600 0"
umount /mnt || true
mkfs.ext4 -q -F -b 4096 /dev/mapper/disk
mount -t ext4 /dev/mapper/disk /mnt

campaign --kills "$(cat kills)" --seed 2
