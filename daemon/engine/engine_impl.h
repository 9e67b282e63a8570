#pragma once

#include <atomic>
#include <deque>
#include <memory>
#include <optional>
#include <set>
#include <unordered_map>

#include "daemon/engine/engine.h"
#include "daemon/engine/ghost_list.h"
#include "daemon/engine/ladder.h"
#include "daemon/engine/operations.h"
#include "daemon/policy/distinct_counter.h"
#include "daemon/policy/frequency_sketch.h"

namespace kvtier {

// Bounds of what the engine holds at once; beyond them a request is refused with kResourceExhausted.
inline constexpr size_t kMaxTransfers = 4096;   ///< blocks under way or waiting for space
inline constexpr size_t kMaxOperations = 8192;  ///< requests that wait for something
inline constexpr size_t kMaxTicketsPerSession = 1024;
inline constexpr size_t kDoneTicketsPerSession = 256;  ///< kept for a late WaitTicket; the oldest goes
inline constexpr size_t kMaxWaitsPerTicket = 8;
inline constexpr uint32_t kMaxDemotionsPerTier = 32;
/// Of blocks that are smaller than usual: so many, or as many as these bytes hold. One sync makes a group of
/// them durable, and a small group is not worth it.
inline constexpr uint32_t kMaxSmallDemotionsPerTier = 256;
inline constexpr uint64_t kMaxSmallDemotionBytes = uint64_t{16} << 20;
inline constexpr uint32_t kSweepJobs = 16;           ///< moves or verifies in flight of one sweep
inline constexpr uint32_t kSweepRowsPerStep = 4096;  ///< rows looked at
inline constexpr size_t kEraseBatch = 512;
inline constexpr uint32_t kRebalanceEvery = 32;  ///< evictions of a class between looks at the other classes
inline constexpr int kPumpRounds = 64;           ///< of one step; more is left to the next
/// Out to one cold tier's workers at once: few, since those of a device that hangs cannot be taken back.
inline constexpr uint32_t kMaxDeviceMoves = 32;
/// After a disk was full, until a new segment file is tried again.
inline constexpr Duration kGrowPause = std::chrono::seconds(1);
/// A device that lets a job wait for so long is not counted on.
inline constexpr Duration kDevicePatience = std::chrono::seconds(2);
inline constexpr Duration kBackgroundDeadline =
    std::chrono::seconds(10);  ///< for space, of moves nobody waits for
/// A retired arena that sessions have not unmapped after this long is not worth waiting for.
inline constexpr Duration kUnmapPatience = std::chrono::milliseconds(50);

/// Engine::Make's engine. One class, because everything here shares the table and has one owner; its methods
/// are in files by concern.
class EngineImpl final : public Engine {
 public:
  EngineImpl(EngineOptions options, Deps deps);
  void Recover(std::vector<ColdRecovery> recovery);

  TimePoint Step(TimePoint now) override;
  void CheckInvariants() const override;
  uint64_t Outstanding() const override;
  bool draining() const override { return draining_.load(std::memory_order_relaxed); }

 private:
  // engine_impl.cc: steps, queues, timers
  void TakeCompletions();
  void TakeCommands();
  void FireTimers();
  void FireTimer(const Timer& timer);
  void OnCompletion(Completion completion);
  void OnJobDone(const PendingJob& job, Completion completion);
  JobId Register(PendingJob pending);
  JobLane<Job>& LaneOf(JobId id);
  void Enqueue(const PendingJob& pending, decltype(Job::work) work);
  /// Ahead of what nobody waits for.
  void EnqueueUrgent(const PendingJob& pending, decltype(Job::work) work);
  void EnqueueCold(const PendingJob& pending, decltype(ColdJob::work) work);
  void DispatchJobs();
  void PublishGauges();

  // devices.cc: tiers whose device answers late, badly or not at all
  std::optional<TierId> DeviceOf(const PendingJob& pending) const;
  void NoteAnswer(const PendingJob& pending, JobId id);
  void WatchDevices();
  void WatchDevice(Tier& tier);
  void OnOverdue(JobId id);
  void Shed(Tier& tier);
  TimePoint NextDeviceLook() const;
  void FailAllWaiting(Tier& tier);
  void OnDeviceLost(Tier& tier);
  bool AdvanceLosses();
  bool MakesDoWithLess(Transfer& transfer, const Status& status);
  void NoteFiles(const Transfer& transfer);

