#include "tiers/cold_scan.h"

#include <algorithm>
#include <cstring>

#include "tiers/cold_io.h"

namespace kvtier {

namespace {

constexpr uint64_t kWindowBytes = uint64_t{1} << 20;
constexpr uint64_t kMaxRecordBytes = ColdRecordBytes(2 * kMaxBlockBytes);

/// Rms over layers of one stored error.
template <typename ErrorOfLayer>
float RmsOverLayers(const ImageView& image, ErrorOfLayer error_of_layer) {
  double sum = 0;
  for (uint16_t layer = 0; layer < image.identity.shape.layers; ++layer) {
    const double error = error_of_layer(layer);
    sum += error * error;
  }
  return static_cast<float>(std::sqrt(sum / std::max<uint16_t>(1, image.identity.shape.layers)));
}

bool SameBlock(const RecordHeader& header, const ImageView& image) {
  return header.key == image.identity.key.bytes && header.name_space == image.identity.name_space.bytes &&
         header.first_position == image.identity.first_position &&
         header.tokens == image.identity.shape.tokens &&
         header.codec == static_cast<uint8_t>(image.codec->id) && header.image_bytes == image.bytes.size();
}

}  // namespace

Status ColdScanner::Scan(const ColdSegments::File& file, const ColdSegments::Found& segment, Range range,
                         Outcome& out) {
  KVTIER_CHECK(range.begin % kColdBlockBytes == 0);
  range.end = std::min(range.end, segment.file_bytes / kColdBlockBytes * kColdBlockBytes);
  KVTIER_ASSIGN(std::span<std::byte> window, window_.Reserve(kWindowBytes));
  Range loaded;  // what of the segment stands in the window
  uint64_t offset = range.begin;
  while (offset < range.end) {
    if (offset < loaded.begin || offset >= loaded.end) {
      loaded = {offset, std::min(range.end, offset + kWindowBytes)};
      if (!Fetch(file, offset, window.first(loaded.end - loaded.begin)).ok()) {
        out.unread_bytes += loaded.end - loaded.begin;
        offset = loaded.end;
        continue;
      }
    }
    RecordHeader header;
    std::memcpy(&header, window.data() + (offset - loaded.begin), sizeof(header));
    const RecordExpectation expected{.uuid = segments_.options().uuid,
                                     .segment = segment.number,
                                     .sequence = segment.sequence,
                                     .offset = offset,
                                     .limit_bytes = range.end};
    if (!CheckRecordHeader(header, expected).ok()) {
      offset += kColdBlockBytes;
      continue;
    }
    out.used_bytes = std::max(out.used_bytes, offset + header.record_bytes);
    if (header.state == static_cast<uint8_t>(RecordState::kLive)) {
      Result<ColdRecord> record = ReadRecord(file, header);
      if (record.ok()) {
        out.live.push_back(std::move(record).value());
      } else {
        ++out.bad_records;
      }
    }
    offset += header.record_bytes;
  }
  return Status::Ok();
}

Status ColdScanner::Fetch(const ColdSegments::File& file, uint64_t offset, std::span<std::byte> memory) {
  return RunWithTimeout(io_, ReadRequest(file.fd.get(), offset, memory));
}

Result<ColdRecord> ColdScanner::ReadRecord(const ColdSegments::File& file, const RecordHeader& header) {
  const uint64_t bytes = ColdRecordBytes(header.image_bytes);
  if (bytes > kMaxRecordBytes) return Status(Code::kDataLoss, "record larger than any block");
  KVTIER_ASSIGN(std::span<std::byte> memory, record_.Reserve(bytes));
  KVTIER_TRY(Fetch(file, header.offset, memory.first(bytes)));
  KVTIER_ASSIGN(const ImageView image,
                ParseImage(memory.subspan(kColdRecordHeaderBytes, header.image_bytes)));
  KVTIER_TRY(VerifyImage(image));
  if (!SameBlock(header, image)) return Status(Code::kDataLoss, "record and image name different blocks");

  ColdRecord record;
  record.identity = image.identity;
  record.meta.parent.bytes = header.parent;
  record.meta.floor = static_cast<Precision>(header.floor);
  record.meta.is_tail = (header.flags & kRecordFlagTail) != 0;
  record.place.container = header.segment;
  record.place.offset = header.offset;
  record.place.bytes = header.record_bytes;
  record.place.epoch = header.sequence;
  record.codec = image.codec->id;
  record.image_bytes = header.image_bytes;
  record.k_error = RmsOverLayers(image, [&](uint16_t layer) { return image.KError(layer); });
  record.v_error = RmsOverLayers(image, [&](uint16_t layer) { return image.VError(layer); });
  return record;
}

}  // namespace kvtier
