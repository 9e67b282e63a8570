#include "tiers/cold_store.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <utility>

#include "tiers/cold_folder.h"
#include "tiers/cold_io.h"
#include "tiers/cold_records.h"
#include "tiers/cold_recovery.h"

namespace kvtier {

namespace {

/// Runs those of the parts that have a request, all at once.
template <typename Part>
void RunRequests(std::span<Part> parts, BlockIo& io) {
  KVTIER_CHECK(parts.size() <= kMaxIoInFlight);
  std::vector<IoRequest> requests;
  for (const Part& part : parts) {
    if (part.device.io.has_value()) requests.push_back(*part.device.io);
  }
  if (requests.empty()) return;
  RunWithTimeout(io, requests).IgnoreBecause("each request has its own status");
  auto request = requests.begin();
  for (Part& part : parts) {
    if (part.device.io.has_value()) part.device.io->status = std::move((request++)->status);
  }
}

/// ColdStore over a folder of files.
class FileColdStore final : public ColdStore, public DeviceMedium {
 public:
  FileColdStore(const ColdStoreOptions& options, ColdFolder folder, std::unique_ptr<ColdIndex> index,
                bool index_rebuilt, std::unique_ptr<BlockIo> start_io)
      : options_(options),
        folder_(std::move(folder)),
        index_options_(IndexOptions(options, folder_)),
        start_io_(std::move(start_io)),
        index_(std::move(index)),
        index_rebuilt_(index_rebuilt),
        segments_({.folder = folder_.segments(),
                   .uuid = folder_.uuid,
                   .segment_bytes = options.segment_bytes,
                   .segment_limit = ColdSegmentLimit(options.capacity_bytes, options.segment_bytes),
                   .direct_io = folder_.direct_io,
                   .spare_bytes = ColdIndexReserveBytes(options.capacity_bytes)}) {}

  ~FileColdStore() override {
    // Without Recover the index may still be behind the segments.
    if (recovered_ && index_ != nullptr && !index_incomplete_)
      index_->MarkClean().IgnoreBecause("without the mark the next start scans");
  }

  static ColdIndex::Options IndexOptions(const ColdStoreOptions& options, const ColdFolder& folder) {
    return {.folder = folder.index(), .reserve_bytes = ColdIndexReserveBytes(options.capacity_bytes)};
  }

  Result<std::span<const std::byte>> Read(const Place& place, BlockIo& io, AlignedBuffer& bounce) override {
    PartRead read{.place = place, .bounce = &bounce};
    ReadParts({&read, 1}, io);
    return std::move(read.bytes);
  }
  void ReadParts(std::span<PartRead> reads, BlockIo& io) override;
  Result<std::span<std::byte>> BeginWrite(const Place& place, AlignedBuffer& bounce) override;
  Status FinishWrite(const Place& place, BlockIo& io, std::span<std::byte> built, uint64_t image_bytes,
                     const RecordMeta& meta) override {
    PartWrite write{.place = place, .built = built, .image_bytes = image_bytes, .meta = meta};
    FinishWrites({&write, 1}, io);
    return write.status;
  }
  void FinishWrites(std::span<PartWrite> writes, BlockIo& io) override;
  DeviceMedium* device() override { return this; }
  void StartRead(PartRead& read) override;
  void EndRead(PartRead& read) override;
  bool ReadyFor(const Place& place) const override;
  void StartWrite(PartWrite& write) override;
  void EndWrite(PartWrite& write) override;

  Result<ColdRecovery> Recover() override;
  Status PutModel(const ModelRecord& model) override {
    return WriteModelFile(folder_.models(), model, ColdModelLimit(options_.capacity_bytes));
  }
  Status Commit(std::span<const ColdCommit> items, BlockIo& io) override;
  Status Erase(std::span<const ColdCommit> items, BlockIo& io) override;
  Status RecycleSegment(uint32_t segment, uint64_t new_sequence, BlockIo& io) override;
  bool direct_io() const override { return folder_.direct_io; }
  bool preallocates() const override { return folder_.preallocates; }
  uint64_t allocated_bytes() const override {
    const uint64_t segments = uint64_t{segments_.count()} + segments_.foreign_segments();
    return segments * options_.segment_bytes + ColdIndexReserveBytes(options_.capacity_bytes);
  }
  uint64_t metadata_bytes_written() const override {
    const uint64_t index_bytes = index_ != nullptr ? index_->written_bytes() : 0;
    return segments_.metadata_bytes_written() + earlier_index_bytes_ + index_bytes;
  }

 private:
  std::span<std::byte> Finish(const PartWrite& write) const;
  void StartWriteTo(Result<ColdSegments::FilePtr> file, PartWrite& write);
  void Distrust(std::span<const ColdCommit> items);
  Status WithIndex(const std::function<Status(ColdIndex&)>& call);
  void CheckPlace(const Place& place) const {
    KVTIER_CHECK(place.offset >= kColdSegmentHeaderBytes && place.offset % kColdBlockBytes == 0);
    KVTIER_CHECK(place.bytes >= kColdBlockBytes && place.bytes % kColdBlockBytes == 0);
    KVTIER_CHECK(place.bytes <= options_.segment_bytes &&
                 place.offset <= options_.segment_bytes - place.bytes);
  }

