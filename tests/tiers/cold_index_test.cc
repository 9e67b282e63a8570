#include "tiers/cold_index.h"

#include <sys/stat.h>

#include "tests/tiers/cold_fixture.h"

namespace kvtier {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t kMiB = uint64_t{1} << 20;
constexpr uint64_t kStatBlockBytes = 512;
constexpr uint32_t kBatch = 16;

/// On the disk; files come and go while it looks.
uint64_t AllocatedBytes(const std::string& folder) {
  uint64_t bytes = 0;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder)) {
    struct stat info {};
    if (::stat(entry.path().c_str(), &info) == 0)
      bytes += static_cast<uint64_t>(info.st_blocks) * kStatBlockBytes;
  }
  return bytes;
}

struct Store {
  uint64_t capacity_bytes, segment_bytes;
};

class IndexOfTinyRecords : public testing::TestWithParam<Store> {};

// Every segment filled with as many records as it takes, emptied and filled again.
TEST_P(IndexOfTinyRecords, StaysInsideTheReserve) {
  const auto [capacity, segment_bytes] = GetParam();
  const uint64_t reserve = ColdIndexReserveBytes(capacity);
  const uint64_t room = reserve - ColdModelLimit(capacity) * kColdModelFileBytes;
  const uint32_t segments = ColdSegmentLimit(capacity, segment_bytes);
  const uint32_t in_segment = ColdSegmentRecords(capacity, segment_bytes);
  ASSERT_GT(in_segment, 1u);
  TempFolder folder;
  auto index = ColdIndex::Open({.folder = folder.path(), .reserve_bytes = reserve}).value();
  uint64_t seed = 0, most = 0;
  for (uint64_t epoch = 1; epoch <= 3; ++epoch) {
    for (uint32_t segment = 0; segment < segments; ++segment) {
      ASSERT_TRUE(index->EraseSegment(segment).ok());
      std::vector<ColdRecord> batch;
      for (uint32_t i = 0; i < in_segment; ++i) {
        ColdRecord& record = batch.emplace_back();
        record.identity = {
            .key = KeyOf(++seed), .name_space = TestNamespace(), .first_position = 0, .shape = {}};
        record.meta.parent = KeyOf(seed - 1);
        record.place.container = segment;
        record.place.offset = kColdSegmentHeaderBytes + i * kSlotAlign;
        record.place.bytes = kSlotAlign;
        record.place.epoch = epoch;
        if (batch.size() < kBatch && i + 1 < in_segment) continue;
        ASSERT_TRUE(index->Put(batch).ok());
        batch.clear();
      }
      most = std::max(most, AllocatedBytes(folder.path()));
    }
  }
  RecordProperty("most_bytes", std::to_string(most));
  std::cout << segments << " segments of " << in_segment << " records: " << most << " of " << room
            << " bytes\n";
  EXPECT_LE(most, room);
}

INSTANTIATE_TEST_SUITE_P(Capacities, IndexOfTinyRecords,
                         testing::Values(Store{16 * kMiB, kMiB}, Store{32 * kMiB, kMiB},
                                         Store{1024 * kMiB, 16 * kMiB}),
                         [](const auto& info) {
                           return std::to_string(info.param.capacity_bytes / kMiB) + "MiB";
                         });

}  // namespace
}  // namespace kvtier
