#pragma once

#include <algorithm>
#include <deque>
#include <map>
#include <unordered_map>
#include <utility>

#include "daemon/engine/entry.h"
#include "tiers/base/bounded_queue.h"
#include "tiers/base/check.h"

namespace kvtier {

/// Jobs for one group of threads: in the order given, urgent ones first, a bounded number handed over at
/// once. Remembers since when each is out, so that a device that does not answer shows. Threads:
/// single-owner.
template <typename AnyJob>
class JobLane {
 public:
  void Add(AnyJob job) { backlog_.push_back(std::move(job)); }
  bool HasBacklog() const { return !urgent_.empty() || !backlog_.empty(); }
  void AddUrgent(AnyJob job) { urgent_.push_back(std::move(job)); }
  /// The last quarter of `limit` is for urgent ones.
  void Dispatch(BoundedQueue<AnyJob>& queue, size_t limit, TimePoint now) {
    while (out_.size() < limit && !urgent_.empty()) {
      const JobId id = urgent_.front().id;
      if (!queue.TryPushUrgent(std::move(urgent_.front()))) return;
      urgent_.pop_front();
      NoteOut(id, now);
    }
    while (out_.size() < limit - limit / 4 && !backlog_.empty()) {
      const JobId id = backlog_.front().id;
      if (!queue.TryPush(std::move(backlog_.front()))) return;
      backlog_.pop_front();
      NoteOut(id, now);
    }
  }
  void OnEnd(JobId id, TimePoint now) {
    const auto turn = turn_of_.find(id);
    KVTIER_CHECK(turn != turn_of_.end());
    out_.erase(turn->second);
    turn_of_.erase(turn);
    last_end_ = now;
    silent_ = false;
  }
  /// Calls `visit` once for each job that is out since `before` or longer.
  template <typename Visit>
  void VisitOverdue(TimePoint before, const Visit& visit) {
    for (auto job = out_.upper_bound(visited_); job != out_.end() && job->second.since <= before; ++job) {
      visited_ = job->first;
      visit(job->second.id);
    }
  }
  /// True once when the oldest job is out since `before` or longer and nothing has ended since.
  bool FallsSilent(TimePoint before) {
    if (silent_ || out_.empty() || OldestSign() > before) return false;
    return silent_ = true;
  }
  /// From FallsSilent until a job ends.
  bool silent() const { return silent_; }
  /// When VisitOverdue and FallsSilent will have something to say of jobs that are out for `by`.
  TimePoint NextLook(Duration by) const {
    if (out_.empty()) return kNever;
    const auto next = out_.upper_bound(visited_);
    const TimePoint overdue = next == out_.end() ? kNever : next->second.since + by;
    return silent_ ? overdue : std::min(overdue, OldestSign() + by);
  }
  /// Removes the jobs for which `gives_up` is true from those that were not handed over yet.
  template <typename GivesUp>
  void TakeBack(const GivesUp& gives_up) {
    std::erase_if(urgent_, gives_up);
    std::erase_if(backlog_, gives_up);
  }

 private:
  struct Out {
    JobId id;
    TimePoint since;
  };
  void NoteOut(JobId id, TimePoint now) {
    turn_of_.emplace(id, ++turns_);
    out_.emplace(turns_, Out{id, now});
  }
  /// Of life, or of the work that asks for one.
  TimePoint OldestSign() const { return std::max(out_.begin()->second.since, last_end_); }

  std::deque<AnyJob> urgent_, backlog_;
  std::map<uint64_t, Out> out_;  ///< in the order in which they were handed over
  std::unordered_map<JobId, uint64_t> turn_of_;
  uint64_t turns_ = 0;
  uint64_t visited_ = 0;  ///< overdue jobs up to this turn were visited
  TimePoint last_end_{};
  bool silent_ = false;
};

}  // namespace kvtier
