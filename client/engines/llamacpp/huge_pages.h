#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

namespace kvtier::llamacpp {

/// A stretch of this process's address space.
struct Region {
  uintptr_t begin = 0;
  uintptr_t end = 0;
  friend bool operator==(const Region&, const Region&) = default;
};

/// Smaller regions are not worth it, and thread stacks are of this size.
inline constexpr uint64_t kHugeRegionBytesMin = uint64_t{16} << 20;

/// The private, writable, anonymous regions without a name in `maps` (the text of /proc/self/maps) that have
/// at least `bytes_min`.
std::vector<Region> LargeRegions(std::string_view maps, uint64_t bytes_min);

/// Moves the large memory that the process has by now, such as an engine's KV cache, to huge pages, where the
/// kernel has any and is not told never to use them: what walks all of a cache for one token, and what copies
/// into it, then has a five-hundredth of the pages to find. Memory allocated later is not touched. Returns
/// the bytes of regions that are in huge pages as far as they can be. Ends early after a few seconds.
uint64_t UseHugePages();

}  // namespace kvtier::llamacpp
