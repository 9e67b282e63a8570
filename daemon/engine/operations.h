#pragma once

#include <array>
#include <deque>
#include <optional>
#include <unordered_map>
#include <variant>
#include <vector>

#include "daemon/engine/command.h"
#include "daemon/engine/entry.h"
#include "daemon/engine/timer_queue.h"
#include "tiers/arena_allocator.h"
#include "tiers/move.h"

namespace kvtier {

/// Who is told when a transfer ends.
struct Waiter {
  enum class Kind : uint8_t { kPut, kPutJoin, kAcquire, kAcquireTail, kPrefetch, kDurable, kSweep };
  Kind kind;
  OpId op;
  uint32_t index = 0;
};

/// Why a block moves.
enum class Purpose : uint8_t { kPut, kPromote, kDemote, kPersist };

/// One block on its way to one tier: it waits for space, is moved by a worker, and on a cold tier committed.
struct Transfer {
  enum class Stage : uint8_t { kSeeking, kMoving, kCommitting };
  TransferId id;
  EntryId entry;
  Purpose purpose = Purpose::kPut;
  Stage stage = Stage::kSeeking;
  std::optional<TierId> from;  ///< none: from staging
  TierId to;
  const Codec* codec = nullptr;
  uint64_t image_bytes = 0;  ///< to make room for
  /// Of the K and V tails to make room for as well, if that costs nothing of more use; 0: none.
  std::array<uint64_t, kColdTails.size()> tail_bytes{};
  TailPlaces source_tails{};  ///< that it reads
  TimePoint deadline = kNever;
  CodecId source_codec = CodecId::kNone;
  Precision least = Precision::kNone;  ///< of the target, above what the tier and the floor ask for
  bool regrown = false;                ///< the image was larger than thought, once
  bool moved_over = false;             ///< found no space on the disk, once: another segment may have some
  bool on_demand = false;              ///< a demotion whose slot somebody waits for
  bool probe = false;                  ///< of a half-open circuit of the target
  bool read_probe = false;             ///< of one of the source
  bool overdue = false;                ///< with a device for so long that nobody counts on its end
  SlotClass source_class;              ///< of a demotion from a host tier
  std::optional<StagedSource> staged;
  MoveOutcome outcome;
  std::vector<Waiter> waiters;

