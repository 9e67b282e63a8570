#include "client/engines/llamacpp/huge_pages.h"

#include <sys/mman.h>

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <fstream>
#include <iterator>
#include <string>

#include "tiers/base/clock.h"

namespace kvtier::llamacpp {
namespace {

/// Since Linux 6.1; older headers lack it.
constexpr int kMadvCollapse = 25;
constexpr uint64_t kHugePageBytes = uint64_t{2} << 20;
constexpr Duration kBudget = std::chrono::seconds(3);

std::string TextOf(const char* path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

/// The next word of `line`, which is taken off it.
std::string_view Word(std::string_view& line) {
  line.remove_prefix(std::min(line.find_first_not_of(' '), line.size()));
  const std::string_view word = line.substr(0, line.find(' '));
  line.remove_prefix(word.size());
  return word;
}

/// "begin-end perms offset device inode path"
bool ParseAnonymous(std::string_view line, Region& region) {
  const std::string_view range = Word(line), perms = Word(line);
  Word(line);
  Word(line);
  const std::string_view inode = Word(line), name = Word(line);
  if (perms != "rw-p" || inode != "0" || !name.empty()) return false;
  const char* const end = range.data() + range.size();
  const auto [dash, begin_error] = std::from_chars(range.data(), end, region.begin, 16);
  if (begin_error != std::errc() || dash == end) return false;
  return std::from_chars(dash + 1, end, region.end, 16).ec == std::errc() && region.begin < region.end;
}

}  // namespace

std::vector<Region> LargeRegions(std::string_view maps, uint64_t bytes_min) {
  std::vector<Region> regions;
  while (!maps.empty()) {
    const std::string_view line = maps.substr(0, maps.find('\n'));
    maps.remove_prefix(std::min(line.size() + 1, maps.size()));
    Region region;
    if (ParseAnonymous(line, region) && region.end - region.begin >= bytes_min) regions.push_back(region);
  }
  return regions;
}

uint64_t UseHugePages() {
  const std::string enabled = TextOf("/sys/kernel/mm/transparent_hugepage/enabled");
  if (enabled.empty() || enabled.find("[never]") != std::string::npos) return 0;
  const SteadyClock clock;
  const TimePoint end = clock.Now() + kBudget;
  uint64_t bytes = 0;
  for (const Region& region : LargeRegions(TextOf("/proc/self/maps"), kHugeRegionBytesMin)) {
    const uint64_t size = region.end - region.begin;
    if (::madvise(reinterpret_cast<void*>(region.begin), size, MADV_HUGEPAGE) != 0) continue;
    bytes += size;
    // The advice is for memory that has no pages yet, and the engine has cleared its cache: without this the
    // kernel would get to it within hours. One page a call: it ends at the first that it cannot make, such as
    // one that nobody has written to.
    uintptr_t at = (region.begin + kHugePageBytes - 1) / kHugePageBytes * kHugePageBytes;
    for (; at + kHugePageBytes <= region.end && clock.Now() < end; at += kHugePageBytes)
      ::madvise(reinterpret_cast<void*>(at), kHugePageBytes, kMadvCollapse);
  }
  return bytes;
}

}  // namespace kvtier::llamacpp
