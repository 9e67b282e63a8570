#include "tests/support/teams/thread_team.h"

#include <algorithm>
#include <thread>

#include "tests/codecs/guarded_memory.h"
#include "tiers/base/check.h"

namespace kvtier {

void LaunchThreads(const LaunchShape& shape, uint32_t lanes,
                   const std::function<void(const ThreadTeam&)>& body) {
  KVTIER_CHECK(lanes > 0 && lanes % ThreadBlock::kWarp == 0);
  KVTIER_CHECK(shape.scratch_bytes % kScratchAlign == 0);
  const GuardedMemory scratch(shape.scratch_bytes, GuardedEnd::kBack);
  for (uint32_t block = 0; block < shape.blocks; ++block) {
    std::ranges::fill(scratch.span(), std::byte{0xCD});
    ThreadBlock shared(lanes);
    std::vector<std::jthread> threads;
    for (uint32_t rank = 0; rank < lanes; ++rank)
      threads.emplace_back([&, rank] { body(ThreadTeam(shared, block, rank, scratch.span().data())); });
  }
}

}  // namespace kvtier
