#pragma once

#include <array>
#include <memory>
#include <vector>

#include "daemon/engine/command.h"
#include "daemon/policy/admission.h"
#include "monitoring/metrics.h"
#include "tiers/base/bounded_queue.h"
#include "tiers/cold_store.h"
#include "tiers/job.h"

namespace kvtier {

enum class MediumKind : uint8_t { kHost, kGpu, kCxl, kNvme };
/// In slots of arenas, gone with the daemon; the others keep records in segments.
constexpr bool HasArenas(MediumKind kind) {
  return kind == MediumKind::kHost || kind == MediumKind::kGpu;
}

struct TierOptions {
  std::string name;  ///< "hot", "warm", "cxl", "cold"
  MediumKind kind = MediumKind::kHost;
  uint64_t capacity_bytes = 0;
  CodecId codec = CodecId::kRaw16;              ///< what a block becomes when it comes here
  double high_watermark = 0.95;                 ///< background demotion starts above, of capacity
  double low_watermark = 0.90;                  ///< and stops below
  uint64_t segment_bytes = uint64_t{64} << 20;  ///< cold tiers only, as is all below but the medium
  uint32_t segment_records = UINT32_MAX;        ///< no more in a segment, however small
  bool persistent = true;                       ///< a commit survives a power cut
  std::string description;                      ///< of the medium, for people; empty: its kind
  /// cxl: whose blocks alone go there, so that its clients may map the memory; empty: anybody's.
  std::string tenant;
  uint64_t scrub_bytes_per_second = 0;  ///< pace of the background check; 0: none
  /// nvme in kv2p: the planes that complete k4v2 and int4 stay beside a block while there is room.
  bool keep_tails = false;
  AdmissionOptions admission{};  ///< of demotions to it
  double rewrite_share = 0;      ///< of a segment that the last tier reclaims: what is used a lot stays
  Medium* medium = nullptr;
};

struct EngineLimits {
  uint32_t leases_per_session = 4096;
  double lease_share = 0.25;  ///< of a tier's bytes that one session may hold pinned
  uint32_t models_per_session = 64;
  uint32_t sessions = 1024;
  Duration default_lease_ttl = std::chrono::seconds(10);
  Duration max_lease_ttl = std::chrono::seconds(60);
  Duration near_deadline = std::chrono::milliseconds(5);  ///< an acquire that ends sooner reads no tails
  uint32_t jobs_in_flight = 256;      ///< of each queue; every queue is at least this large
  uint64_t max_entries = 16'000'000;  ///< blocks in the table
};

struct EngineOptions {
  /// Highest first, 1..kMaxTiers, GPUs above all others; at least one host tier.
  std::vector<TierOptions> tiers;
  EngineLimits limits;
  uint64_t hash_seed = 0;  ///< random per boot, so that clients cannot aim keys at one bucket of the table
};

/// What the engine tells the session thread, on the engine thread; never blocks.
class EngineEvents {
 public:
  virtual ~EngineEvents() = default;
  /// A new arena: send its descriptor to all sessions of the tenant.
  virtual void OnArenaPublished(const ArenaSpec& arena) = 0;
  /// An arena that exists when `session` opens; called before the reply to OpenSession.
  virtual void OnSessionArena(SessionId session, const ArenaSpec& arena) = 0;
  /// Sessions must unmap it and answer ArenaUnmapped; its memory stays accounted until all did or ended.
  virtual void OnArenaRetired(ArenaId arena, TenantId tenant) = 0;
};

/// Block table, leases, slot allocators, moves: decides and orders, touches no medium.
/// Threads: Step on one owner thread; the queues are the only way in and out.
/// A step takes completions first, then at most kKeysPerStep keys of commands.
class Engine {
 public:
  /// To the threads of one tier's device: theirs alone, so that a device that hangs stops no other.
  struct DeviceQueues {
    BoundedQueue<Job>* moves = nullptr;        ///< to its transfer workers
    BoundedQueue<ColdJob>* commits = nullptr;  ///< to its committer; null for a GPU
  };
  struct Deps {
    BoundedQueue<Command>& commands;
    BoundedQueue<Completion>& completions;
    BoundedQueue<Job>& jobs;                        ///< to the transfer workers: what touches host tiers only
    std::array<DeviceQueues, kMaxTiers> devices{};  ///< by tier, of all but host ones
    EngineEvents& events;
    Metrics& metrics;
  };
  /// `recovery` has one element per tier (empty for those with arenas).
  /// Errors: kInvalidArgument for options that cannot work, naming the option.
  static Result<std::unique_ptr<Engine>> Make(EngineOptions options, Deps deps,
                                              std::vector<ColdRecovery> recovery);
  virtual ~Engine() = default;

  /// One step at time `now`. Returns when the next step is due even if nothing arrives (kNoTime: never); a
  /// value <= now means that there is more to do at once.
  virtual TimePoint Step(TimePoint now) = 0;

  /// Asserts every invariant of the table against the allocators (slow; tests and `kvtierctl verify`).
  virtual void CheckInvariants() const = 0;
  /// Everything that is still owed: jobs in flight, replies held. Zero when idle.
  virtual uint64_t Outstanding() const = 0;
  /// Whether it was told to take no more puts. Any thread.
  virtual bool draining() const = 0;
};

inline constexpr TimePoint kNoTime = TimePoint::max();
inline constexpr uint32_t kKeysPerStep = 512;
/// Of a chain, that come up from cold tiers after an acquire whose lease is full.
inline constexpr size_t kReadAheadBlocks = 16;

}  // namespace kvtier
