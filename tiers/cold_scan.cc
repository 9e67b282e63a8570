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

Result<std::span<const std::byte>> FileSegmentBytes::Read(uint64_t offset, uint64_t bytes,
                                                          AlignedBuffer& buffer) {
  KVTIER_ASSIGN(const std::span<std::byte> memory, buffer.Reserve(bytes));
  KVTIER_TRY(RunWithTimeout(io_, ReadRequest(file_.fd.get(), offset, memory.first(bytes))));
  return std::span<const std::byte>(memory.first(bytes));
}

void ColdScanner::Scan(SegmentBytes& bytes, const ColdSegments::Found& segment, Range range, Outcome& out) {
  KVTIER_CHECK(range.begin % kColdBlockBytes == 0);
  range.end = std::min(range.end, segment.file_bytes / kColdBlockBytes * kColdBlockBytes);
  std::span<const std::byte> window;
  Range loaded;  // what of the segment stands in the window
  uint64_t offset = range.begin;
  while (offset < range.end) {
    if (offset < loaded.begin || offset >= loaded.end) {
      loaded = {offset, std::min(range.end, offset + kWindowBytes)};
      const Result<std::span<const std::byte>> read = bytes.Read(offset, loaded.end - loaded.begin, window_);
      if (!read.ok()) {
        out.unread_bytes += loaded.end - loaded.begin;
        offset = loaded.end;
        continue;
      }
      window = *read;
    }
    RecordHeader header;
    std::memcpy(&header, window.data() + (offset - loaded.begin), sizeof(header));
    const RecordExpectation expected{.uuid = uuid_,
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
      Result<ColdRecord> record = ReadRecord(bytes, header);
      if (record.ok()) {
        out.live.push_back(std::move(record).value());
      } else {
        out.bad.push_back(header);
      }
    }
    offset += header.record_bytes;
  }
}

Result<ColdRecord> ColdScanner::ReadRecord(SegmentBytes& bytes, const RecordHeader& header) {
  const uint64_t record_bytes = ColdRecordBytes(header.image_bytes);
  if (record_bytes > kMaxRecordBytes) return Status(Code::kDataLoss, "record larger than any block");
  KVTIER_ASSIGN(const std::span<const std::byte> memory, bytes.Read(header.offset, record_bytes, record_));
  KVTIER_ASSIGN(const ImageView image,
                ParseImage(memory.subspan(kColdRecordHeaderBytes, header.image_bytes)));
  if (depth_ == ScanDepth::kImages) KVTIER_TRY(VerifyImage(image));
  if (!SameBlock(header, image)) return Status(Code::kDataLoss, "record and image name different blocks");

  ColdRecord record = RecordOfHeader(header);
  record.identity = image.identity;
  record.k_error = RmsOverLayers(image, [&](uint16_t layer) { return image.KError(layer); });
  record.v_error = RmsOverLayers(image, [&](uint16_t layer) { return image.VError(layer); });
  return record;
}

}  // namespace kvtier
