#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "tiers/cold_scan.h"
#include "tiers/cold_store.h"
#include "tiers/cxl_mapping.h"
#include "tiers/cxl_models.h"

namespace kvtier {

struct CxlStoreOptions {
  TierId tier;
  uint64_t capacity_bytes = 0;                  ///< of the memory; a multiple of 4096
  uint64_t segment_bytes = uint64_t{64} << 20;  ///< multiple of 4096
  /// Of a store that is made now: the tenant whose blocks alone it is for, all its life, so that its clients
  /// may map the memory. Empty: it is for anybody's. One that is there stays what it is.
  std::string tenant = {};
};

/// Maps `target` for a store with these options. Errors: as CxlMapping::Make; kFailedPrecondition also for
/// what holds something else, another version or segment size; kDataLoss (both superblocks are damaged).
Result<std::unique_ptr<CxlMapping>> MapForCxlStore(const CxlStoreOptions& options, const CxlTarget& target);

/// A cold store in memory: the records and segments of every cold store, one after the other, without an
/// index. At start they are scanned, after a clean stop by their headers alone (tiers/FORMAT.md). Reads
/// return the stored bytes themselves. Owns: the memory, and with it the lock of file or device. Threads: as
/// ColdStore. Errors: a page that the device cannot give is zeros to readers, so a checksum fails; from then
/// on every write is kUnavailable. A device that hangs hangs the thread: a load has no deadline.
class CxlStore final : public ColdStore {
 public:
  /// Makes blank memory into a store. Errors: as ReadCxlStart, kInvalidArgument, kUnavailable.
  static Result<std::unique_ptr<CxlStore>> Make(const CxlStoreOptions& options,
                                                std::unique_ptr<CxlMemory> memory);
  ~CxlStore() override;

  Result<std::span<const std::byte>> Read(const Place& place, BlockIo& io, AlignedBuffer& bounce) override;
  Result<std::span<std::byte>> BeginWrite(const Place& place, AlignedBuffer& bounce) override;
  Status FinishWrite(const Place& place, BlockIo& io, std::span<std::byte> built, uint64_t image_bytes,
                     const RecordMeta& meta) override;

  Result<ColdRecovery> Recover() override;
  Status PutModel(const ModelRecord& model) override;
  Status Commit(std::span<const ColdCommit> items, BlockIo& io) override;
  Status Erase(std::span<const ColdCommit> items, BlockIo& io) override;
  Status RecycleSegment(uint32_t segment, uint64_t new_sequence, BlockIo& io) override;
  bool direct_io() const override { return false; }
  bool persistent() const override { return memory_->persistence() != CxlPersistence::kNone; }
  uint64_t allocated_bytes() const override { return memory_->span().size(); }

  /// Whose blocks alone it is for; empty: anybody's. Nothing else has ever stood in the memory of such a
  /// store, but for what its maker zeroed.
  std::string_view tenant() const { return TenantOf(superblock_); }
  const StoreUuid& uuid() const { return superblock_.uuid; }
  /// Whether the device lost bytes: who else maps it would be ended by touching them.
  bool lost() const { return memory_->lost(); }

 private:
  struct Segment {
    bool present = false;
    bool damaged = false;  ///< the header; what stands behind it may have any sequence
    uint64_t sequence = 0;
  };

  CxlStore(const CxlStoreOptions& options, std::unique_ptr<CxlMemory> memory,
           const CxlSuperblock& superblock);
  uint64_t OffsetOf(const Place& place) const;
  std::span<const std::byte> SegmentSpan(uint32_t number) const;
  Status CheckUse(const Place& place) const;
  Status UseOrStart(const Place& place);
  void WriteSegmentHeader(uint32_t number, uint64_t sequence);
  Status PersistRecords(std::span<const ColdRecord> records);
  Status MarkDead(std::span<const ColdRecord> records);
  Status WriteSuperblock(CxlSuperblock superblock);
  Status ZeroStale();
  Status Failed(Status status);

  // cxl_recovery.cc
  Status AdoptSegments(ColdRecovery& out);
  Status AdoptSegment(uint32_t number, ColdRecovery& out);
  uint64_t SequenceByRecords(uint32_t number) const;
  /// `damaged` gets what is there and cannot be used.
  std::vector<ColdRecord> ScanSegments(ScanDepth depth, ColdRecovery& out, std::vector<ColdRecord>& damaged);
  Status MergeCopies(std::vector<ColdRecord> found, ColdRecovery& out);

  const CxlStoreOptions options_;
  const uint32_t segment_limit_;
  const std::unique_ptr<CxlMemory> memory_;
  CxlSuperblock superblock_;
  CxlModels models_;
  std::atomic<bool> write_failed_{false};  ///< then the next start scans everything
  bool recovered_ = false;

  mutable std::mutex mutex_;       ///< of segments_; held for stores to memory at most
  std::vector<Segment> segments_;  ///< by number
};

}  // namespace kvtier
