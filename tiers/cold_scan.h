#pragma once

#include <cmath>
#include <vector>

#include "tiers/base/aligned_buffer.h"
#include "tiers/cold_segments.h"

namespace kvtier {

/// Reads records off a segment without an index. Single-owner; used at start only.
class ColdScanner {
 public:
  struct Range {
    uint64_t begin = 0, end = 0;
  };
  struct Outcome {
    std::vector<ColdRecord> live;  ///< image parsed and verified
    uint64_t used_bytes = 0;       ///< end of the last sound record, live or dead
    uint64_t bad_records = 0;      ///< sound header, but the image does not check out
    uint64_t unread_bytes = 0;     ///< the device failed
  };

  ColdScanner(const ColdSegments& segments, BlockIo& io) : segments_(segments), io_(io) {}

  /// Finds every record of the segment's present use that starts in `range`, which must begin where a record
  /// may begin. Where none is, looks on at the next block: writes finish in any order, so a hole says nothing
  /// about what follows.
  Status Scan(const ColdSegments::File& file, const ColdSegments::Found& segment, Range range, Outcome& out);

 private:
  Status Fetch(const ColdSegments::File& file, uint64_t offset, std::span<std::byte> memory);
  Result<ColdRecord> ReadRecord(const ColdSegments::File& file, const RecordHeader& header);

  const ColdSegments& segments_;
  BlockIo& io_;
  AlignedBuffer window_;
  AlignedBuffer record_;
};

}  // namespace kvtier
