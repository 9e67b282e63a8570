#pragma once

#include <array>
#include <cstdint>
#include <vector>

namespace kvtier {

/// How often each of many names came up lately, in a few bytes a name: a count-min sketch of 4-bit counters
/// that forgets (TinyLFU: Einziger, Friedman, Manes, arXiv:1512.00727). A name's four counters share a cache
/// line. Threads: single-owner. Pure: no clock of its own; it forgets by what is added.
class FrequencySketch {
 public:
  static constexpr uint32_t kMaxCount = 15;

  /// For about `names` different ones, at most kMaxNames; 4 bytes each.
  explicit FrequencySketch(uint64_t names);

  /// `hash`: a good one of the name, 64 bits.
  void Add(uint64_t hash);
  /// Rarely too high, when names collide; too low only by what it forgot. At most kMaxCount.
  uint32_t Count(uint64_t hash) const;
  uint64_t bytes() const { return lines_.size() * sizeof(Line); }

  static constexpr uint64_t kMaxNames = uint64_t{1} << 26;

 private:
  static constexpr uint32_t kCounters = 4;       ///< of a name, one in each quarter of its line
  static constexpr uint32_t kNamesPerLine = 16;  ///< half of the line's counters are in use then
  static constexpr uint32_t kAddsPerName = 10;   ///< until every counter was halved once

  /// 128 counters; quarter q is words 2q and 2q + 1.
  struct alignas(64) Line {
    std::array<uint64_t, 8> words{};
  };
  struct Spot {
    uint32_t word;
    uint32_t shift;
  };
  static Spot SpotOf(uint64_t hash, uint32_t counter);
  uint64_t LineOf(uint64_t hash) const { return (hash >> 20) & (lines_.size() - 1); }
  void ForgetALittle();

  std::vector<Line> lines_;  ///< a power of two
  uint64_t adds_ = 0;
  uint64_t next_to_halve_ = 0;
};

}  // namespace kvtier
