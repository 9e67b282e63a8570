#pragma once

#include <array>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "daemon/engine/engine.h"
#include "tests/support/fake_ladder.h"
#include "tests/support/manual_clock.h"

namespace kvtier {

/// A tier for EngineHarness.
TierOptions HostTier(std::string name, uint64_t capacity_bytes, CodecId codec);
TierOptions TierOnGpu(std::string name, uint64_t capacity_bytes, CodecId codec);
TierOptions ColdTier(std::string name, uint64_t capacity_bytes, uint64_t segment_bytes, CodecId codec);
/// One layer of one head: a raw16 image takes 8 KiB of a tier, a quantized one 4 KiB.
ModelSpec TinyModel(std::string model_id = "tiny");
Key MakeKey(uint64_t number);
/// A source whose first eight bytes are `owner`.
StagedSource OwnedSource(const ModelSpec& spec, uint16_t tokens, uint64_t owner);

/// An engine on FakeLadder, stepped by hand: no threads, no time of its own.
class EngineHarness final : public EngineEvents {
 public:
  struct Options {
    std::vector<TierOptions> tiers;
    EngineLimits limits{};
    /// Sessions unmap retired arenas at once.
    bool unmap_at_once = true;
  };
  explicit EngineHarness(Options options);

  /// As if the daemon was killed and started again: host tiers are gone, cold ones are what was committed.
  void Restart();
  /// Changes what a restart finds.
  std::function<void(std::vector<ColdRecovery>&)> at_restart;

  Engine& engine() { return *engine_; }
  FakeLadder& fake() { return fake_; }
  Metrics& metrics() { return *metrics_; }
  ManualClock& clock() { return clock_; }

  /// One step, then every job there is, in order; completions wait for the next step.
  void StepOnce();
  /// One step; jobs stay where they are.
  TimePoint StepOnly();
  /// Moves jobs from the engine's queues to `held_jobs`.
  void HoldJobs();
  /// Does held job number `index` and queues its completion.
  void RunHeld(size_t index);
  size_t commands_queued() const { return commands_.size(); }
  /// For who sends commands in another way than Send.
  BoundedQueue<Command>& commands() { return commands_; }
  /// Its process is gone: it maps nothing and answers nothing.
  void Forget(SessionId session) {
    tenants_.erase(session);
    mapped_.erase(session);
  }
  bool has_cold() const;
  uint64_t capacity(TierId tier) const { return options_.tiers[tier.value].capacity_bytes; }
  TenantId tenant(SessionId session) const { return tenants_.at(session); }
  size_t held() const { return held_.size(); }
  bool HeldIsHost(size_t index) const { return std::holds_alternative<Job>(held_[index]); }
  /// Jobs for which these are true stay with their threads until Release.
  std::function<bool(const Job&)> hang_job;
  std::function<bool(const ColdJob&)> hang_cold;
  size_t hanging() const { return hanging_.size(); }
  void ReleaseHanging();
  /// Steps until nothing moves any more at this time.
  void Settle();
  void Advance(Duration by) {
    clock_.Advance(by);
    Settle();
  }

  /// Queues a command. The deadline is 100 ms from now unless given.
  template <typename Body>
  void Send(Body body, Duration within = std::chrono::milliseconds(100)) {
    KVTIER_CHECK(commands_.TryPush(Command{.deadline = clock_.Now() + within, .body = std::move(body)}));
  }
  /// Queues a command and steps until it is answered, moving time on where nothing else happens.
  template <typename T, typename Body>
  Result<T> Call(Body body, Duration within = std::chrono::milliseconds(100)) {
    auto answer = std::make_shared<std::optional<Result<T>>>();
    body.reply = [answer](Result<T> result) {
      KVTIER_CHECK(!answer->has_value());
      answer->emplace(std::move(result));
    };
    Send(std::move(body), within);
    Settle();
    for (int i = 0; i < 1000 && !*answer; ++i) Advance(std::chrono::milliseconds(1));
    KVTIER_CHECK(answer->has_value());
    return **answer;
  }

  SessionId Open(uint64_t session, const std::string& tenant = "uid:1000");
  /// The session says that it has mapped the memory of a cold tier.
  void MapStore(SessionId session, TierId tier);
  /// Where the fake ladder has what a client finds at `place`.
  Place PlaceIn(const Place& place) const;
  ModelId Register(SessionId session, const ModelSpec& spec);
  /// A put of blocks `first`.. `first + count - 1` of one chain, each owned by its number.
  Result<PutReply> PutChain(SessionId session, ModelId model, const ModelSpec& spec, uint64_t first,
                            uint64_t count, Durability durability = Durability::kMemory);
  Result<AcquireReply> AcquireKeys(SessionId session, ModelId model, uint64_t lease, std::vector<Key> keys);
  Result<LookupReply> LookupKeys(SessionId session, ModelId model, std::vector<Key> keys);
  Result<Done> ReleaseLease(SessionId session, uint64_t lease, std::vector<Key> damaged = {});
  std::vector<Key> ChainKeysOf(uint64_t first, uint64_t count) const;
  PutBlock ChainBlock(const ModelSpec& spec, uint64_t number) const;

  // EngineEvents
  void OnArenaPublished(const ArenaSpec& arena) override;
  void OnSessionArena(SessionId session, const ArenaSpec& arena) override;
  void OnArenaRetired(ArenaId arena, TenantId tenant) override;
  /// Arenas whose descriptor the session got and did not give up.
  const std::set<uint32_t>& mapped(SessionId session) { return mapped_[session]; }
  std::map<uint32_t, ArenaSpec> published;
  uint32_t retired = 0;
  uint64_t next_ticket = 1;

 private:
  void MakeEngine(std::vector<ColdRecovery> recovery);

  Options options_;
  FakeLadder fake_;
  ManualClock clock_;
  BoundedQueue<Command> commands_{4096};
  BoundedQueue<Completion> completions_{1024};
  BoundedQueue<Job> jobs_{1024};
  struct Device {
    BoundedQueue<Job> moves{1024};
    BoundedQueue<ColdJob> commits{1024};
  };
  std::array<Device, kMaxTiers> devices_;
  std::unique_ptr<Metrics> metrics_;
  std::unique_ptr<Engine> engine_;
  std::vector<std::variant<Job, ColdJob>> held_, hanging_;
  std::map<SessionId, TenantId> tenants_;
  std::map<SessionId, std::set<uint32_t>> mapped_;
};

}  // namespace kvtier
