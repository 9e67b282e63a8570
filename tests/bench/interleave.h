#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

namespace kvtier::bench {

/// One of the things that are compared. `pass` does the whole of its work once, always the same.
struct Alternative {
  std::string name;
  std::function<void()> pass;
};

struct RoundLimits {
  uint32_t rounds = 15;
  /// Once this much time has gone, no round more than `rounds_min` is begun.
  double seconds = 2;
  uint32_t rounds_min = 5;
  /// A pass is repeated inside its turn until the turn takes about this long: the clock's own cost stays out.
  double turn_seconds = 0.002;
};

/// Times of alternatives that took turns: every round has one turn of each, so that whatever else the machine
/// does meets them alike. Compare by ratios inside a round, not by times of different runs. Threads: one.
class Interleaved {
 public:
  /// Runs every alternative once untimed, then in rounds, the order reversed in every second one.
  static Interleaved Run(std::span<const Alternative> alternatives, const RoundLimits& limits);

  /// Median seconds of one pass.
  double Seconds(size_t alternative) const;
  /// How many times as fast as `reference` it is: the median over the rounds of the ratio inside each.
  double SpeedRatio(size_t alternative, size_t reference) const;
  /// The same against whichever of the references was the fastest in each round.
  double SpeedRatioToBest(size_t alternative, std::span<const size_t> references) const;
  size_t rounds() const { return seconds_.size(); }

 private:
  std::vector<std::vector<double>> seconds_;  ///< [round][alternative], of one pass
};

/// Bytes of what a core has to itself (L2), as the system says; 1 MiB where it does not say.
uint64_t PrivateCacheBytes();

/// Working set of a measurement out of DRAM: FP16 bytes.
inline constexpr uint64_t kDramWorkingSetBytes = uint64_t{256} << 20;

/// Copies past the cache, with the widest non-temporal stores of this CPU. `to` 64-byte aligned, `bytes` a
/// multiple of 64. Where the CPU has none: memcpy.
void NonTemporalCopy(std::byte* to, const std::byte* from, uint64_t bytes);

/// Writes every page, so that no measurement pays for its first touch.
void TouchPages(std::span<std::byte> memory);

/// Calls share(0) ... share(threads - 1) at once, share 0 on the calling thread; returns when all are done.
void RunShares(uint32_t threads, const std::function<void(uint32_t)>& share);

}  // namespace kvtier::bench
