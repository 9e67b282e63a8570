#pragma once

#include <functional>
#include <string>
#include <variant>
#include <vector>

#include "daemon/policy/model_spec.h"
#include "tiers/base/clock.h"
#include "tiers/base/ids.h"
#include "tiers/base/status.h"
#include "tiers/move.h"

namespace kvtier {

/// Runs on the engine thread: hand the result on, never block. Called exactly once for every command that was
/// queued.
template <typename T>
using Reply = std::function<void(Result<T>)>;
struct Done {};

enum class Durability : uint8_t { kMemory = 0, kDurable = 1 };

// ---- sessions

struct OpenedSession {
  TenantId tenant;
};
/// The reply runs in the order of arena events: arenas published before it must be announced to the new
/// session by the receiver of the reply (EngineEvents::OnSessionArena is called for each of them just before
/// the reply).
struct OpenSession {
  SessionId session;
  std::string tenant_name;  ///< "uid:1000"
  Reply<OpenedSession> reply;
};
/// Releases leases, tickets, registrations and unmap debts of the session.
struct CloseSession {
  SessionId session;
  Reply<Done> reply;
};
/// The session has mapped the memory of a cold tier: it reads for itself what stands there, until it says
/// ArenaUnmapped of the store (StoreArenaId).
struct StoreMapped {
  SessionId session;
  TierId tier;
};
/// The session has unmapped a retired arena, or no longer reads a store.
struct ArenaUnmapped {
  SessionId session;
  ArenaId arena;
};

// ---- models

struct RegisteredModel {
  ModelId model;
  NamespaceDigest name_space;
  ModelSpec spec;  ///< with defaults resolved
};
struct RegisterModel {
  SessionId session;
  ModelSpec spec;
  Reply<RegisteredModel> reply;
};

// ---- reading

struct TailChild {
  uint16_t tokens = 0;
  Key key;
};
struct LookupReply {
  struct Block {
    Precision precision = Precision::kNone;  ///< best copy
    TierId tier;                             ///< highest tier that holds it
  };
  std::vector<Block> run;     ///< the unbroken run from the first key
  bool next_pending = false;  ///< the first key after the run is being stored
  std::vector<TailChild>
      tails;  ///< tail children of the last matched block (of `parent` when nothing matched)
};
/// Never pins, never moves.
struct Lookup {
  SessionId session;
  ModelId model;
  Key parent;  ///< of keys[0]
  std::vector<Key> keys;
  Reply<LookupReply> reply;
};

/// A block under a lease, in a host arena or in a store that the session has mapped.
struct AcquiredBlock {
  Key key;
  uint16_t tokens = 0;
  uint64_t first_position = 0;
  CodecId codec = CodecId::kNone;
  Precision precision = Precision::kNone;
  TierId served_from;  ///< the tier that held it when it was asked for
  uint64_t image_bytes = 0;
  /// Arena, slot, offset, epoch; of a store its StoreArenaId, the segment, the offset in the mapping, the
  /// segment's sequence.
  Place place;
  float k_error = 0, v_error = 0;
};
struct AcquireReply {
  std::vector<AcquiredBlock> run;
  std::vector<AcquiredBlock>
      tails;  ///< children of the last block of the run, when asked for and the run is complete
  Code stopped_by = Code::kOk;  ///< why the run ends before the last key: kNotFound, kPending,
                                ///< kDeadlineExceeded, kResourceExhausted
  TimePoint expires;
};
/// Match and pin in one atomic step; promotes what no host tier holds and the session cannot read by itself.
/// Answers by `deadline` with what is there.
struct Acquire {
  SessionId session;
  ModelId model;
  LeaseId lease;
  Key parent;
  std::vector<Key> keys;
  bool want_tails = false;
  Precision min_precision = Precision::kNone;
  Duration ttl{};
  /// What comes from a cold tier comes at the best rung whose image is at most this large, or at
  /// min_precision, or as its base. 0: the best rung.
  uint64_t max_block_bytes = 0;
  Reply<AcquireReply> reply;
};
/// Errors: kStale for a lease that expired or never was.
struct Release {
  SessionId session;
  LeaseId lease;
  /// Blocks of the lease that were damaged where the client read them. Nobody is believed: a few of these
  /// copies are read and checked, the rest is left to the next reader or the background check.
  std::vector<Key> damaged;
  Reply<Done> reply;
};
/// Progress of a long read. Errors: kStale.
struct Renew {
  SessionId session;
  LeaseId lease;
  Duration ttl{};
  Reply<Done> reply;
};

// ---- writing

struct PutBlock {
  Key key;
  Key parent;
  uint64_t first_position = 0;
  uint16_t tokens = 0;  ///< fewer than tokens_per_block: a tail block
  StagedSource source;
  std::vector<Key> supersedes;  ///< tails that this block covers; gone once it is stored
};
struct PutOutcome {
  Code code = Code::kOk;  ///< kOk stored; kAlreadyExists; else why it was refused or dropped
  Precision precision = Precision::kNone;
  TierId tier;
};
struct PutReply {
  std::vector<PutOutcome> blocks;
};
/// Answers when every block is stored in memory, refused or dropped: then the staging bytes are free again.
struct Put {
  SessionId session;
  ModelId model;
  TicketId ticket;
  Durability durability = Durability::kMemory;
  Precision floor = Precision::kNone;
  uint8_t priority = 0;
  Duration ttl{};  ///< 0: none
  std::vector<PutBlock> blocks;
  Reply<PutReply> reply;
};
/// Answers when the blocks of a durable put are synced on a persistent tier (or could not be). kStale:
/// unknown ticket.
struct WaitTicket {
  SessionId session;
  TicketId ticket;
  Reply<PutReply> reply;
};

// ---- moving and forgetting

struct Prefetch {
  SessionId session;
  ModelId model;
  TicketId ticket;
  TierId target;
  std::vector<Key> keys;
  Reply<uint32_t> reply;  ///< at once: how many moves were started
};
struct Cancel {
  SessionId session;
  TicketId ticket;
  Reply<Done> reply;
};
struct Remove {
  SessionId session;
  ModelId model;
  std::vector<Key> keys;  ///< empty: the whole namespace
  /// Blocks removed, once no crash can bring them back; bytes under a lease stay until its release. kAborted:
  /// a cold tier failed to forget them.
  Reply<uint64_t> reply;
};

// ---- looking and administration

struct TierStats {
  std::string name, medium, codec;
  uint64_t capacity_bytes = 0, used_bytes = 0;
  std::array<uint64_t, 6> blocks{};  ///< by precision
  bool accepts_writes = true;
};
struct StatsReply {
  std::vector<TierStats> tiers;
  uint64_t table_entries = 0, leases_live = 0, sessions = 0, models = 0, jobs_in_flight = 0,
           command_queue_depth = 0;
  bool draining = false;
};
struct Stats {
  Reply<StatsReply> reply;
};
struct ModelStats {
  ModelId model;
  std::string tenant;
  NamespaceDigest name_space;
  ModelSpec spec;
  uint64_t blocks = 0, bytes = 0;
};
struct ListModels {
  Reply<std::vector<ModelStats>> reply;
};
struct BlockStats {
  Key key, parent;
  uint64_t first_position = 0;
  uint16_t tokens = 0;
  uint32_t pins = 0;
  uint32_t children = 0;  ///< stored blocks that continue it
  uint8_t priority = 0;
  Precision floor = Precision::kNone;
  bool is_tail = false;
  uint64_t uses_since = 0;              ///< of other blocks, since its last one
  std::optional<uint32_t> recent_uses;  ///< where frequencies are counted; saturates
  struct Copy {
    TierId tier;
    CodecId codec;
    uint64_t bytes;
    float k_error, v_error;
    uint64_t present_ms;  ///< how long it has been on the tier; of one that a start found, since then
  };
  std::vector<Copy> copies;
};
struct ListBlocks {
  ModelId model;
  Key after;           ///< pages in key order; zero for the first
  uint32_t limit = 0;  ///< at most kMaxKeysPerCall
  Reply<std::vector<BlockStats>> reply;
};
/// Demotes up to `count` least valuable blocks one tier down from `from`; answers when the moves ended.
struct AdminDemote {
  TierId from;
  uint64_t count = 0;
  Reply<uint64_t> reply;
};
struct AdminEvict {
  TierId from;
  uint64_t count = 0;
  Reply<uint64_t> reply;
};
inline constexpr size_t kMaxCorruptKeys = 1024;
struct VerifyReply {
  uint64_t checked = 0, corrupt = 0;
  std::vector<Key> corrupt_keys;  ///< the first kMaxCorruptKeys of them
};
/// Reads and checks every copy in a tier; a corrupt one is quarantined.
struct AdminVerify {
  TierId tier;
  Reply<VerifyReply> reply;
};
/// Brings every block that has no persistent copy to the persistent tier and stops taking puts: before a
/// planned stop.
struct AdminDrain {
  Reply<uint64_t> reply;
};

using CommandBody = std::variant<OpenSession, CloseSession, StoreMapped, ArenaUnmapped, RegisterModel, Lookup,
                                 Acquire, Release, Renew, Put, WaitTicket, Prefetch, Cancel, Remove, Stats,
                                 ListModels, ListBlocks, AdminDemote, AdminEvict, AdminVerify, AdminDrain>;

/// What the service sends to the engine. Late commands (past `deadline` when they are reached) answer
/// kDeadlineExceeded.
struct Command {
  TimePoint deadline;
  CommandBody body;
};

inline constexpr uint32_t kMaxKeysPerCall = 4096;

}  // namespace kvtier
