#pragma once

#include <span>
#include <string_view>

#include "tiers/cold_format.h"

namespace kvtier {

// The bytes of a CXL store that are not those of every cold store, exactly as tiers/FORMAT.md writes them
// down.

inline constexpr uint32_t kCxlMagic = 0x3158434B;       // "KCX1"
inline constexpr uint32_t kCxlModelMagic = 0x31444D4B;  // "KMD1"
/// Of a store that is one tenant's: programs that do not know of such ones must not put others' blocks there.
inline constexpr uint32_t kCxlTenantVersion = 3;
static_assert(kCxlTenantVersion != kColdFormatVersion);
inline constexpr size_t kMaxCxlTenantBytes = 64;

/// In front of the segments: two superblocks, a block each, then the models. Segments start on a huge page.
inline constexpr uint64_t kCxlMetaBytes = uint64_t{2} << 20;
inline constexpr uint64_t kCxlSuperblocks = 2;
inline constexpr uint64_t kCxlModelsOffset = kCxlSuperblocks * kColdBlockBytes;

/// Segments that fit; their numbers are 0 .. this - 1.
constexpr uint32_t CxlSegmentLimit(uint64_t capacity_bytes, uint64_t segment_bytes) {
  if (capacity_bytes <= kCxlMetaBytes) return 0;
  return static_cast<uint32_t>(
      std::min<uint64_t>((capacity_bytes - kCxlMetaBytes) / segment_bytes, kColdMaxSegments));
}
constexpr uint64_t CxlSegmentOffset(uint32_t number, uint64_t segment_bytes) {
  return kCxlMetaBytes + number * segment_bytes;
}

/// The number that stands for a whole store among those of the arenas that clients map.
constexpr ArenaId StoreArenaId(TierId tier) {
  return ArenaId{UINT32_MAX - tier.value};
}

bool IsZero(std::span<const std::byte> bytes);

/// First bytes of block 0 and again of block 1. They are written one after the other, so one is always whole.
struct CxlSuperblock {
  uint32_t magic;
  uint32_t version;
  uint64_t segment_bytes;
  uint64_t meta_bytes;     ///< where segment 0 starts
  uint64_t serial;         ///< grows with every write; of two sound ones the higher counts
  uint32_t segment_limit;  ///< segments that could be in use; above it the bytes may be anything
  uint8_t clean;           ///< 1: the store was closed, every record is as it should be
  std::array<uint8_t, 3> zero;
  StoreUuid uuid;
  std::array<char, kMaxCxlTenantBytes> tenant;  ///< whose blocks alone are here; zeros: anybody's
  std::array<std::byte, 4> zero1;
  uint32_t crc;  ///< over bytes 0..123
};
static_assert(sizeof(CxlSuperblock) == 128);
std::string_view TenantOf(const CxlSuperblock& superblock);

/// First bytes of a model's entry; the fields follow. Entries start at multiples of this size.
struct CxlModelHeader {
  uint32_t magic;
  uint32_t crc;  ///< over everything after it, fields included
  uint64_t fields_bytes;
  StoreUuid uuid;
  std::array<std::byte, 32> name_space;
};
static_assert(sizeof(CxlModelHeader) == 64);

/// `tenant`: at most kMaxCxlTenantBytes; empty: for anybody's blocks.
CxlSuperblock MakeCxlSuperblock(const StoreUuid& uuid, uint64_t segment_bytes, uint32_t segment_limit,
                                std::string_view tenant);
/// With the crc that its fields ask for.
CxlSuperblock Sealed(CxlSuperblock superblock);

/// What the first bytes of a device or file say.
struct CxlStart {
  bool blank = false;  ///< nothing stands there: to be made into a store
  CxlSuperblock superblock{};
  bool one_damaged = false;  ///< of the two copies
};
/// Of a store of any segment size. Errors: kFailedPrecondition (something else, another version), kDataLoss
/// (both damaged, or with sizes that no store has).
Result<CxlStart> ReadCxlStart(std::span<const std::byte> start);
/// Of one with `segment_bytes`, for who would use it; kFailedPrecondition also for another segment size.
Result<CxlStart> ReadCxlStart(std::span<const std::byte> start, uint64_t segment_bytes);

}  // namespace kvtier
