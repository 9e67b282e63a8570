#include "tiers/cold_records.h"

#include <algorithm>
#include <cstring>

#include "tiers/cold_io.h"
#include "tiers/cold_tail.h"

namespace kvtier {

namespace {

/// Marks at most kMaxIoInFlight records.
Status MarkSomeDead(std::span<const ColdRecord> records, ColdSegments& segments, BlockIo& io,
                    std::span<std::byte> memory, std::vector<ColdRecord>& written) {
  std::vector<IoRequest> requests;
  std::vector<ColdSegments::FilePtr> files;
  Status first;
  for (const ColdRecord& record : records) {
    Result<ColdSegments::FilePtr> file = segments.Open(record.place.container, record.place.epoch);
    if (file.status().code() == Code::kStale || file.status().code() == Code::kDataLoss) continue;
    if (!file.ok()) {
      if (first.ok()) first = file.status();
      continue;
    }
    const std::span<std::byte> block = memory.subspan(requests.size() * kColdBlockBytes, kColdBlockBytes);
    const RecordHeader header = MakeRecordHeader(segments.options().uuid, record, RecordState::kDead);
    std::fill(block.begin(), block.end(), std::byte{0});
    std::memcpy(block.data(), &header, sizeof(header));
    requests.push_back(WriteRequest((*file)->fd.get(), record.place.offset, block));
    files.push_back(std::move(file).value());
    written.push_back(record);
  }
  if (requests.empty()) return first;
  const Status status = RunWithTimeout(io, requests);
  if (status.ok()) segments.CountMetadata(requests.size() * kColdBlockBytes);
  return first.ok() ? status : first;
}

}  // namespace

RecordHeader LiveRecordHeader(const StoreUuid& uuid, const Place& place, std::span<const std::byte> image,
                              const RecordMeta& meta) {
  ImageHeader of_image;
  KVTIER_CHECK(image.size() >= sizeof(of_image));
  std::memcpy(&of_image, image.data(), sizeof(of_image));
  ColdRecord record;
  record.meta = meta;
  record.place = place;
  record.image_bytes = image.size();
  record.identity.key.bytes = of_image.key;
  record.identity.name_space.bytes = of_image.name_space;
  record.identity.first_position = of_image.first_position;
  record.identity.shape.tokens = of_image.tokens;
  record.codec = static_cast<CodecId>(of_image.codec);
  record.binding = BindingOf(image);
  return MakeRecordHeader(uuid, record, RecordState::kLive);
}

Result<std::span<const std::byte>> ImageOfRecord(const StoreUuid& uuid, const Place& place,
                                                 std::span<const std::byte> bytes) {
  RecordHeader header;
  KVTIER_CHECK(bytes.size() == place.bytes);
  std::memcpy(&header, bytes.data(), sizeof(header));
  KVTIER_TRY(CheckRecordHeader(header, {.uuid = uuid,
                                        .segment = place.container,
                                        .sequence = place.epoch,
                                        .offset = place.offset,
                                        .limit_bytes = place.offset + place.bytes}));
  if (header.state != static_cast<uint8_t>(RecordState::kLive)) {
    return Status(Code::kDataLoss, "the record was marked dead");
  }
  if (header.part != static_cast<uint8_t>(place.part)) {
    return Status(Code::kDataLoss, "the record is another part of a block");
  }
  return bytes.subspan(kColdRecordHeaderBytes, header.image_bytes);
}

Status SyncSegmentsOf(std::span<const ColdRecord> records, ColdSegments& segments, BlockIo& io) {
  struct Use {
    uint32_t number;
    uint64_t sequence;
    auto operator<=>(const Use&) const = default;
  };
  std::vector<Use> uses;
  for (const ColdRecord& record : records) uses.push_back({record.place.container, record.place.epoch});
  std::sort(uses.begin(), uses.end());
  uses.erase(std::unique(uses.begin(), uses.end()), uses.end());

  std::vector<ColdSegments::FilePtr> files;
  std::vector<IoRequest> syncs;
  for (const Use& use : uses) {
    KVTIER_ASSIGN(ColdSegments::FilePtr file, segments.Open(use.number, use.sequence));
    syncs.push_back(SyncRequest(file->fd.get()));
    files.push_back(std::move(file));
  }
  if (syncs.empty()) return Status::Ok();
  return RunWithTimeout(io, syncs);
}

Status MarkDead(std::span<const ColdRecord> records, ColdSegments& segments, BlockIo& io) {
  if (records.empty()) return Status::Ok();
  AlignedBuffer buffer;
  KVTIER_ASSIGN(std::span<std::byte> memory,
                buffer.Reserve(std::min<uint64_t>(records.size(), kMaxIoInFlight) * kColdBlockBytes));
  std::vector<ColdRecord> written;
  Status first;
  while (!records.empty()) {
    const auto some = records.first(std::min<size_t>(records.size(), kMaxIoInFlight));
    const Status status = MarkSomeDead(some, segments, io, memory, written);
    if (first.ok()) first = status;
    records = records.subspan(some.size());
  }
  const Status synced = SyncSegmentsOf(written, segments, io);
  return first.ok() ? synced : first;
}

}  // namespace kvtier
