#include "tests/support/teams/fiber_team.h"

#include <sanitizer/asan_interface.h>

#include <algorithm>
#include <array>
#include <boost/context/fiber.hpp>
#include <boost/context/protected_fixedsize_stack.hpp>
#include <numeric>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "tests/codecs/guarded_memory.h"

namespace kvtier {
namespace {

constexpr size_t kStackBytes = 64 << 10;
constexpr uint32_t kWarp = FiberTeam::warp_size();

/// With a page behind that nobody may touch. A stack is kept for the thread's next lane: to map one takes
/// longer than most lanes run.
class LaneStack : public boost::context::protected_fixedsize_stack {
  using Base = boost::context::protected_fixedsize_stack;
  using Stack = boost::context::stack_context;

 public:
  LaneStack() : Base(kStackBytes) {}
  Stack allocate() {
    if (kept_.stacks.empty()) return Base::allocate();
    const Stack stack = kept_.stacks.back();
    kept_.stacks.pop_back();
    return stack;
  }
  void deallocate(Stack& stack) {
    // A lane's last frames never return, so that AddressSanitizer has them marked for whoever gets the
    // memory.
    ASAN_UNPOISON_MEMORY_REGION(static_cast<std::byte*>(stack.sp) - kStackBytes, kStackBytes);
    if (kept_.stacks.size() < kFiberLanesMax)
      kept_.stacks.push_back(stack);
    else
      Base::deallocate(stack);
  }

 private:
  struct Kept {
    std::vector<Stack> stacks;
    ~Kept() {
      for (Stack& stack : stacks) Base(kStackBytes).deallocate(stack);
    }
  };
  static thread_local Kept kept_;
};
thread_local LaneStack::Kept LaneStack::kept_;

enum class LaneState { kReady, kAtBarrier, kInShuffle, kFinished };

/// Why a lane does not run, and where in its body.
struct Wait {
  LaneState state = LaneState::kReady;
  const char* file = "";
  uint32_t line = 0;
  uint64_t value = 0;  ///< kInShuffle: what it gives; afterwards what it got
  uint32_t mask = 0;   ///< kInShuffle: lane ^ mask is whose value it wants

  bool IsWith(const Wait& other) const {
    return state == other.state && line == other.line && strcmp(file, other.file) == 0;
  }
};

struct Lane {
  boost::context::fiber fiber;
  Wait wait;
};

std::string Describe(uint32_t rank, const Wait& wait) {
  const std::string name = "lane " + std::to_string(rank);
  if (wait.state == LaneState::kFinished) return name + " has finished";
  return name + (wait.state == LaneState::kAtBarrier ? " is at the barrier " : " is at the shuffle ") +
         wait.file + ":" + std::to_string(wait.line);
}

}  // namespace

/// The lanes of one block, and who of them runs.
class FiberBlock {
 public:
  FiberBlock(const FiberOptions& options, uint32_t block, std::byte* scratch,
             const std::function<void(const FiberTeam&)>& body)
      : options_(options), random_(options.seed + block), lanes_(options.lanes), turn_(options.lanes) {
    std::iota(turn_.begin(), turn_.end(), 0);
    if (options.order == LaneOrder::kReverse) std::ranges::reverse(turn_);
    for (uint32_t rank = 0; rank < options.lanes; ++rank) {
      lanes_[rank].fiber =
          boost::context::fiber(std::allocator_arg, LaneStack{},
                                [this, &body, block, rank, scratch](boost::context::fiber&& caller) {
                                  scheduler_ = std::move(caller);
                                  body(FiberTeam(*this, block, rank, options_.lanes, scratch));
                                  lanes_[rank].wait = {.state = LaneState::kFinished};
                                  return std::move(scheduler_);
                                });
    }
  }

  Status Run() {
    while (true) {
      if (options_.order == LaneOrder::kRandom) std::ranges::shuffle(turn_, random_);
      for (const uint32_t rank : turn_) {
        if (lanes_[rank].wait.state == LaneState::kReady) Resume(lanes_[rank]);
      }
      if (AllIn(LaneState::kFinished)) return Status::Ok();
      // Neither holds back the other: warps may shuffle a different number of times between two barriers.
      const bool shuffled = FinishShuffles();
      const bool passed = PassBarrier();
      if (!shuffled && !passed) return Divergence();
    }
  }

