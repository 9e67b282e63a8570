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
# The largest ladder is left out: software emulation is slow.
./kvtier_e2e_cxl_test --gtest_color=no --gtest_filter=-Cxl.AboveNvmeAFullTierLosesNothing || failed=1
exit $failed
