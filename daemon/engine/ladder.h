#pragma once

#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "daemon/engine/block_table.h"
#include "daemon/engine/circuit.h"
#include "daemon/engine/engine.h"
#include "daemon/engine/job_lane.h"
#include "daemon/engine/model_table.h"
#include "daemon/engine/tail_pool.h"
#include "daemon/policy/eviction.h"
#include "tiers/arena_allocator.h"
#include "tiers/segment_allocator.h"

namespace kvtier {

/// Segments that a cold tier has room for.
uint32_t SegmentLimitOf(const TierOptions& tier);

enum class PinKind : uint8_t { kLease, kJob };

/// The slots of one class on a host tier: who goes first, who waits for one.
struct SlotQueue {
  std::unique_ptr<EvictionPolicy> order;  ///< present copies without a lease
  std::deque<TransferId> waiting;
  uint32_t frees_coming = 0;     ///< demotions under way, each frees a slot
  uint32_t arenas_coming = 0;    ///< being created
  uint32_t slots_coming = 0;     ///< in those
  uint32_t since_rebalance = 0;  ///< evictions since another class's arenas were last looked at
};

/// One level of the ladder: the allocator of its medium and the order of its blocks.
struct Tier {
  TierId id;
  TierOptions options;
  TierMetrics* metrics = nullptr;
  std::array<uint64_t, kPrecisions> blocks{};
  uint64_t fp16_bytes = 0;  ///< what those would take at 16 bits a number
  uint32_t moves_in_flight =
      0;  ///< to or from here, with a worker or the committer: copies that cannot leave yet
  uint32_t demotions_in_flight = 0;
  uint64_t leaving_bytes = 0;  ///< of those demotions
  TimePoint demote_after{};    ///< background demotions pause after one that failed
  bool demoting = false;       ///< between the watermarks, on the way down

  // Tiers with arenas.
  std::unique_ptr<ArenaAllocator> arenas;
  std::map<SlotClass, SlotQueue> classes;
  std::vector<ArenaId> draining;
  uint64_t largest_slot_bytes = 0;  ///< of its classes
  TimePoint create_arenas_after{};  ///< the system gave no memory lately

  // Cold tiers.
  std::unique_ptr<SegmentAllocator> segments;
  std::unique_ptr<EvictionPolicy> order;
  std::deque<TransferId> waiting;
  std::optional<TenantId> tenant;                        ///< whose blocks alone it takes; none: anybody's
  std::unordered_map<uint32_t, uint32_t> leased_copies;  ///< by segment; that many cannot leave it
  std::vector<ColdRecord> to_erase;                      ///< places given up since the last erase job
  TailPool tails;
  Circuit circuit;  ///< of writes: a full disk can still be read
  Circuit reads{kReadFailuresToOpen};
  JobLane<Job> moves;
  JobLane<ColdJob> commits;
  AdmissionPolicy admission{AdmissionOptions{}};
  uint32_t judged = 0;      ///< by frequency
  uint32_t least_uses = 0;  ///< as last looked
  uint32_t recycles_in_flight = 0;
  uint32_t rewrites_in_flight = 0;
  uint64_t rewriting_bytes = 0;              ///< of their places, which no copy has yet
  std::optional<uint32_t> draining_segment;  ///< its blocks move to a lower tier, then it is recycled
  struct Scrub {
    uint32_t next_row = 0;
    bool in_flight = false;
    TimePoint next_at{};
    TimePoint pass_began{};
    uint64_t pass_blocks = 0;
  } scrub;  ///< the background check
  /// Erase and recycle jobs; the tier's committer does them in the order given.
  uint64_t forgets_ordered = 0, forgets_done = 0, forgets_failed = 0;
  TimePoint grow_after{};  ///< the disk was full lately: no new segment files until then

  bool lost = false;                     ///< its GPU is gone for good, and all that stood there
  uint32_t lost_row = 0, lost_rows = 0;  ///< of the table: next to be told so, and how many are

  /// Its blocks stand in slots of arenas; else in records of segments, and the tier is cold.
  bool has_slots() const { return arenas != nullptr; }
  bool cold() const { return arenas == nullptr; }
  /// Clients map its arenas: what they read stands here, or on a cold tier that they map.
  bool host() const { return options.kind == MediumKind::kHost; }
  uint64_t used_bytes() const { return has_slots() ? arenas->used_bytes() : segments->live_bytes(); }
  bool TakesBlocksOf(TenantId who) const { return !tenant || *tenant == who; }
};

/// The copies of all blocks: their states, pins and places. The only code that changes them, so that bytes,
/// blocks and orders stay in step. Decides nothing. Threads: single-owner.
class Ladder {
 public:
  /// `tiers` are valid options (Engine::Make checks).
  Ladder(const std::vector<TierOptions>& tiers, BlockTable& table, ModelTable& models, Metrics& metrics);

