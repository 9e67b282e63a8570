#pragma once

#include <cmath>
#include <vector>

#include "tiers/base/aligned_buffer.h"
#include "tiers/cold_segments.h"

namespace kvtier {

/// The bytes of one segment, as a scan reads them: off a file, or where they stand in memory.
class SegmentBytes {
 public:
  virtual ~SegmentBytes() = default;
  /// `bytes` bytes from `offset` on; valid until `buffer` is used again. Errors: the device's.
  virtual Result<std::span<const std::byte>> Read(uint64_t offset, uint64_t bytes, AlignedBuffer& buffer) = 0;
};

/// Of a segment file.
class FileSegmentBytes final : public SegmentBytes {
 public:
  FileSegmentBytes(const ColdSegments::File& file, BlockIo& io) : file_(file), io_(io) {}
  Result<std::span<const std::byte>> Read(uint64_t offset, uint64_t bytes, AlignedBuffer& buffer) override;

 private:
  const ColdSegments::File& file_;
  BlockIo& io_;
};

/// How much of a live record a scan checks: header and table of its image, or every byte.
enum class ScanDepth : uint8_t { kHeaders, kImages };

/// Reads records off a segment without an index. Single-owner; used at start only.
class ColdScanner {
 public:
  struct Range {
    uint64_t begin = 0, end = 0;
  };
  struct Outcome {
    std::vector<ColdRecord> live;   ///< image parsed and verified
    uint64_t used_bytes = 0;        ///< end of the last sound record, live or dead
    std::vector<RecordHeader> bad;  ///< sound header, but the image does not check out
    std::vector<uint64_t> damaged;  ///< offsets of headers that are damaged (IsDamagedRecordHeader)
    uint64_t unread_bytes = 0;      ///< the device failed
  };

  explicit ColdScanner(const StoreUuid& uuid, ScanDepth depth = ScanDepth::kImages)
      : uuid_(uuid), depth_(depth) {}

  /// Finds every record of the segment's present use that starts in `range`, which must begin where a record
  /// may begin. Where none is, looks on at the next block: writes finish in any order, so a hole says nothing
  /// about what follows.
  void Scan(SegmentBytes& bytes, const ColdSegments::Found& segment, Range range, Outcome& out);

 private:
  Result<ColdRecord> ReadRecord(SegmentBytes& bytes, const RecordHeader& header);
  Result<ColdRecord> Describe(const RecordHeader& header, std::span<const std::byte> memory) const;

  const StoreUuid uuid_;
  const ScanDepth depth_;
  AlignedBuffer window_;
  AlignedBuffer record_;
};

}  // namespace kvtier
