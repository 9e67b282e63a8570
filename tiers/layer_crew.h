#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "tiers/base/status.h"

namespace kvtier {

/// Helper threads that take layers of a block off the worker that moves it, so that one large block uses the
/// cores that have nothing else to do. Threads: ForEach on any, several at once share the helpers; Make and
/// the destructor on one, with no ForEach under way. Owns its threads.
class LayerCrew {
 public:
  /// `place` is 0 for the caller's own calls and 1..helpers for those on helpers: at most one call runs in a
  /// place of one ForEach at a time, so that scratch can be kept by place.
  using Body = std::function<void(uint32_t index, uint32_t place)>;

  /// Errors: kInvalidArgument (too many); kResourceExhausted when the system gives no thread.
  static Result<std::unique_ptr<LayerCrew>> Make(uint32_t helpers);
  ~LayerCrew();

  uint32_t places() const { return static_cast<uint32_t>(helpers_.size()) + 1; }

  /// Calls body(index, place) once for every index below `count`, here and on helpers that are free, and
  /// returns when all calls have. What a body throws stops further indexes and is thrown here.
  void ForEach(uint32_t count, const Body& body);

 private:
  struct Share;

  LayerCrew() = default;
  void Help(uint32_t place);
  Share* OpenShare() const;
  static void Work(Share& share, uint32_t place);

  std::mutex mutex_;
  std::condition_variable offered_, left_;
  std::vector<Share*> shares_;  ///< one per ForEach under way
  bool stopping_ = false;
  std::vector<std::thread> helpers_;
};

}  // namespace kvtier
