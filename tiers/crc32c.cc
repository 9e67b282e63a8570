#include "tiers/crc32c.h"

#include <isa-l.h>

#include <algorithm>
#include <cstring>

#include "tiers/base/check.h"

namespace kvtier {
namespace {

/// ISA-L takes the length as an int.
constexpr size_t kMaxCallBytes = size_t{1} << 30;
/// Fits the second level cache of every core of interest, source and target together.
constexpr size_t kCopyChunkBytes = 128 << 10;

}  // namespace

uint32_t ContinueCrc32c(uint32_t crc, std::span<const std::byte> bytes) {
  uint32_t state = ~crc;
  while (!bytes.empty()) {
    const size_t n = std::min(bytes.size(), kMaxCallBytes);
    // The library's signature lacks const; it only reads.
    auto* data = const_cast<unsigned char*>(reinterpret_cast<const unsigned char*>(bytes.data()));
    state = crc32_iscsi(data, static_cast<int>(n), state);
    bytes = bytes.subspan(n);
  }
  return ~state;
}

uint32_t Crc32c(std::span<const std::byte> bytes) {
  return ContinueCrc32c(0, bytes);
}

uint32_t CopyAndCrc32c(std::span<const std::byte> from, std::span<std::byte> to) {
  KVTIER_CHECK(from.size() == to.size());
  uint32_t crc = 0;
  for (size_t at = 0; at < from.size(); at += kCopyChunkBytes) {
    const size_t n = std::min(from.size() - at, kCopyChunkBytes);
    std::memcpy(to.data() + at, from.data() + at, n);
    crc = ContinueCrc32c(crc, to.subspan(at, n));
  }
  return crc;
}

}  // namespace kvtier