  // One handler per command. True: done; false: out of budget, to be called again with the same command.
  bool Handle(OpenSession& c);
  bool Handle(CloseSession& c);
  bool Handle(StoreMapped& c);
  bool Handle(ArenaUnmapped& c);
  bool Handle(RegisterModel& c);
  bool Handle(Lookup& c);
  bool Handle(Acquire& c);
  bool Handle(Release& c);
  bool Handle(Renew& c);
  bool Handle(Put& c);
  bool Handle(WaitTicket& c);
  bool Handle(Prefetch& c);
  bool Handle(Cancel& c);
  bool Handle(Remove& c);
  bool Handle(Stats& c);
  bool Handle(ListModels& c);
  bool Handle(ListBlocks& c);
  bool Handle(AdminDemote& c);
  bool Handle(AdminEvict& c);
  bool Handle(AdminVerify& c);
  bool Handle(AdminDrain& c);

  // sessions.cc
  Session* FindSession(SessionId id);
  Status CheckModel(const Session& session, ModelId model) const;
  void PersistModel(ModelId model);
  void OnPutModelDone(ModelId model, TierId tier, const Status& status);
  Ticket* OpenTicket(Session& session, TicketId id, OpId op);
  Ticket* FindTicket(SessionId session, TicketId ticket);
  void CloseTicket(SessionId session, TicketId ticket, PutReply result);
  void ExpireTicketWait(SessionId session, uint64_t wait);

  // reads.cc
  EntryId FindReadable(const Session& session, ModelId model, const Key& key, Code& why);
  void CollectTails(const Session& session, ModelId model, const Key& parent, std::vector<EntryId>& out);
  void CountMiss(const Session& session, const Key& key);

  // acquires.cc, leases.cc
  Status CheckAcquire(const Acquire& c);
  AcquireOp& StartAcquire(Acquire& c);
  void CloseAcquireWalk(AcquireOp& op, Session& session, const Acquire& c);
  bool AddAcquireItem(AcquireOp& op, Session& session, EntryId id, std::vector<AcquireOp::Item>& items,
                      Code& why);
  /// Whether the session reads the copy where it stands, on a cold tier, without a promotion.
  bool ReadsInPlace(const Session& session, const Entry& entry, TierId cold) const;
  bool StartAcquirePromotion(const AcquireOp& op, const AcquireOp::Item& item, Waiter waiter);
  Precision MostToRead(const AcquireOp& op, const Entry& entry, TierId from) const;
  void DropLesserCopies(EntryId id, Precision least);
  void ReadAhead(const Session& session, const Acquire& c, size_t from);
  std::optional<TierId> PromotionTarget(const Entry& entry, TierId from) const;
  void OnAcquireTransfer(const Waiter& waiter, const Transfer& transfer, const Status& status);
  void CutAcquire(AcquireOp& op, Session& session, size_t at, Code why);
  void AdvanceAcquire(OpId id);
  void DropTail(AcquireOp& op, Session& session, AcquireOp::Item& tail);
  void FinishAcquire(OpId id);
  void FailAcquire(OpId id, Code code);
  Place PlaceForClients(const Copy& copy) const;
  AcquiredBlock DescribeAcquired(const AcquireOp::Item& item) const;
  void CountAcquire(const AcquireOp& op);
  Lease* FindLease(SessionId session, LeaseId lease);
  /// Beside what the session has pinned and what it has been `promised`.
  bool FitsLeaseShare(const Session& session, TierId tier, uint64_t bytes, uint64_t promised = 0) const;
  void PinForLease(Session& session, Lease& lease, EntryId entry, TierId tier);
  void UnpinForLease(Session& session, Lease& lease, EntryId entry, TierId tier);
  void EndLease(Session& session, LeaseId id);
  void ExpireLease(SessionId session, LeaseId lease);