  /// For its bytes (a put, a read) or for the space that it frees. Writing down what stays readable can wait.
  bool SomebodyWaits() const {
    return purpose == Purpose::kPut || purpose == Purpose::kPromote ||
           (purpose == Purpose::kDemote && on_demand);
  }
};

/// A block that is written again on the same tier, because the segment that it is in is about to go.
struct Rewrite {
  EntryId entry = kNoEntry;  ///< its copy has a job's pin
  TierId tier;
  Place target;
  bool committed = false;
};

/// Blocks that one put brings.
struct PutOp {
  OpId id;
  SessionId session;
  ModelId model;
  TicketId ticket;
  Durability durability = Durability::kMemory;
  TimePoint deadline = kNever;
  bool open = true;  ///< the command is still being read
  Reply<PutReply> reply;
  struct Block {
    EntryId entry = kNoEntry;
    uint32_t generation = 0;
    std::optional<StagedSource> source;
    std::vector<Key> supersedes;
    PutOutcome outcome;
    Code durable = Code::kOk;
    bool settled = false;
    bool persisting = false;
    std::vector<Waiter> joined;
  };
  std::vector<Block> blocks;
  uint32_t unsettled = 0;
  uint32_t persisting = 0;
};

/// Blocks that one acquire pins: those on a host tier at once, the others when they are promoted.
struct AcquireOp {
  OpId id;
  SessionId session;
  LeaseId lease;
  ModelId model;
  TimePoint deadline = kNever;
  TimePoint started{};
  Duration ttl{};
  bool want_tails = false;
  Precision min_precision = Precision::kNone;
  uint64_t max_block_bytes = 0;
  Reply<AcquireReply> reply;
  struct Item {
    EntryId entry = kNoEntry;
    TierId pinned;       ///< tier whose copy the lease pins
    TierId served_from;  ///< where it was when asked for
    bool ready = false;
    bool failed = false;
  };
  std::vector<Item> items;
  std::vector<Item> tails;
  size_t asked = 0;  ///< keys in the command
  size_t ready_prefix = 0;
  std::array<uint64_t, kMaxTiers> promised_bytes{};  ///< of promotions to each tier, not pinned yet
  Code stopped_by = Code::kOk;
};

struct PrefetchOp {
  OpId id;
  SessionId session;
  TicketId ticket;
  uint32_t in_flight = 0;
  bool open = true;
  std::vector<TransferId> transfers;
};

/// Blocks that were taken out of the table, and what of them may still stand on disk.
struct Removal {
  uint64_t blocks = 0;
  bool was_on_disk = false;
  struct Row {
    EntryId entry;
    uint32_t generation;
  };
  std::vector<Row> rows;  ///< with copies on a cold tier that are still read or written
};

/// A removal that is answered when no crash can bring its blocks back.
struct RemovalOp {
  OpId id;
  TimePoint deadline = kNever;
  Removal removal;
  std::optional<std::array<uint64_t, kMaxTiers>> forgets;  ///< jobs of each cold tier that must be done, once
                                                           ///< every row has let go
  uint64_t failed_before = 0;                              ///< cold jobs, when it began
  Reply<uint64_t> reply;
};

/// Work over a whole tier or table, in slices of a step, with a bounded number of jobs in flight.
struct SweepOp {
  enum class Kind : uint8_t { kClear, kListBlocks, kDemote, kEvict, kVerify, kDrain };
  OpId id;
  Kind kind;
  TimePoint deadline = kNever;
  TierId tier;
  ModelId model;
  uint32_t next_row = 0;
  uint32_t row_limit = 0;
  uint64_t wanted = 0;  ///< blocks still to be started
  uint32_t in_flight = 0;
  uint64_t done = 0;
  uint64_t corrupt = 0;
  std::vector<Key> corrupt_keys;  ///< the first kMaxCorruptKeys
  Key after;
  uint32_t limit = 0;
  std::vector<Key> found;  ///< kListBlocks: a heap of the smallest keys
  uint32_t clear = 0;      ///< kClear: how many there were before it
  Removal removal;         ///< kClear
  std::variant<Reply<uint64_t>, Reply<VerifyReply>, Reply<std::vector<BlockStats>>> reply;
};

struct Lease {
  TimePoint expires = kNever;
  OpId pending{};  ///< the acquire that is filling it; 0: granted
  struct Pinned {
    EntryId entry;
    TierId tier;
    uint64_t bytes;
  };
  std::vector<Pinned> pins;
};

struct TicketWait {
  uint64_t id;
  TimePoint deadline;
  Reply<PutReply> reply;
};
struct Ticket {
  OpId op;
  bool is_put = true;
  bool done = false;
  Code cancelled = Code::kOk;
  PutReply result;
  std::vector<TicketWait> waits;
};

struct Session {
  SessionId id;
  TenantId tenant;
  std::vector<ModelId> models;
  std::unordered_map<LeaseId, Lease> leases;
  std::unordered_map<TicketId, Ticket> tickets;
  std::deque<TicketId> done_tickets;
  std::array<uint64_t, kMaxTiers> pinned_bytes{};
  std::array<bool, kMaxTiers> maps{};  ///< cold tiers that it reads by itself
};

/// What a completion is for.
struct PendingJob {
  enum class Kind : uint8_t {
    kMove,
    kCommit,
    kCreateArena,
    kDestroyArena,
    kVerify,
    kErase,
    kRecycle,
    kRewrite,
    kRewriteCommit,
    kPutModel
  };
  Kind kind;
  TransferId transfer{};  ///< kMove, kCommit
  TierId tier{};
  ArenaId arena{};
  uint32_t segment = 0;
  ModelId model{};
  OpId op{};  ///< kVerify: for whom; 0: the background check. kRewrite, kRewriteCommit: which
  EntryId entry = kNoEntry;
  uint64_t bytes = 0;              ///< kVerify
  Key key{};                       ///< kVerify
  TailPlaces tails{};              ///< kVerify: those that it reads
  std::optional<TierId> device{};  ///< cold tier whose threads do it; none: the host tiers' workers
};

}  // namespace kvtier
