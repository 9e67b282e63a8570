#include "tiers/layer_crew.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <string>
#include <system_error>

namespace kvtier {
namespace {

constexpr uint32_t kMaxHelpers = 64;

}  // namespace

/// One ForEach under way; lives on its caller's stack.
struct LayerCrew::Share {
  const Body& body;
  const uint32_t count;
  std::atomic<uint32_t> next{0};
  uint32_t helping = 0;               ///< helpers inside; guarded by the crew's mutex
  std::exception_ptr exception = {};  ///< the first; guarded by exception_mutex
  std::mutex exception_mutex = {};

  bool HasMore() const { return next.load(std::memory_order_relaxed) < count; }
};

Result<std::unique_ptr<LayerCrew>> LayerCrew::Make(uint32_t helpers) {
  if (helpers > kMaxHelpers) return Status(Code::kInvalidArgument, "too many layer helpers");
  std::unique_ptr<LayerCrew> crew(new LayerCrew);
  for (uint32_t place = 1; place <= helpers; ++place) {
    try {
      crew->helpers_.emplace_back([crew = crew.get(), place] { crew->Help(place); });
    } catch (const std::system_error& error) {
      return Status(Code::kResourceExhausted, std::string("no thread for a layer helper: ") + error.what());
    }
  }
  return crew;
}

LayerCrew::~LayerCrew() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  offered_.notify_all();
  for (std::thread& helper : helpers_) helper.join();
}

void LayerCrew::ForEach(uint32_t count, const Body& body) {
  Share share{.body = body, .count = count};
  if (helpers_.empty() || count < 2) {
    Work(share, 0);
  } else {
    {
      std::lock_guard lock(mutex_);
      shares_.push_back(&share);
    }
    offered_.notify_all();
    Work(share, 0);
    std::unique_lock lock(mutex_);
    std::erase(shares_, &share);
    // Each helper inside is at its last index: this ends as soon as those calls do.
    left_.wait(lock, [&] { return share.helping == 0; });
  }
  if (share.exception) std::rethrow_exception(share.exception);
}

void LayerCrew::Help(uint32_t place) {
  std::unique_lock lock(mutex_);
  while (true) {
    // Asked once a wake: the last index may be taken between two looks, as that needs no lock.
    Share* share = nullptr;
    offered_.wait(lock, [&] { return stopping_ || (share = OpenShare()) != nullptr; });
    if (stopping_) return;
    ++share->helping;
    lock.unlock();
    Work(*share, place);
    lock.lock();
    if (--share->helping == 0) left_.notify_all();
  }
}

LayerCrew::Share* LayerCrew::OpenShare() const {
  const auto open = std::ranges::find_if(shares_, &Share::HasMore);
  return open == shares_.end() ? nullptr : *open;
}

void LayerCrew::Work(Share& share, uint32_t place) {
  for (uint32_t index = share.next++; index < share.count; index = share.next++) {
    try {
      share.body(index, place);
    } catch (...) {
      share.next = share.count;
      std::lock_guard lock(share.exception_mutex);
      if (!share.exception) share.exception = std::current_exception();
    }
  }
}

}  // namespace kvtier