  // puts.cc
  Status CheckPut(const Put& c);
  void StartPut(Put& c);
  Status CheckPutBlock(const Put& c, const Model& model, const PutBlock& block) const;
  void AddPutBlock(PutOp& op, Put& c, uint32_t index);
  void OfferPresent(PutOp& op, uint32_t index, EntryId id, const Put& c, const PutBlock& block);
  void StorePutBlock(PutOp& op, uint32_t index, uint32_t first_tier);
  void OnPutTransfer(const Waiter& waiter, const Transfer& transfer, const Status& status);
  void SettlePut(OpId op, uint32_t index, PutOutcome outcome, Counter& counter);
  void EndPut(OpId op, uint32_t index, Code code, Counter& counter);  ///< without a block to show
  void EndStoring(PutOp::Block& block, const PutOutcome& outcome);
  void OnStored(EntryId id, const std::vector<Key>& supersedes);
  void RemoveSuperseded(EntryId by, const std::vector<Key>& keys);
  void StartPersist(PutOp& op, uint32_t index, EntryId id);
  void SettleDurable(OpId op, uint32_t index, Code code);
  void AdvancePut(OpId id);
  void TouchHeadLast(const PutOp& op);
  void ExpirePut(OpId id);

  // transfers.cc
  struct TransferRequest {
    EntryId entry;
    Purpose purpose;
    std::optional<TierId> from;
    TierId to;
    TimePoint deadline;
    std::optional<StagedSource> staged;
    std::optional<Waiter> waiter;
    bool on_demand = false;
    Precision least = Precision::kNone;
    /// Of a promotion: tails above are not read.
    Precision most = Precision::kBits16;
  };
  /// 0 when there is no room for more transfers. Never calls back before it returns.
  TransferId StartTransfer(TransferRequest request);
  void JoinTransfer(TransferId id, const Waiter& waiter, TimePoint deadline);
  void CountInFlight(const Transfer& transfer, int32_t by);
  void StopCountingDemotion(const Transfer& transfer);
  void SeekSpace(Transfer& transfer);
  void OrderMove(Transfer& transfer);
  void OnMoveDone(TransferId id, Completion completion);
  void OnCommitDone(TransferId id, const Completion& completion);
  void OnMoveFailed(Transfer& transfer, const Status& status, bool source_failed);
  void SeekAnotherPlace(Transfer& transfer);
  void FinishTransfer(TransferId id, Status status);
  void AbortSeeking(TransferId id, Code code);
  void FinishDemotion(const Transfer& transfer, const Status& status);
  void CountMove(const Transfer& transfer, const Status& status);
  void Notify(const Waiter& waiter, const Transfer& transfer, const Status& status);
  struct Target {
    const Codec* codec;
    uint64_t image_bytes;  ///< when all layers can be encoded
    std::array<uint64_t, kColdTails.size()> tail_bytes{};
  };
  Target TargetFor(const Entry& entry, std::optional<TierId> from, const Tier& to, Purpose purpose,
                   Precision least, Precision most = Precision::kBits16) const;
  bool CouldTake(const Tier& to, const Entry& entry, std::optional<TierId> from, Purpose purpose) const;
  /// The highest tier that keeps what is durable.
  /// The first for blocks of the tenant; without one, of anybody's.
  std::optional<TierId> PersistentTier(std::optional<TenantId> tenant) const;
  bool HasColdTier() const;
  TierId BestSource(const Entry& entry) const;

  // transfer_tails.cc
  bool KeepsTails(const Entry& entry, CodecId source, const Tier& to, Purpose purpose) const;
  static std::array<uint64_t, kColdTails.size()> TailBytesFor(const BlockShape& shape, CodecId source,
                                                              const Tier& to);
  TailPlaces TailsToRead(const Transfer& transfer) const;
  std::vector<ColdRecord> TailsToCommit(const Transfer& transfer, const ColdRecord& base);
  void LoseTailsNotCommitted(Transfer& transfer, const Completion& completion);
  void DropBadTails(const Transfer& transfer);
  bool DropBadTail(EntryId id, TierId tier, const Place& place, Code code);