  /// On the fiber of lane `rank`: gives way until the lanes that it waits for have come.
  uint64_t GiveWay(uint32_t rank, const Wait& wait) {
    lanes_[rank].wait = wait;
    scheduler_ = std::move(scheduler_).resume();
    return lanes_[rank].wait.value;
  }

 private:
  void Resume(Lane& lane) { lane.fiber = std::move(lane.fiber).resume(); }

  bool AllIn(LaneState state) const {
    return std::ranges::all_of(lanes_, [&](const Lane& lane) { return lane.wait.state == state; });
  }

  static bool AreTogether(std::span<const Lane> lanes, LaneState state) {
    return std::ranges::all_of(
        lanes, [&](const Lane& lane) { return lane.wait.state == state && lane.wait.IsWith(lanes[0].wait); });
  }

  bool PassBarrier() {
    if (!AreTogether(lanes_, LaneState::kAtBarrier)) return false;
    for (Lane& lane : lanes_) lane.wait.state = LaneState::kReady;
    return true;
  }

  bool FinishShuffles() {
    bool any = false;
    for (uint32_t first = 0; first < lanes_.size(); first += kWarp) {
      const std::span<Lane> warp = std::span(lanes_).subspan(first, kWarp);
      if (!AreTogether(warp, LaneState::kInShuffle)) continue;
      std::array<uint64_t, kWarp> given;
      std::ranges::transform(warp, given.begin(), [](const Lane& lane) { return lane.wait.value; });
      for (uint32_t i = 0; i < kWarp; ++i) {
        warp[i].wait.value = given[i ^ warp[i].wait.mask];
        warp[i].wait.state = LaneState::kReady;
      }
      any = true;
    }
    return any;
  }

  Status Divergence() const {
    const auto other =
        std::ranges::find_if(lanes_, [&](const Lane& lane) { return !lane.wait.IsWith(lanes_[0].wait); });
    KVTIER_CHECK(other != lanes_.end());  // or they would have passed
    return {Code::kInternal, "divergent lanes: " + Describe(0, lanes_[0].wait) + ", " +
                                 Describe(static_cast<uint32_t>(other - lanes_.begin()), other->wait)};
  }

  const FiberOptions& options_;
  std::mt19937_64 random_;
  std::vector<Lane> lanes_;
  std::vector<uint32_t> turn_;
  boost::context::fiber scheduler_;
};

void FiberTeam::sync(const char* file, uint32_t line) const {
  lanes_.GiveWay(rank_, {.state = LaneState::kAtBarrier, .file = file, .line = line});
}

uint64_t FiberTeam::Exchange(uint64_t value, uint32_t mask, const char* file, uint32_t line) const {
  KVTIER_CHECK(mask < kWarp);
  return lanes_.GiveWay(
      rank_, {.state = LaneState::kInShuffle, .file = file, .line = line, .value = value, .mask = mask});
}

Status LaunchFibers(const LaunchShape& shape, const FiberOptions& options,
                    const std::function<void(const FiberTeam&)>& body) {
  KVTIER_CHECK(options.lanes > 0 && options.lanes % kWarp == 0 && options.lanes <= kFiberLanesMax);
  // Else it could not both be aligned and end at its guard.
  KVTIER_CHECK(shape.scratch_bytes % kScratchAlign == 0);
  const GuardedMemory scratch(shape.scratch_bytes, GuardedEnd::kBack);
  for (uint32_t block = 0; block < shape.blocks; ++block) {
    std::ranges::fill(scratch.span(), std::byte{0xCD});
    FiberBlock lanes(options, block, scratch.span().data(), body);
    KVTIER_TRY(lanes.Run().WithContext("block " + std::to_string(block)));
  }
  return Status::Ok();
}

}  // namespace kvtier
