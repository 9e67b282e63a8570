#include "tests/support/fake_cuda/work.h"

#include <algorithm>
#include <set>

namespace kvtier::fake_cuda {
namespace {

bool Overlap(const Range& a, const void* data, uint64_t bytes) {
  const auto* a_begin = static_cast<const std::byte*>(a.data);
  const auto* b_begin = static_cast<const std::byte*>(data);
  return a_begin < b_begin + bytes && b_begin < a_begin + a.bytes;
}

bool Conflict(const Work& a, const Work& b) {
  return std::ranges::any_of(a.ranges, [&](const Range& mine) {
    return std::ranges::any_of(b.ranges, [&](const Range& theirs) {
      return (mine.is_written || theirs.is_written) && Overlap(mine, theirs.data, theirs.bytes);
    });
  });
}

}  // namespace

std::string WorkGraph::Add(WorkId id, Work work) {
  std::erase_if(work.after, [&](WorkId before) { return !live_.contains(before); });
  std::string problems = Conflicts(work);
  // What it will change is no longer as those before it left it, and that is not the host's doing.
  for (const Range& range : work.ranges) {
    for (auto& [other_id, other] : live_) {
      if (range.is_written && Overlap(range, other.guarded.data, other.guarded.bytes)) {
        other.is_intact = nullptr;
      }
    }
  }
  live_.emplace(id, std::move(work));
  return problems;
}

std::vector<WorkId> WorkGraph::Ancestors(std::vector<WorkId> from) const {
  std::set<WorkId> seen;
  while (!from.empty()) {
    const WorkId id = from.back();
    from.pop_back();
    const auto found = live_.find(id);
    if (found == live_.end() || !seen.insert(id).second) continue;
    from.insert(from.end(), found->second.after.begin(), found->second.after.end());
  }
  return {seen.begin(), seen.end()};
}

std::string WorkGraph::Conflicts(const Work& work) const {
  if (work.ranges.empty()) return {};
  const std::vector<WorkId> before = Ancestors(work.after);
  std::string problems;
  for (const auto& [id, other] : live_) {
    if (!Conflict(work, other) || std::ranges::binary_search(before, id)) continue;
    problems += work.name + " is not ordered after " + other.name + ", which uses the same memory\n";
  }
  return problems;
}

std::string WorkGraph::AddRanges(WorkId id, std::vector<Range> ranges) {
  Work& work = live_.at(id);
  Work added;
  added.name = work.name;
  added.ranges = ranges;
  const std::vector<WorkId> before = Ancestors({id});
  std::string problems;
  for (const auto& [other_id, other] : live_) {
    if (!Conflict(added, other) || std::ranges::binary_search(before, other_id)) continue;
    if (std::ranges::binary_search(Ancestors({other_id}), id)) continue;  // that is ordered after this
    problems += work.name + " is not ordered with " + other.name + ", which uses the same memory\n";
  }
  work.ranges.insert(work.ranges.end(), ranges.begin(), ranges.end());
  return problems;
}

bool WorkGraph::CanRun(const Work& work) const {
  return !work.has_run && (work.may_run == nullptr || work.may_run()) &&
         std::ranges::all_of(work.after, [&](WorkId id) { return HasRun(id); });
}

bool WorkGraph::CanRunAny() const {
  return std::ranges::any_of(live_, [&](const auto& entry) { return CanRun(entry.second); });
}

int WorkGraph::RunOne(std::optional<WorkId> target) {
  std::vector<WorkId> candidates;
  if (target.has_value()) {
    candidates = Ancestors({*target});
  } else {
    for (const auto& [id, work] : live_) candidates.push_back(id);
  }
  std::erase_if(candidates, [&](WorkId id) { return !CanRun(live_.at(id)); });
  if (candidates.empty()) return 0;
  Work& work = live_.at(candidates[Draw(static_cast<uint32_t>(candidates.size()))]);
  work.has_run = true;
  return work.run == nullptr ? 0 : work.run();
}

std::string WorkGraph::Observe(WorkId id) {
  std::string problems;
  for (const WorkId done : Ancestors({id})) {
    const Work& work = live_.at(done);
    if (work.is_intact != nullptr && !work.is_intact()) {
      problems += "memory of " + work.name + " was written by the host while it was under way\n";
    }
    live_.erase(done);
  }
  return problems;
}

const Work* WorkGraph::UserOf(const void* data, uint64_t bytes) const {
  for (const auto& [id, work] : live_) {
    for (const Range& range : work.ranges) {
      if (Overlap(range, data, bytes)) return &work;
    }
  }
  return nullptr;
}

}  // namespace kvtier::fake_cuda
