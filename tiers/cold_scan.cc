#include "tiers/cold_scan.h"

#include <algorithm>
#include <cstring>

#include "tiers/cold_io.h"
#include "tiers/cold_tail.h"

namespace kvtier {

namespace {

/// Read at once: so much that a device is kept busy, and records of any usual size stand in it whole.
constexpr uint64_t kWindowBytes = uint64_t{8} << 20;
/// Where that fails: how much one bad spot may cost.
constexpr uint64_t kRetryBytes = uint64_t{1} << 20;
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

bool SameBlock(const RecordHeader& header, const BlockIdentity& identity, CodecId codec, uint64_t bytes) {
  return header.key == identity.key.bytes && header.name_space == identity.name_space.bytes &&
         header.first_position == identity.first_position && header.tokens == identity.shape.tokens &&
         header.codec == static_cast<uint8_t>(codec) && header.image_bytes == bytes;
}

/// Checks an image, as deep as the scan goes, and fills what it says of the block.
Status DescribeImage(const RecordHeader& header, std::span<const std::byte> payload, ScanDepth depth,
                     ColdRecord& record) {
  KVTIER_ASSIGN(const ImageView image, ParseImage(payload));
  if (depth == ScanDepth::kImages) KVTIER_TRY(VerifyImage(image));
  if (!SameBlock(header, image.identity, image.codec->id, image.bytes.size())) {
    return Status(Code::kDataLoss, "record and image name different blocks");
  }
  record.identity = image.identity;
  record.codec = image.codec->id;
  record.k_error = RmsOverLayers(image, [&](uint16_t layer) { return image.KError(layer); });
  record.v_error = RmsOverLayers(image, [&](uint16_t layer) { return image.VError(layer); });
  return Status::Ok();
}

/// The same for a tail.
Status DescribeTail(const RecordHeader& header, std::span<const std::byte> payload, ScanDepth depth,
                    ColdRecord& record) {
  KVTIER_ASSIGN(const TailView tail, ParseTail(payload));
  if (depth == ScanDepth::kImages) KVTIER_TRY(VerifyTail(tail));
  const CodecId codec = RungOf(tail.part).id;
  if (header.part != static_cast<uint8_t>(tail.part) ||
      !SameBlock(header, tail.identity, codec, tail.bytes.size())) {
    return Status(Code::kDataLoss, "record and tail name different blocks");
  }
  record.identity = tail.identity;
  record.codec = codec;
  (tail.part == ColdPart::kKTail ? record.k_error : record.v_error) = tail.Error();
  return Status::Ok();
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
      Result<std::span<const std::byte>> read = bytes.Read(offset, loaded.end - loaded.begin, window_);
      if (!read.ok() && loaded.end - loaded.begin > kRetryBytes) {
        loaded.end = offset + kRetryBytes;
        read = bytes.Read(offset, kRetryBytes, window_);
      }
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
      if (IsDamagedRecordHeader(header, expected)) out.damaged.push_back(offset);
      offset += kColdBlockBytes;
      continue;
    }
    out.used_bytes = std::max(out.used_bytes, offset + header.record_bytes);
    if (header.state == static_cast<uint8_t>(RecordState::kLive)) {
      const uint64_t record_bytes = ColdRecordBytes(header.image_bytes);
      const bool whole = record_bytes <= loaded.end - offset;
      if (!whole && record_bytes <= kWindowBytes && offset > loaded.begin) {
        loaded = {};  // a window that begins here has all of it
        continue;
      }
      Result<ColdRecord> record = whole
                                      ? Describe(header, window.subspan(offset - loaded.begin, record_bytes))
                                      : ReadRecord(bytes, header);
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
  return Describe(header, memory);
}

Result<ColdRecord> ColdScanner::Describe(const RecordHeader& header,
                                         std::span<const std::byte> memory) const {
  const std::span<const std::byte> payload = memory.subspan(kColdRecordHeaderBytes, header.image_bytes);
  ColdRecord record = RecordOfHeader(header);
  KVTIER_TRY(header.part == static_cast<uint8_t>(ColdPart::kBase)
                 ? DescribeImage(header, payload, depth_, record)
                 : DescribeTail(header, payload, depth_, record));
  record.binding = BindingOf(payload);
  return record;
}

}  // namespace kvtier
