#include "daemon/policy/frequency_sketch.h"

#include <algorithm>
#include <bit>

namespace kvtier {

FrequencySketch::FrequencySketch(uint64_t names)
    : lines_(std::bit_ceil(std::clamp<uint64_t>(names, kNamesPerLine, kMaxNames) / kNamesPerLine)) {}

/// The low 20 bits of the hash pick one of 32 counters in each quarter, five bits each.
FrequencySketch::Spot FrequencySketch::SpotOf(uint64_t hash, uint32_t counter) {
  const auto index = static_cast<uint32_t>(hash >> (5 * counter)) & 31;
  return {.word = 2 * counter + index / 16, .shift = index % 16 * 4};
}

void FrequencySketch::Add(uint64_t hash) {
  Line& line = lines_[LineOf(hash)];
  // Only the least of its counters: the others are that high by other names already (conservative update).
  const uint64_t least = Count(hash);
  if (least < kMaxCount) {
    for (uint32_t i = 0; i < kCounters; ++i) {
      const Spot spot = SpotOf(hash, i);
      uint64_t& word = line.words[spot.word];
      if ((word >> spot.shift & kMaxCount) == least) word += uint64_t{1} << spot.shift;
    }
  }
  ForgetALittle();
}

uint32_t FrequencySketch::Count(uint64_t hash) const {
  const Line& line = lines_[LineOf(hash)];
  uint64_t least = kMaxCount;
  for (uint32_t i = 0; i < kCounters; ++i) {
    const Spot spot = SpotOf(hash, i);
    least = std::min(least, line.words[spot.word] >> spot.shift & kMaxCount);
  }
  return static_cast<uint32_t>(least);
}

/// Line by line instead of all at once: no step of the engine takes longer for it.
void FrequencySketch::ForgetALittle() {
  if (++adds_ % (kAddsPerName * kNamesPerLine) != 0) return;
  for (uint64_t& word : lines_[next_to_halve_].words) word = word >> 1 & 0x7777'7777'7777'7777u;
  next_to_halve_ = (next_to_halve_ + 1) & (lines_.size() - 1);
}

}  // namespace kvtier
