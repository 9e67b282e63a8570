#pragma once

#include <barrier>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <type_traits>
#include <vector>

#include "kernels/team.h"

namespace kvtier {

/// What the lanes of a ThreadTeam share.
struct ThreadBlock {
  static constexpr uint32_t kWarp = 32;

  explicit ThreadBlock(uint32_t lanes) : barrier(lanes), slots(lanes) {
    for (uint32_t first = 0; first < lanes; first += kWarp)
      warp_barriers.push_back(std::make_unique<std::barrier<>>(kWarp));
  }

  std::barrier<> barrier;
  std::vector<std::unique_ptr<std::barrier<>>> warp_barriers;
  std::vector<uint64_t> slots;
};

/// One lane of a block whose lanes are threads. Built with ThreadSanitizer it names the two accesses that a
/// missing barrier leaves unordered. Lanes that do not meet at a barrier hang: FiberTeam reports those.
class ThreadTeam {
 public:
  static constexpr uint32_t kLaneWidth = 1;
  static constexpr bool kIsCuda = false;

  ThreadTeam(ThreadBlock& shared, uint32_t block, uint32_t rank, std::byte* scratch)
      : shared_(shared), block_(block), rank_(rank), scratch_(scratch) {}

  uint32_t block() const { return block_; }
  uint32_t rank() const { return rank_; }
  uint32_t size() const { return static_cast<uint32_t>(shared_.slots.size()); }
  static constexpr uint32_t warp_size() { return ThreadBlock::kWarp; }
  std::byte* scratch() const { return scratch_; }
  void sync() const { shared_.barrier.arrive_and_wait(); }

  template <typename Value>
  Value shfl_xor(Value value, uint32_t mask) const {
    static_assert(std::is_trivially_copyable_v<Value> && sizeof(Value) <= sizeof(uint64_t));
    std::barrier<>& warp = *shared_.warp_barriers[rank_ / ThreadBlock::kWarp];
    memcpy(&shared_.slots[rank_], &value, sizeof value);
    warp.arrive_and_wait();
    memcpy(&value, &shared_.slots[rank_ ^ mask], sizeof value);
    warp.arrive_and_wait();  // before anyone gives its next value
    return value;
  }

 private:
  ThreadBlock& shared_;
  uint32_t block_, rank_;
  std::byte* scratch_;
};
static_assert(Team<ThreadTeam>);

/// Runs body(team) for every block, one after the other, on `lanes` threads (a multiple of 32). Scratch as in
/// LaunchFibers.
void LaunchThreads(const LaunchShape& shape, uint32_t lanes,
                   const std::function<void(const ThreadTeam&)>& body);

}  // namespace kvtier
