#include "tiers/cxl_format.h"

#include <algorithm>
#include <cstring>

#include "tiers/base/check.h"
#include "tiers/crc32c.h"

namespace kvtier {

namespace {

uint32_t CrcOf(const CxlSuperblock& superblock) {
  return Crc32c(std::as_bytes(std::span(&superblock, 1)).first(offsetof(CxlSuperblock, crc)));
}

/// And an end that a file can have.
bool HasSizesOfAStore(const CxlSuperblock& superblock) {
  const uint64_t bytes = superblock.segment_bytes;
  return superblock.meta_bytes == kCxlMetaBytes && bytes % kColdBlockBytes == 0 &&
         bytes >= 2 * kColdBlockBytes && superblock.segment_limit <= kColdMaxSegments &&
         superblock.segment_limit <= (INT64_MAX - kCxlMetaBytes) / bytes;
}

}  // namespace

bool IsZero(std::span<const std::byte> bytes) {
  return std::all_of(bytes.begin(), bytes.end(), [](std::byte byte) { return byte == std::byte{0}; });
}

CxlSuperblock Sealed(CxlSuperblock superblock) {
  superblock.crc = CrcOf(superblock);
  return superblock;
}

std::string_view TenantOf(const CxlSuperblock& superblock) {
  const auto end = std::find(superblock.tenant.begin(), superblock.tenant.end(), '\0');
  return {superblock.tenant.begin(), end};
}

CxlSuperblock MakeCxlSuperblock(const StoreUuid& uuid, uint64_t segment_bytes, uint32_t segment_limit,
                                std::string_view tenant) {
  KVTIER_CHECK(tenant.size() <= kMaxCxlTenantBytes);
  CxlSuperblock superblock{};
  superblock.magic = kCxlMagic;
  superblock.version = tenant.empty() ? kColdFormatVersion : kCxlTenantVersion;
  std::copy(tenant.begin(), tenant.end(), superblock.tenant.begin());
  superblock.segment_bytes = segment_bytes;
  superblock.meta_bytes = kCxlMetaBytes;
  superblock.serial = 1;
  superblock.segment_limit = segment_limit;
  superblock.uuid = uuid;
  return Sealed(superblock);
}

Result<CxlStart> ReadCxlStart(std::span<const std::byte> start) {
  CxlStart found;
  if (IsZero(start)) {
    found.blank = true;
    return found;
  }
  uint32_t ours = 0, sound = 0;
  for (uint64_t at = 0; at < kCxlSuperblocks * kColdBlockBytes; at += kColdBlockBytes) {
    CxlSuperblock copy;
    if (start.size() < at + sizeof(copy)) break;
    std::memcpy(&copy, start.data() + at, sizeof(copy));
    if (copy.magic != kCxlMagic) continue;
    ++ours;
    if (copy.crc != CrcOf(copy)) continue;
    if (sound++ == 0 || copy.serial > found.superblock.serial) found.superblock = copy;
  }
  if (sound == 0 && ours == 1 && IsZero(start.subspan(sizeof(CxlSuperblock)))) {
    found.blank = true;  // power failed while the very first superblock was written
    return found;
  }
  if (sound == 0 && ours > 0) return Status(Code::kDataLoss, "both superblocks are damaged");
  if (sound == 0) {
    return Status(Code::kFailedPrecondition, "holds something else");
  }
  const CxlSuperblock& superblock = found.superblock;
  if (superblock.version != (TenantOf(superblock).empty() ? kColdFormatVersion : kCxlTenantVersion)) {
    return Status(Code::kFailedPrecondition, "has format version " + std::to_string(superblock.version) +
                                                 ", this program reads versions " +
                                                 std::to_string(kColdFormatVersion) + " and " +
                                                 std::to_string(kCxlTenantVersion));
  }
  if (!HasSizesOfAStore(superblock)) {
    return Status(Code::kDataLoss, "its superblock says " + std::to_string(superblock.segment_limit) +
                                       " segments of " + std::to_string(superblock.segment_bytes) +
                                       " bytes from " + std::to_string(superblock.meta_bytes) + " on");
  }
  found.one_damaged = sound < kCxlSuperblocks;
  return found;
}

Result<CxlStart> ReadCxlStart(std::span<const std::byte> start, uint64_t segment_bytes) {
  const Result<CxlStart> found = ReadCxlStart(start);
  if (found.status().code() == Code::kFailedPrecondition) {
    return Status(found.status().code(),
                  found.status().message() + ": give it a new file, or zero its first 128 KiB");
  }
  if (!found.ok() || found->blank || found->superblock.segment_bytes == segment_bytes) return found;
  return Status(Code::kFailedPrecondition, "was made with segments of " +
                                               std::to_string(found->superblock.segment_bytes) +
                                               " bytes, not " + std::to_string(segment_bytes));
}

}  // namespace kvtier
