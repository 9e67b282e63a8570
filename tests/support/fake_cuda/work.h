#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "tests/support/fake_cuda/fake_cuda.h"

namespace kvtier::fake_cuda {

using WorkId = uint64_t;  ///< 0: none
inline constexpr WorkId kNoWork = 0;

/// A piece of work in a stream.
struct Work {
  std::string name;
  std::vector<Range> ranges;
  std::vector<WorkId> after;        ///< what has to have run before it
  std::function<bool()> may_run;    ///< something of another process; empty: nothing
  std::function<int()> run;         ///< a cudaError_t that loses the context, or 0
  Range guarded;                    ///< host memory that is not the host's to write until it knows that this
                                    ///< has run
  std::function<bool()> is_intact;  ///< whether `guarded` is as this left it; empty: nothing to check
  bool has_run = false;
};

/// The work of all streams of all devices: what depends on what, what has run, and what the host knows to
/// have run. Two pieces that neither depend on each other nor have been waited for may run at the same time,
/// whatever happened here. Threads: single-owner.
class WorkGraph {
 public:
  explicit WorkGraph(uint64_t seed) : random_(seed) {}

  /// Queues it. Returns what is wrong with it, by lines; empty: nothing.
  std::string Add(WorkId id, Work work);
  WorkId NewId() { return ++last_id_; }

  bool HasRun(WorkId id) const { return !live_.contains(id) || live_.at(id).has_run; }
  /// Runs one piece: any that can, or only of what `target` depends on. Nothing if none can.
  /// Returns a cudaError_t.
  int RunOne(std::optional<WorkId> target);
  /// Whether one may run elsewhere than where the host waits: drawn.
  bool RunsElsewhere() { return std::bernoulli_distribution(0.5)(random_); }
  /// A number below `bound`.
  uint32_t Draw(uint32_t bound) { return std::uniform_int_distribution<uint32_t>(0, bound - 1)(random_); }
  /// The host has waited for it, and so for all that it depends on. Returns what is wrong, as Add.
  std::string Observe(WorkId id);
  /// More memory that a piece uses, which shows only when it runs. Returns what is wrong, as Add.
  std::string AddRanges(WorkId id, std::vector<Range> ranges);
  /// Work that may still use these bytes; null: none.
  const Work* UserOf(const void* data, uint64_t bytes) const;
  bool CanRunAny() const;

 private:
  bool CanRun(const Work& work) const;
  std::vector<WorkId> Ancestors(std::vector<WorkId> from) const;
  std::string Conflicts(const Work& work) const;

  std::mt19937_64 random_;
  WorkId last_id_ = kNoWork;
  std::map<WorkId, Work> live_;  ///< that the host does not know to have run
};

}  // namespace kvtier::fake_cuda