  std::vector<Tier>& tiers() { return tiers_; }
  const std::vector<Tier>& tiers() const { return tiers_; }
  Tier& at(TierId id) { return tiers_[id.value]; }
  const Tier& at(TierId id) const { return tiers_[id.value]; }

  /// absent -> writing, without a place.
  void BeginWrite(EntryId id, TierId tier, CodecId codec, TransferId transfer);
  /// The transfer that writes a copy; 0: none does.
  TransferId WriterOf(EntryId id, TierId tier) const;
  /// Takes a place of at least `image_bytes` for a writing copy. False when the tier has none at the moment.
  bool TakePlace(EntryId id, TierId tier, uint64_t image_bytes);
  /// Takes a place for a tail of a writing copy, beside its own. False when the tier has none.
  bool TakeTail(EntryId id, TierId tier, ColdPart part, uint64_t tail_bytes);
  /// Gives the places of a writing copy back; the copy stays writing.
  void ReturnPlace(EntryId id, TierId tier);
  /// writing -> present: from now on visible. `since`: Copy::since.
  void Publish(EntryId id, TierId tier, const MoveOutcome& outcome, uint32_t since);
  /// writing -> absent.
  void AbandonWrite(EntryId id, TierId tier);
  /// present -> freeing, and absent as soon as nobody reads it.
  void Drop(EntryId id, TierId tier);
  /// Drop of a copy whose whole segment is about to be recycled: no erase of its own.
  void DropWithSegment(EntryId id, TierId tier);
  /// How a record leaves the disk: marked dead by itself, or with its segment, which is about to be recycled.
  enum class Erasing : uint8_t { kAlone, kWithSegment };
  /// A present copy falls to the rung without this tail (and those that need it).
  void DropTail(EntryId id, TierId tier, ColdPart part, Erasing erasing);
  /// absent -> present, at start.
  void Recover(EntryId id, const RecoveredBlock& record);

  /// A present copy of a cold tier stands at `to` from now on; its old record is given up. Nobody may read
  /// that.
  void Relocate(EntryId id, TierId tier, const Place& to);
  /// A place of a cold tier, of no copy, that may have been written to.
  void GiveUpPlace(EntryId id, TierId tier, const Place& place);

  void Pin(EntryId id, TierId tier, PinKind kind);
  void Unpin(EntryId id, TierId tier, PinKind kind);
  /// Most recently used, on every tier that holds it.
  void Touch(EntryId id);

  /// The slot class of an image of `image_bytes` of this block.
  SlotClass ClassOf(const Entry& entry, CodecId codec, uint64_t image_bytes) const;
  SlotQueue& QueueOf(Tier& tier, const SlotClass& slot_class);
  /// The record of the copy's base.
  ColdRecord RecordOf(const Entry& entry, TierId tier) const;
  /// Where a copy stands; bytes is 0 where it has no place.
  Place PlaceOf(const Copy& copy) const;
  Place TailPlace(EntryId id, TierId tier, ColdPart part) const;
  TailPlaces TailsOf(EntryId id, TierId tier) const;
  /// Bytes that its tails take.
  uint64_t TailBytesOf(EntryId id, const Tier& tier) const;
  /// Image bytes of a copy read as `rung`, at most its own.
  uint64_t RungBytes(const Entry& entry, TierId tier, const Codec& rung) const;
  /// Relative errors of K and V of what a reader gets.
  std::pair<float, float> ErrorsOf(EntryId id, TierId tier) const;
  /// Uses of other blocks since this one was used last.
  uint64_t UsesSince(const Entry& entry) const { return uses_ - entry.last_use; }

  void PublishGauges() const;
  void CheckInvariants() const;

 private:
  EvictionPolicy& OrderOf(const Entry& entry, Tier& tier);
  static void SetPlace(Copy& copy, const Place& place, const Tier& tier);
  void FreePlace(EntryId id, Tier& tier);
  void FreeTail(EntryId id, Tier& tier, ColdPart part, Erasing erasing);
  void FreeTails(EntryId id, Tier& tier);
  void SetTail(EntryId id, Tier& tier, const Place& place, float error);
  CodecId RungWithTails(EntryId id, const Tier& tier) const;
  void PublishTails(EntryId id, Tier& tier, const MoveOutcome& outcome);
  void RecoverTails(EntryId id, Tier& tier, const RecoveredBlock& record);
  void Hide(EntryId id, Tier& tier);
  void CountPresent(EntryId id, Tier& tier);
  uint64_t Fp16Bytes(const Entry& entry) const;
  uint64_t CheckTails(EntryId id, const Tier& tier, std::array<uint64_t, kColdParts>& parts) const;
  void EnterOrder(EntryId id, Tier& tier);
  void Settle(EntryId id, Tier& tier);

  BlockTable& table_;
  ModelTable& models_;
  std::vector<Tier> tiers_;
  absl::flat_hash_map<std::pair<uint32_t, uint8_t>, TransferId> writers_;  ///< by row and tier
  uint64_t uses_ = 0;
};

}  // namespace kvtier