  // space_arenas.cc, space_cold.cc, demotion.cc
  enum class Room : uint8_t { kFreed, kComing, kBusy, kNone };
  bool CameForReader(const Entry& entry, TierId from) const;
  void Pump();
  void PumpArenas(Tier& tier);
  void PumpClass(Tier& tier, const SlotClass& slot_class, SlotQueue& queue);
  bool CreateArena(Tier& tier, const SlotClass& slot_class, SlotQueue& queue);
  void OrderArenaAhead(Tier& tier, const SlotClass& slot_class);
  Room MakeRoom(Tier& tier, const SlotClass& slot_class, SlotQueue& queue);
  /// Retires arenas of other classes that hold nothing, before any block has to leave. Whether memory for one
  /// slot is coming.
  bool ReclaimEmpty(Tier& tier, const SlotClass& for_class);
  bool Reclaim(Tier& tier, const SlotClass& for_class);
  void Rebalance(Tier& tier, const SlotClass& for_class, EntryId own_victim);
  std::optional<ArenaId> LeastValuableArena(const Tier& tier, const SlotClass& not_of,
                                            uint64_t used_before) const;
  void RetireArena(Tier& tier, ArenaId id);
  void ReleaseRetired(ArenaId id);
  void OnArenaUnmapped(SessionId session, ArenaId arena);
  void AdvanceDrains(Tier& tier);
  void OnArenaCreated(const PendingJob& job, const Status& status);
  void OnArenaDestroyed(const PendingJob& job);
  /// Segments to keep clean ahead of the writers.
  static uint64_t SparesOf(const Tier& tier);
  void PumpCold(Tier& tier);
  enum class Places : uint8_t { kTaken, kNoneForBase, kNoneForTail };
  Places TakeColdPlaces(Tier& tier, Transfer& transfer);
  bool TailRoomIsComing(Tier& tier, const Transfer& transfer);
  void GiveTailsUp(Tier& tier, Transfer& transfer, ColdPart from);
  bool GoesFor(const Tier& tier, uint32_t segment, ColdPart needed_by) const;
  std::optional<uint32_t> ColdVictim(const Tier& tier, ColdPart needed_by) const;
  bool RecycleSegment(Tier& tier, ColdPart needed_by);
  bool IsLast(const Tier& tier) const { return tier.id.value + 1u == ladder_.tiers().size(); }
  bool DrainSegment(Tier& tier);
  bool StandsIn(const Tier& tier, uint32_t segment, const SegmentAllocator::Record& record) const;
  void OrderRecycle(Tier& tier, uint32_t segment);
  void OnRecycled(const PendingJob& job, const Status& status);
  void FlushErases(Tier& tier);
  void FailWaiting(std::deque<TransferId>& waiting);
  bool SegmentMayGo(const Tier& tier, uint32_t segment) const;
  void DropSegment(Tier& tier, uint32_t segment);
  void DemoteBetweenWatermarks(Tier& tier);
  double Occupancy(const Tier& tier) const;
  std::optional<EntryId> LeastUsed(const Tier& tier) const;
  bool MayLeave(EntryId id, TierId tier) const;
  /// Whether as much leaves the tier as may at once, or a `part`-th of it.
  static bool IsBusyDemoting(const Tier& tier, uint32_t part = 1);
  Room MoveAway(EntryId id, TierId tier, uint32_t first_lower, bool on_demand, std::optional<Waiter> waiter);

  // admission.cc
  static std::unique_ptr<FrequencySketch> MakeSketch(const EngineOptions& options);
  void CountUse(const Entry& entry);
  /// Lately; 0 where nobody counts.
  uint32_t UsesOf(const Entry& entry) const;
  /// Uses that a block needs to be worth the room that is made for it.
  uint32_t LeastUsesFor(Tier& to);
  enum class DemotionFor : uint8_t { kRoom, kOperator };
  bool Admits(Tier& to, const Entry& entry, TierId from, DemotionFor whom);
  void CountWritten(const Transfer& transfer);

  // rewrites.cc
  std::vector<EntryId> WorthRewriting(const Tier& tier, uint32_t segment) const;
  /// Whether any are under way now.
  bool StartRewrites(Tier& tier, uint32_t segment);
  void OnRewritten(const PendingJob& job, const Completion& completion);
  void OnRewriteCommitted(const PendingJob& job, const Status& status);
  /// Whether all of the tier are done.
  bool AdvanceRewrites(Tier& tier);
  void EndRewrite(OpId op);

  // removal.cc
  enum class Reason : uint8_t { kCapacity, kRemoved, kCorrupt, kSuperseded, kExpired };
  void CountDeparture(EntryId id, TierId tier, Reason reason);
  void EvictCopy(EntryId id, TierId tier, Reason reason);
  void RemoveBlock(EntryId id, Reason reason);
  void Quarantine(EntryId id, TierId tier);
  void LeaveTable(EntryId id, TierId tier, Reason reason);
  void ForgetIfGone(EntryId id);
  void RemoveFor(Removal& removal, EntryId id);
  bool OnColdTier(EntryId id) const;
  bool ForgetsPending() const;
  uint64_t ForgetsFailed() const;
  void HoldRemoval(Removal removal, TimePoint deadline, Reply<uint64_t> reply);
  void AdvanceRemovals();
  bool AdvanceRemoval(RemovalOp& op);

