#include "tiers/cxl_store.h"

#include <sys/random.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <map>

#include "tiers/cold_records.h"

namespace kvtier {

namespace {

constexpr uint64_t kZeroBytes = uint64_t{64} << 20;  ///< at once

std::span<const std::byte> BytesOf(const auto& value) {
  return std::as_bytes(std::span(&value, 1));
}

Status CheckOptions(const CxlStoreOptions& options) {
  if (options.capacity_bytes % kColdBlockBytes != 0) {
    return Status(Code::kInvalidArgument, "capacity must be a multiple of 4KiB");
  }
  if (options.segment_bytes % kColdBlockBytes != 0 || options.segment_bytes < 2 * kColdBlockBytes) {
    return Status(Code::kInvalidArgument, "segment_bytes " + std::to_string(options.segment_bytes) +
                                              " is not a multiple of 4096 above 4096");
  }
  if (CxlSegmentLimit(options.capacity_bytes, options.segment_bytes) == 0) {
    return Status(Code::kInvalidArgument, "a capacity of " + std::to_string(options.capacity_bytes) +
                                              " bytes has no room for one segment of " +
                                              std::to_string(options.segment_bytes));
  }
  if (options.tenant.size() > kMaxCxlTenantBytes) {
    return Status(Code::kInvalidArgument,
                  "the name of the tenant is longer than " + std::to_string(kMaxCxlTenantBytes) + " bytes");
  }
  return Status::Ok();
}

Result<StoreUuid> NewUuid() {
  StoreUuid uuid;
  if (::getrandom(uuid.data(), uuid.size(), 0) != static_cast<ssize_t>(uuid.size())) {
    return StatusFromErrno(errno, "random bytes");
  }
  return uuid;
}

}  // namespace

CxlStore::CxlStore(const CxlStoreOptions& options, std::unique_ptr<CxlMemory> memory,
                   const CxlSuperblock& superblock)
    : options_(options),
      segment_limit_(CxlSegmentLimit(options.capacity_bytes, options.segment_bytes)),
      memory_(std::move(memory)),
      superblock_(superblock),
      models_(*memory_, superblock.uuid),
      segments_(segment_limit_) {}

Result<std::unique_ptr<CxlMapping>> MapForCxlStore(const CxlStoreOptions& options, const CxlTarget& target) {
  KVTIER_TRY(CheckOptions(options));
  return CxlMapping::Make(
      {.target = target, .bytes = options.capacity_bytes, .accept = [&](std::span<const std::byte> start) {
         return ReadCxlStart(start, options.segment_bytes).status();
       }});
}

Result<std::unique_ptr<CxlStore>> CxlStore::Make(const CxlStoreOptions& options,
                                                 std::unique_ptr<CxlMemory> memory) {
  KVTIER_TRY(CheckOptions(options));
  KVTIER_CHECK(memory->span().size() == options.capacity_bytes);
  const bool forgets = memory->persistence() == CxlPersistence::kNone;
  Result<CxlStart> start = ReadCxlStart(memory->span().first(CxlMapping::kStartBytes), options.segment_bytes);
  // Whatever memory that forgets was left with is of no use to anybody.
  if (!start.ok() && forgets) start = CxlStart{.blank = true, .superblock = {}};
  if (!start.ok()) return start.status();
  KVTIER_ASSIGN(const StoreUuid uuid, NewUuid());
  const CxlSuperblock superblock =
      start->blank ? MakeCxlSuperblock(uuid, options.segment_bytes, 0, options.tenant) : start->superblock;
  std::unique_ptr<CxlStore> store(new CxlStore(options, std::move(memory), superblock));
  if (start->blank) {
    store->memory_->Zero(0, kCxlMetaBytes);
    KVTIER_TRY(store->memory_->Persist(0, kCxlMetaBytes));
    // Clients will see all of it, and it may have been anybody's.
    if (!options.tenant.empty()) KVTIER_TRY(store->ZeroStale());
  }
  if (start->blank || start->one_damaged) KVTIER_TRY(store->WriteSuperblock(superblock));
  return store;
}

CxlStore::~CxlStore() {
  if (!recovered_ || write_failed_ || memory_->lost()) return;
  CxlSuperblock clean = superblock_;
  clean.clean = 1;
  WriteSuperblock(clean).IgnoreBecause("without the mark the next start checks everything");
}

/// What stands behind the models.
Status CxlStore::ZeroStale() {
  const uint64_t end = memory_->stale_bytes();
  for (uint64_t offset = kCxlMetaBytes; offset < end; offset += kZeroBytes) {
    const uint64_t part = std::min(kZeroBytes, end - offset);
    memory_->Zero(offset, part);
    KVTIER_TRY(memory_->Persist(offset, part));
  }
  return Status::Ok();
}

Status CxlStore::WriteSuperblock(CxlSuperblock superblock) {
  ++superblock.serial;
  superblock_ = Sealed(superblock);
  for (uint64_t copy = 0; copy < kCxlSuperblocks; ++copy) {
    memory_->Write(copy * kColdBlockBytes, BytesOf(superblock_));
    KVTIER_TRY(memory_->Persist(copy * kColdBlockBytes, sizeof(superblock_)));
  }
  return Status::Ok();
}

uint64_t CxlStore::OffsetOf(const Place& place) const {
  KVTIER_CHECK(place.offset >= kColdSegmentHeaderBytes && place.offset % kColdBlockBytes == 0);
  KVTIER_CHECK(place.bytes >= kColdBlockBytes && place.bytes % kColdBlockBytes == 0);
  KVTIER_CHECK(place.bytes <= options_.segment_bytes && place.offset <= options_.segment_bytes - place.bytes);
  return CxlSegmentOffset(place.container, options_.segment_bytes) + place.offset;
}

std::span<const std::byte> CxlStore::SegmentSpan(uint32_t number) const {
  return memory_->span().subspan(CxlSegmentOffset(number, options_.segment_bytes), options_.segment_bytes);
}

Status CxlStore::CheckUse(const Place& place) const {
  std::lock_guard lock(mutex_);
  if (place.container >= segments_.size() || !segments_[place.container].present) {
    return Status(Code::kDataLoss, "segment " + std::to_string(place.container) + " is not there");
  }
  if (segments_[place.container].sequence != place.epoch) {
    return Status(Code::kStale, "segment " + std::to_string(place.container) + " is in another use");
  }
  return Status::Ok();
}

void CxlStore::WriteSegmentHeader(uint32_t number, uint64_t sequence) {
  const SegmentHeader header = MakeSegmentHeader(superblock_.uuid, number, sequence, options_.segment_bytes);
  memory_->Write(CxlSegmentOffset(number, options_.segment_bytes), BytesOf(header));
  // A client that maps the memory and sees a byte of the new use must see the new sequence.
  std::atomic_thread_fence(std::memory_order_seq_cst);
}

Status CxlStore::UseOrStart(const Place& place) {
  if (place.container >= segment_limit_) {
    return Status(Code::kResourceExhausted, "segment " + std::to_string(place.container) +
                                                " is above the limit of " + std::to_string(segment_limit_));
  }
  {
    std::lock_guard lock(mutex_);
    Segment& segment = segments_[place.container];
    if (!segment.present) {
      WriteSegmentHeader(place.container, place.epoch);
      segment = {.present = true, .damaged = false, .sequence = place.epoch};
    }
  }
  return CheckUse(place);
}

Result<std::span<const std::byte>> CxlStore::Read(const Place& place, BlockIo& /*io*/,
                                                  AlignedBuffer& /*bounce*/) {
  const uint64_t offset = OffsetOf(place);
  KVTIER_TRY(CheckUse(place));
  return ImageOfRecord(superblock_.uuid, place, memory_->span().subspan(offset, place.bytes));
}

Result<std::span<std::byte>> CxlStore::BeginWrite(const Place& place, AlignedBuffer& bounce) {
  OffsetOf(place);
  // Encoders write in small pieces and read back what they wrote: that is for near memory.
  KVTIER_ASSIGN(const std::span<std::byte> memory, bounce.Reserve(place.bytes));
  return memory.first(place.bytes - kColdRecordHeaderBytes);
}

Status CxlStore::FinishWrite(const Place& place, BlockIo& /*io*/, std::span<std::byte> built,
                             uint64_t image_bytes, const RecordMeta& meta) {
  KVTIER_CHECK(recovered_);  // else it would take segments that exist for new ones
  const uint64_t offset = OffsetOf(place);
  KVTIER_CHECK(built.size() >= image_bytes && image_bytes >= kImageHeaderBytes);
  KVTIER_CHECK(ColdRecordBytes(image_bytes) <= place.bytes);
  KVTIER_TRY(UseOrStart(place));
  const auto image = built.first(image_bytes);
  const RecordHeader header = LiveRecordHeader(superblock_.uuid, place, image, meta);
  const uint64_t end = kColdRecordHeaderBytes + image_bytes;
  memory_->Write(offset + kColdRecordHeaderBytes, image);
  memory_->Zero(offset + end, ColdRecordBytes(image_bytes) - end);
  // A step of its own: whoever finds this header finds the whole image behind it.
  memory_->Write(offset, BytesOf(header));
  if (!memory_->lost()) return Status::Ok();
  return Failed(Status(Code::kUnavailable, "a page of the memory is gone"));
}

Status CxlStore::Failed(Status status) {
  if (!status.ok()) write_failed_ = true;
  return status;
}

/// Each segment in one piece, its header included.
Status CxlStore::PersistRecords(std::span<const ColdRecord> records) {
  std::map<uint32_t, uint64_t> ends;
  for (const ColdRecord& record : records) {
    uint64_t& end = ends[record.place.container];
    end = std::max(end, record.place.offset + ColdRecordBytes(record.image_bytes));
  }
  Status first;
  for (const auto& [number, end] : ends) {
    const Status status = memory_->Persist(CxlSegmentOffset(number, options_.segment_bytes), end);
    if (first.ok()) first = status;
  }
  return Failed(first);
}

Status CxlStore::Commit(std::span<const ColdCommit> items, BlockIo& /*io*/) {
  for (const ColdCommit& item : items) KVTIER_TRY(CheckUse(item.place));
  return PersistRecords(items);
}

Status CxlStore::MarkDead(std::span<const ColdRecord> records) {
  std::vector<ColdRecord> marked;
  for (const ColdRecord& record : records) {
    const uint64_t offset = OffsetOf(record.place);
    if (!CheckUse(record.place).ok()) continue;  // recycled: dead already
    const RecordHeader header = MakeRecordHeader(superblock_.uuid, record, RecordState::kDead);
    // Nothing but the header: a client whose lease is over may be reading the image, and only the next use
    // of the segment tells it.
    memory_->Write(offset, BytesOf(header));
    marked.push_back(record);
  }
  return PersistRecords(marked);
}

Status CxlStore::Erase(std::span<const ColdCommit> items, BlockIo& /*io*/) {
  return MarkDead(items);
}

Status CxlStore::RecycleSegment(uint32_t number, uint64_t new_sequence, BlockIo& /*io*/) {
  KVTIER_CHECK(new_sequence > 0);
  bool damaged = false;
  {
    std::lock_guard lock(mutex_);
    if (number >= segments_.size() || !segments_[number].present) {
      return Status(Code::kNotFound, "segment " + std::to_string(number) + " is not there");
    }
    damaged = segments_[number].damaged;
    segments_[number].sequence = new_sequence;
  }
  const uint64_t offset = CxlSegmentOffset(number, options_.segment_bytes);
  // Nobody knows the sequence of what stands there: it could be the new one. The header goes first, as ever.
  if (damaged) {
    memory_->Zero(offset, kColdSegmentHeaderBytes);
    KVTIER_TRY(Failed(memory_->Persist(offset, kColdSegmentHeaderBytes)));
    std::atomic_thread_fence(std::memory_order_seq_cst);
    memory_->Zero(offset, options_.segment_bytes);
    KVTIER_TRY(Failed(memory_->Persist(offset, options_.segment_bytes)));
  }
  WriteSegmentHeader(number, new_sequence);
  KVTIER_TRY(Failed(memory_->Persist(offset, kColdSegmentHeaderBytes)));
  std::lock_guard lock(mutex_);
  segments_[number].damaged = false;
  return Status::Ok();
}

Status CxlStore::PutModel(const ModelRecord& model) {
  KVTIER_CHECK(recovered_);
  return models_.Put(model);
}

}  // namespace kvtier
