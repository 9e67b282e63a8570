#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace kvtier {

/// CRC32C (Castagnoli, the usual inversions: "123456789" gives 0xE3069283) by ISA-L.
uint32_t Crc32c(std::span<const std::byte> bytes);
/// The crc of what `crc` covers followed by `bytes`; the crc of nothing is 0.
uint32_t ContinueCrc32c(uint32_t crc, std::span<const std::byte> bytes);

/// Copies `from` to `to` (same size, not overlapping), reading every source byte once, and returns the crc of
/// what arrived: right for `to` even while somebody else changes `from`. Runs chunk by chunk, so that the crc
/// finds its bytes in cache.
uint32_t CopyAndCrc32c(std::span<const std::byte> from, std::span<std::byte> to);

}  // namespace kvtier
