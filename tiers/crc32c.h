#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace kvtier {

/// CRC32C (Castagnoli, the usual inversions: "123456789" gives 0xE3069283) by ISA-L.
uint32_t Crc32c(std::span<const std::byte> bytes);
/// The crc of what `crc` covers followed by `bytes`; the crc of nothing is 0.
uint32_t ContinueCrc32c(uint32_t crc, std::span<const std::byte> bytes);

/// Copies `from` to `to` (same size, not overlapping) and returns the crc of what arrived: right for `to`
/// even while somebody else changes `from`. Leaves `to` in cache: for parts that are looked at again soon.
uint32_t CopyAndCrc32c(std::span<const std::byte> from, std::span<std::byte> to);

/// The same past the cache, faster above the cache's size: for blocks, of which nobody knows when they are
/// read. Any alignment of `to`.
uint32_t StreamAndCrc32c(std::span<const std::byte> from, std::span<std::byte> to);

}  // namespace kvtier
