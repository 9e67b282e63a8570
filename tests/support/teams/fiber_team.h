#pragma once

#include <cstdint>
#include <cstring>
#include <functional>
#include <type_traits>

#include "kernels/team.h"
#include "tiers/base/status.h"

namespace kvtier {

/// In which order the lanes of a FiberTeam run between two barriers.
enum class LaneOrder { kForward, kReverse, kRandom };

struct FiberOptions {
  uint32_t lanes = 32;  ///< a multiple of 32, at most kFiberLanesMax
  LaneOrder order = LaneOrder::kForward;
  uint64_t seed = 0;  ///< of kRandom, which draws a new order after every barrier
};
inline constexpr uint32_t kFiberLanesMax = 1024;

class FiberBlock;

/// One lane of a block whose lanes are fibers of one thread, each running from barrier to barrier in an order
/// that the test chooses: what lanes may do in any order is the same in all of them, or a barrier is missing.
/// Where a lane waits is part of the wait, so that lanes that wait at different places are told apart.
class FiberTeam {
 public:
  static constexpr uint32_t kLaneWidth = 1;
  static constexpr bool kIsCuda = false;

  FiberTeam(FiberBlock& lanes, uint32_t block, uint32_t rank, uint32_t size, std::byte* scratch)
      : lanes_(lanes), block_(block), rank_(rank), size_(size), scratch_(scratch) {}

  uint32_t block() const { return block_; }
  uint32_t rank() const { return rank_; }
  uint32_t size() const { return size_; }
  static constexpr uint32_t warp_size() { return 32; }
  std::byte* scratch() const { return scratch_; }

  void sync(const char* file = __builtin_FILE(), uint32_t line = __builtin_LINE()) const;

  template <typename Value>
  Value shfl_xor(Value value, uint32_t mask, const char* file = __builtin_FILE(),
                 uint32_t line = __builtin_LINE()) const {
    static_assert(std::is_trivially_copyable_v<Value> && sizeof(Value) <= sizeof(uint64_t));
    uint64_t bits = 0;
    memcpy(&bits, &value, sizeof value);
    bits = Exchange(bits, mask, file, line);
    memcpy(&value, &bits, sizeof value);
    return value;
  }

 private:
  uint64_t Exchange(uint64_t value, uint32_t mask, const char* file, uint32_t line) const;

  FiberBlock& lanes_;
  uint32_t block_, rank_, size_;
  std::byte* scratch_;
};
static_assert(Team<FiberTeam>);

/// Runs body(team) for every block, one after the other, on the calling thread. Each block gets scratch full
/// of 0xCD that ends where a page begins that nobody may touch.
/// Errors: kInternal when lanes do not meet at a barrier, naming where they are; the blocks after it do not
/// run.
Status LaunchFibers(const LaunchShape& shape, const FiberOptions& options,
                    const std::function<void(const FiberTeam&)>& body);

}  // namespace kvtier
