#!/bin/sh
# Inside the guest, for dax.sh.
set -e
mkfs.ext4 -q -b 4096 /dev/pmem0
mount -t ext4 -o dax=always /dev/pmem0 /mnt
export KVTIER_TEST_DAX=/mnt TMPDIR=/mnt
failed=0
# Two tests want a file system without DAX, and one a machine that names nothing.
without='CxlMappingTest.APlainFileIsNoDaxFileSystem:CxlMappingTest.ItSaysWhatItSurvives'
./kvtier_cxl_test --gtest_brief=1 --gtest_color=no --gtest_filter="-$without" || failed=1
TMPDIR=/tmp ./kvtier_cxl_test --gtest_brief=1 --gtest_color=no --gtest_filter="$without" || failed=1
# Two by themselves: the largest ladder is left out, since software emulation is slow, and kvtierctl gives a connection two
# seconds, which may be too few here for one try.
says='Cxl.ItSaysWhatTheMemoryIsAndWhatItSurvives'
./kvtier_e2e_cxl_test --gtest_color=no --gtest_filter="-$says:Cxl.AboveNvmeAFullTierLosesNothing" || failed=1
said=1
for try in 1 2 3; do
  ./kvtier_e2e_cxl_test --gtest_color=no --gtest_filter="$says" && said=0 && break
done
[ $said = 0 ] || failed=1
exit $failed
