#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/engine_harness.h"

namespace kvtier {

inline constexpr uint64_t kKiB = 1024;
inline constexpr uint64_t kMiB = 1024 * kKiB;

/// One session of one tenant with TinyModel registered, on tiers that each test chooses.
class LadderFixture {
 public:
  explicit LadderFixture(EngineHarness::Options options) : harness(std::move(options)) { Begin(); }

  /// Opens session 1 and registers the model: at start and after a restart.
  void Begin() {
    session = harness.Open(1);
    model = harness.Register(session, spec);
  }
  std::vector<Code> PutCodes(uint64_t first, uint64_t count, Durability durability = Durability::kMemory) {
    std::vector<Code> codes;
    const Result<PutReply> reply = harness.PutChain(session, model, spec, first, count, durability);
    if (!reply.ok()) return {reply.status().code()};
    for (const PutOutcome& outcome : reply->blocks) codes.push_back(outcome.code);
    return codes;
  }
  /// The ticket of the last PutChain.
  Result<PutReply> WaitLast() {
    return harness.Call<PutReply>(WaitTicket{session, TicketId{harness.next_ticket - 1}, {}},
                                  std::chrono::seconds(20));
  }
  Result<AcquireReply> Acquire(uint64_t lease, uint64_t first, uint64_t count) {
    return harness.AcquireKeys(session, model, lease, harness.ChainKeysOf(first, count));
  }
  size_t Hits(uint64_t first, uint64_t count) {
    return harness.LookupKeys(session, model, harness.ChainKeysOf(first, count))->run.size();
  }
  uint64_t OwnerAt(const Place& place) {
    const auto image = harness.fake().At(harness.PlaceIn(place));
    return image ? image->owner : 0;
  }
  std::vector<TierStats> TierNumbers() { return harness.Call<StatsReply>(Stats{})->tiers; }

  ModelSpec spec = TinyModel();
  EngineHarness harness;
  SessionId session;
  ModelId model;
};

}  // namespace kvtier