  // invariants.cc
  void CheckPins() const;
  void CheckQueues() const;

  // recovery.cc
  void RecoverModel(const Tier& tier, const ModelRecord& record);
  void RecoverBlock(Tier& tier, const RecoveredBlock& record);
  /// The first who read after a start would wait for the memory that blocks come up to: it is made now, by
  /// the workers, an arena for each size of slot, the commonest first.
  void OrderArenasForReaders();

  // prefetch.cc
  Status CheckPrefetch(const Prefetch& c);
  void PrefetchBlock(PrefetchOp& op, EntryId id, TierId target);
  void OnPrefetchTransfer(const Waiter& waiter, const Status& status);
  void FinishPrefetch(OpId id);

  // admin.cc, sweeps.cc
  bool StartTierSweep(SweepOp::Kind kind, TierId tier, uint64_t count, Reply<uint64_t>& reply);
  SweepOp* StartSweep(SweepOp::Kind kind);
  bool AdvanceSweeps();
  bool SweepRows(SweepOp& op);
  bool SweepOrder(SweepOp& op);
  void SweepRow(SweepOp& op, EntryId id);
  void VerifyCopy(TierId tier, EntryId id, OpId op);
  void VerifyDamaged(const Lease& lease, const std::vector<Key>& damaged);
  void OnVerifyDone(const PendingJob& job, const Completion& completion);
  void OnSweepTransfer(const Waiter& waiter, const Status& status);
  void FinishSweep(SweepOp& op, Code code);

  // scrub.cc
  void AdvanceScrubs();
  void AdvanceScrub(Tier& tier);
  std::optional<EntryId> NextToScrub(Tier& tier);
  void OnScrubbed(const PendingJob& job);
  BlockStats DescribeBlock(EntryId id) const;

  template <typename T>
  static void Fail(Reply<T>& reply, Code code, std::string text) {
    if (reply) reply(Status(code, std::move(text)));
  }

  EngineOptions options_;
  Deps deps_;
  Metrics& metrics_;
  BlockTable table_;
  ModelTable models_;
  Ladder ladder_;
  GhostList ghosts_;
  std::unique_ptr<FrequencySketch> sketch_;  ///< null where no tier asks
  DistinctCounter distinct_;                 ///< keys that lookups asked for, of all tenants
  TimerQueue timers_;
  TimePoint now_{};
  std::optional<TimePoint> began_;  ///< the first step
  /// Of the engine's time, in tenths of a second. Ages alone are taken from it: it may wrap.
  uint32_t Tenths() const;

  std::unordered_map<SessionId, Session> sessions_;
  std::unordered_map<TransferId, Transfer> transfers_;
  std::unordered_map<OpId, PutOp> puts_;
  std::unordered_map<EntryId, Waiter> storing_;  ///< the put block that stores an entry
  std::unordered_map<OpId, AcquireOp> acquires_;
  std::unordered_map<OpId, PrefetchOp> prefetches_;
  std::map<OpId, SweepOp> sweeps_;
  std::map<OpId, RemovalOp> removals_;
  std::map<OpId, Rewrite> rewrites_;
  struct RetiredArena {
    TierId tier;
    std::set<SessionId> mapped_by;
    TimePoint since;
    bool destroying = false;
  };
  bool ComesSoon(const RetiredArena& retired) const;
  /// Not planned, or retired and soon gone.
  uint64_t ComingBytes(const Tier& tier) const;
  std::map<ArenaId, RetiredArena> retired_;

  std::unordered_map<JobId, PendingJob> jobs_;  ///< queued here or in flight
  JobLane<Job> host_jobs_;

  std::optional<Command> current_;  ///< a long command that is being worked on
  size_t cursor_ = 0;               ///< next key of it
  OpId current_op_{};
  LookupReply lookup_;
  Removal removing_;
  uint32_t budget_ = 0;  ///< keys left in this step

  uint64_t changes_ = 0;  ///< that may let somebody who waits for space go on
  bool pump_again_ = false;
  uint64_t next_id_ = 1;            ///< of jobs, transfers, operations and waits
  uint32_t damaged_in_flight_ = 0;  ///< checks of copies that clients found damaged
  uint32_t next_arena_ = 1;
  uint32_t clears_ = 0;                ///< asked for
  std::atomic<bool> draining_{false};  ///< takes no puts: about to stop
};

}  // namespace kvtier