  const ColdStoreOptions options_;
  const ColdFolder folder_;
  const ColdIndex::Options index_options_;
  const std::unique_ptr<BlockIo> start_io_;  ///< for Recover, on the thread that made the store
  std::unique_ptr<ColdIndex> index_;
  const bool index_rebuilt_;  ///< when the store was opened
  ColdSegments segments_;
  bool recovered_ = false;
  uint64_t earlier_index_bytes_ = 0;  ///< written to indexes that were given up
  bool index_incomplete_ = false;     ///< begun anew since Recover: the next start must scan
};

void FileColdStore::StartRead(PartRead& read) {
  const Place& place = read.place;
  CheckPlace(place);
  read.device = {};
  Result<ColdSegments::FilePtr> file = segments_.Open(place.container, place.epoch);
  Result<std::span<std::byte>> memory = read.bounce->Reserve(place.bytes);
  if (!file.ok() || !memory.ok()) {
    read.bytes = file.ok() ? memory.status() : file.status();
    return;
  }
  read.device.io = ReadRequest((*file)->fd.get(), place.offset, memory->first(place.bytes));
  read.device.keep = std::move(file).value();
}

void FileColdStore::EndRead(PartRead& read) {
  const DeviceRequest device = std::exchange(read.device, {});
  if (device.io->status.ok()) {
    read.bytes = ImageOfRecord(folder_.uuid, read.place, device.io->memory);
  } else {
    segments_.CloseFile(read.place.container);
    read.bytes = device.io->status;
  }
}

void FileColdStore::ReadParts(std::span<PartRead> reads, BlockIo& io) {
  for (PartRead& read : reads) StartRead(read);
  RunRequests(reads, io);
  for (PartRead& read : reads) {
    if (read.device.io.has_value()) EndRead(read);
  }
}

Result<std::span<std::byte>> FileColdStore::BeginWrite(const Place& place, AlignedBuffer& bounce) {
  CheckPlace(place);
  KVTIER_ASSIGN(std::span<std::byte> memory, bounce.Reserve(place.bytes));
  return memory.subspan(kColdRecordHeaderBytes, place.bytes - kColdRecordHeaderBytes);
}

/// BeginWrite left room for the record header in front of the image, and for place.bytes in all: one aligned
/// write.
std::span<std::byte> FileColdStore::Finish(const PartWrite& write) const {
  CheckPlace(write.place);
  KVTIER_CHECK(write.built.size() >= write.image_bytes && write.image_bytes >= kImageHeaderBytes);
  const uint64_t write_bytes = ColdRecordBytes(write.image_bytes);
  KVTIER_CHECK(write_bytes <= write.place.bytes);
  const std::span<std::byte> memory(write.built.data() - kColdRecordHeaderBytes, write_bytes);
  KVTIER_CHECK(reinterpret_cast<uintptr_t>(memory.data()) % kColdBlockBytes == 0);
  const RecordHeader header =
      LiveRecordHeader(folder_.uuid, write.place, write.built.first(write.image_bytes), write.meta);
  std::memcpy(memory.data(), &header, sizeof(header));
  const std::span<std::byte> padding = memory.subspan(kColdRecordHeaderBytes + write.image_bytes);
  std::fill(padding.begin(), padding.end(), std::byte{0});
  return memory;
}

bool FileColdStore::ReadyFor(const Place& place) const {
  return segments_.Has(place.container);
}

void FileColdStore::StartWrite(PartWrite& write) {
  StartWriteTo(segments_.Open(write.place.container, write.place.epoch), write);
}

void FileColdStore::StartWriteTo(Result<ColdSegments::FilePtr> file, PartWrite& write) {
  KVTIER_CHECK(recovered_);  // else it would take segments that exist for new ones
  write.device = {};
  write.status = file.status();
  if (!file.ok()) return;
  write.device.io = WriteRequest((*file)->fd.get(), write.place.offset, Finish(write));
  write.device.keep = std::move(file).value();
}

void FileColdStore::EndWrite(PartWrite& write) {
  const DeviceRequest device = std::exchange(write.device, {});
  write.status = device.io->status;
  if (!write.status.ok()) segments_.CloseFile(write.place.container);
}

void FileColdStore::FinishWrites(std::span<PartWrite> writes, BlockIo& io) {
  for (PartWrite& write : writes) {
    StartWriteTo(segments_.OpenOrCreate(write.place.container, write.place.epoch, io), write);
  }
  RunRequests(writes, io);
  for (PartWrite& write : writes) {
    if (write.device.io.has_value()) EndWrite(write);
  }
}

Result<ColdRecovery> FileColdStore::Recover() {
  KVTIER_CHECK(!recovered_);
  KVTIER_ASSIGN(ColdRecovery recovery, RecoverRecords(segments_, index_, index_options_, *start_io_));
  KVTIER_TRY(RemoveHalfMadeModels(folder_.models()));
  KVTIER_ASSIGN(recovery.models, ReadModelFiles(folder_.models(), recovery.dropped_records));
  recovery.index_rebuilt |= index_rebuilt_;
  recovery.disk_full |= folder_.full;
  KeepBlocksOfKnownModels(recovery);
  // Now, since later somebody may be about to store blocks of any of them; but not while a segment may hold
  // blocks that could not be looked at.
  const bool all_seen =
      recovery.unopened_files == 0 && std::ranges::none_of(recovery.segments, &RecoveredSegment::unread);
  if (all_seen && recovery.models.size() > ColdModelLimit(options_.capacity_bytes) / 2) {
    KVTIER_TRY(RemoveModelsWithoutBlocks(folder_.models(), recovery));
  }
  for (RecoveredBlock& block : recovery.blocks) {
    block.place.tier = block.k_tail.place.tier = block.v_tail.place.tier = options_.tier;
  }
  recovered_ = true;
  return recovery;
}

void FileColdStore::Distrust(std::span<const ColdCommit> items) {
  for (const ColdCommit& item : items) {
    segments_.Distrust(item.place.container, item.place.epoch);
    segments_.CloseFile(item.place.container);
  }
}

Status FileColdStore::Commit(std::span<const ColdCommit> items, BlockIo& io) {
  for (const ColdCommit& item : items) {
    if (segments_.Trusted(item.place.container, item.place.epoch)) continue;
    return Status(Code::kUnavailable, "an earlier sync of the segment failed: what it holds may be lost");
  }
  const Status synced = SyncSegmentsOf(items, segments_, io);
  if (!synced.ok()) {
    Distrust(items);
    return synced;
  }
  return WithIndex([&](ColdIndex& index) { return index.Put(items); });
}

Status FileColdStore::Erase(std::span<const ColdCommit> items, BlockIo& io) {
  const Status marked = MarkDead(items, segments_, io);
  if (!marked.ok()) Distrust(items);
  const Status erased = WithIndex([&](ColdIndex& index) { return index.Erase(items); });
  return marked.ok() ? erased : marked;
}

/// An index that turns out to be damaged is begun anew: it costs a scan at the next start, and nothing now.
Status FileColdStore::WithIndex(const std::function<Status(ColdIndex&)>& call) {
  Status status(Code::kDataLoss, "the index is not open");
  if (index_ != nullptr) status = call(*index_);
  if (status.code() != Code::kDataLoss) return status;
  if (index_ != nullptr) {
    earlier_index_bytes_ += index_->written_bytes();
    index_.reset();
    KVTIER_TRY(MoveIndexAside(folder_.index()));
  }
  index_incomplete_ = true;
  KVTIER_ASSIGN(index_, ColdIndex::Open(index_options_));
  return call(*index_);
}

Status FileColdStore::RecycleSegment(uint32_t segment, uint64_t new_sequence, BlockIo& io) {
  KVTIER_TRY(WithIndex([&](ColdIndex& index) { return index.EraseSegment(segment); }));
  return segments_.Recycle(segment, new_sequence, io);
}

Status CheckOptions(const ColdStoreOptions& options) {
  if (options.path.empty()) return Status(Code::kInvalidArgument, "cold store: no path");
  if (options.segment_bytes % kColdBlockBytes != 0 || options.segment_bytes < 2 * kColdBlockBytes) {
    return Status(Code::kInvalidArgument, "cold store " + options.path + ": segment_bytes " +
                                              std::to_string(options.segment_bytes) +
                                              " is not a multiple of 4096 above 4096");
  }
  if (ColdSegmentLimit(options.capacity_bytes, options.segment_bytes) == 0) {
    return Status(Code::kInvalidArgument,
                  "cold store " + options.path + ": a capacity of " + std::to_string(options.capacity_bytes) +
                      " bytes has no room for one segment of " + std::to_string(options.segment_bytes));
  }
  return Status::Ok();
}

}  // namespace

Result<std::unique_ptr<ColdStore>> ColdStore::Make(ColdStoreOptions options) {
  KVTIER_TRY(CheckOptions(options));
  KVTIER_ASSIGN(std::unique_ptr<BlockIo> io, MakeBlockIo(BlockIoKind::kSync));
  KVTIER_ASSIGN(ColdFolder folder, OpenColdFolder(options, *io));
  bool rebuilt = false;
  Result<std::unique_ptr<ColdIndex>> index =
      OpenOrRebuildIndex(FileColdStore::IndexOptions(options, folder), rebuilt);
  if (!index.ok()) return index.status().WithContext("cold store " + options.path);
  return std::unique_ptr<ColdStore>(std::make_unique<FileColdStore>(
      options, std::move(folder), std::move(index).value(), rebuilt, std::move(io)));
}

}  // namespace kvtier
