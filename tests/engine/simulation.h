#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "tests/support/engine_harness.h"

namespace kvtier {

struct SimulationOptions {
  uint64_t seed = 0;
  uint32_t steps = 10000;
  /// Tiers hold everything and nothing fails: what was acknowledged must be found.
  bool roomy = false;
  /// Plant the defect that failed moves are published.
  bool publish_failed_moves = false;
  /// A CXL tier for the first tenant, whose sessions read it in place.
  bool mapped_store = false;
  /// The first tier is on a GPU, which some runs lose.
  bool gpu = false;
};

/// Random requests of several sessions of two tenants against an engine on a fake ladder, whose jobs end
/// late, out of order or not well; an independent model says what a reader may find. Everything follows from
/// the seed.
class Simulation {
 public:
  explicit Simulation(SimulationOptions options);
  ~Simulation();

  /// What went wrong first; nothing when all held.
  std::optional<std::string> Run();
  uint64_t acquired() const { return acquired_; }
  /// Of those, where they stand on a cold tier.
  uint64_t read_in_place() const { return read_in_place_; }
  bool lost_gpu() const { return lost_gpu_; }
  uint64_t restarts() const { return restarts_; }
  const Metrics& metrics() { return harness_->metrics(); }

 private:
  enum class PutState : uint8_t { kUnknown, kStored, kNotStored };
  struct PutRecord {
    PutState state = PutState::kUnknown;
    uint64_t sent = 0;                ///< number of the command
    uint64_t stored_by = UINT64_MAX;  ///< commands sent when it was acknowledged
    Precision floor = Precision::kNone;
  };
  /// What the model knows of a key of a tenant.
  struct KeyRecord {
    std::map<uint64_t, PutRecord> puts;  ///< by owner
    uint64_t removed_by = 0;             ///< the last command that removed it
    uint64_t removed_for_good = 0;       ///< the last one that was answered: no restart brings the block back
    bool must_hit = false;               ///< in a roomy simulation: acknowledged, not removed since
    bool must_survive = false;           ///< the same, on a persistent tier
  };
  using Name = std::pair<std::string, Key>;  ///< tenant name and key
  struct HeldLease {
    SessionId session;
    TimePoint expires;
    std::vector<std::pair<Place, uint64_t>> blocks;  ///< with the owner that was there first
  };
  struct SentBlock {
    Key key;
    uint64_t owner;
    bool is_tail;
  };
  struct Client {
    SessionId id;
    std::string tenant;
    std::vector<ModelId> models;
    std::vector<uint64_t> leases;
    std::vector<std::pair<uint64_t, std::vector<SentBlock>>> tickets;
  };

  void Act();
  void SendRandom();
  void OpenClient();
  void CloseClient();
  void SendPut(Client& client);
  void SendAcquire(Client& client);
  void SendLookup(Client& client);
  void SendRelease(Client& client);
  void SendRemove(Client& client);
  void SendPrefetch(Client& client);
  void SendWait(Client& client);
  void SendAdmin();
  void Restart();
  void RunOneJob();
  void LoseGpuSometimes();
  void InstallFaults();
  void Finish();

  void OnPutReply(const std::string& tenant, const std::vector<SentBlock>& blocks, uint64_t sent,
                  const Result<PutReply>& reply);
  void OnTicketReply(const std::string& tenant, const std::vector<SentBlock>& blocks,
                     const Result<PutReply>& reply);
  size_t MustHit(const std::string& tenant, const std::vector<Key>& keys) const;
  uint64_t LeftLadder();
  uint64_t StoredBlocks();
  void OnAcquireReply(const std::string& tenant, SessionId session, uint64_t lease, uint64_t sent,
                      const std::vector<Key>& keys, Precision least, const Result<AcquireReply>& reply);
  void CheckAcquired(const std::string& tenant, SessionId session, uint64_t sent, const Key& key,
                     const AcquiredBlock& block, Precision least);
  void CheckLeases();
  void CheckArenas();
  void CheckConservation();
  void CheckMustHit();
  void Violate(std::string what);

  uint64_t Random(uint64_t below) { return rng_() % below; }
  bool Chance(uint32_t percent) { return Random(100) < percent; }
  template <typename T>
  Reply<T> Once(std::function<void(const Result<T>&)> then);
  Client& RandomClient() { return clients_[Random(clients_.size())]; }
  const ModelSpec& SpecOf(size_t model) const { return specs_[model]; }
  Key KeyOf(const std::string& tenant, size_t model, uint64_t chain, uint64_t depth, uint16_t tokens) const;

  SimulationOptions options_;
  std::mt19937_64 rng_;
  std::unique_ptr<EngineHarness> harness_;
  std::vector<ModelSpec> specs_;
  std::vector<Client> clients_;
  std::map<Name, KeyRecord> keys_;
  std::map<std::pair<uint64_t, uint64_t>, HeldLease> leases_;  ///< by session and lease
  std::set<std::pair<uint64_t, uint64_t>> released_;
  std::optional<std::string> violation_;
  uint32_t fault_percent_ = 0;
  uint64_t next_session_ = 1;
  uint64_t next_owner_ = 1;
  uint64_t next_lease_ = 1;
  uint64_t commands_ = 0;
  uint64_t removed_any_ = 0;  ///< the last command that removed anything; the maximum while one is at it
  uint32_t clearing_ = 0;     ///< commands that clear a namespace and are not answered
  uint64_t pending_replies_ = 0;
  std::optional<TierId> cxl_;  ///< that the first tenant maps
  uint64_t read_in_place_ = 0;
  bool lost_gpu_ = false;
  uint64_t acquired_ = 0;
  uint64_t restarts_ = 0;
  uint64_t stored_at_boot_ = 0;
  uint64_t generation_ = 0;  ///< of replies: those of an earlier boot never come
};

}  // namespace kvtier
