#include "tiers/cold_scan.h"

#include <cstring>
#include <set>

#include "tests/tiers/cold_fixture.h"
#include "tiers/cold_records.h"

namespace kvtier {
namespace {

constexpr uint64_t kSegmentBytes = uint64_t{24} << 20;
constexpr uint64_t kSequence = 3;

/// A segment in memory; reads that touch `bad` fail.
class FakeSegment final : public SegmentBytes {
 public:
  FakeSegment() : bytes_(kSegmentBytes) { uuid.fill(std::byte{0x17}); }

  /// A record behind the last; false when it does not fit.
  bool Append(const BlockIdentity& identity, std::span<const std::byte> image) {
    const Place place{.tier = TierId{2},
                      .container = 0,
                      .offset = end,
                      .bytes = ColdRecordBytes(image.size()),
                      .epoch = kSequence};
    if (place.bytes > kSegmentBytes - end) return false;
    const RecordHeader header = LiveRecordHeader(uuid, place, image, {});
    std::memcpy(bytes_.data() + end, &header, sizeof(header));
    std::memcpy(bytes_.data() + end + kColdRecordHeaderBytes, image.data(), image.size());
    records.push_back({place.offset, place.offset + place.bytes});
    keys.push_back(identity.key);
    end += place.bytes;
    return true;
  }
  Result<std::span<const std::byte>> Read(uint64_t offset, uint64_t bytes, AlignedBuffer&) override {
    KVTIER_CHECK(offset <= bytes_.size() && bytes <= bytes_.size() - offset);
    if (offset < bad.end && offset + bytes > bad.begin) return Status(Code::kUnavailable, "injected");
    read_bytes += bytes;
    return std::span<const std::byte>(bytes_).subspan(offset, bytes);
  }
  ColdScanner::Outcome Scan() {
    ColdScanner::Outcome out;
    ColdScanner(uuid).Scan(*this, {.number = 0, .sequence = kSequence, .file_bytes = kSegmentBytes},
                           {kColdSegmentHeaderBytes, kSegmentBytes}, out);
    return out;
  }

  StoreUuid uuid{};
  uint64_t end = kColdSegmentHeaderBytes;
  ColdScanner::Range bad;
  uint64_t read_bytes = 0;
  std::vector<ColdScanner::Range> records;
  std::vector<Key> keys;  ///< of the records

 private:
  std::vector<std::byte> bytes_;
};

class ColdScanTest : public testing::Test {
 protected:
  /// Small records of several sizes, with one in their midst that is larger than what a scan reads at once.
  void Fill() {
    for (uint64_t seed = 1;; ++seed) {
      TestBlock block = MakeTestBlock(seed);
      if (seed == 40) {
        block.identity.shape = {.layers = 36, .kv_heads = 8, .k_dim = 128, .v_dim = 128, .tokens = 64};
        block.raw.assign(RawBlockBytes(block.identity.shape), std::byte{0x11});
      }
      if (!segment_.Append(block.identity, ImageOf(block))) break;
    }
  }
  static std::set<decltype(Key::bytes)> KeysOf(const ColdScanner::Outcome& out) {
    std::set<decltype(Key::bytes)> keys;
    for (const ColdRecord& record : out.live) keys.insert(record.identity.key.bytes);
    return keys;
  }

  FakeSegment segment_;
};

TEST_F(ColdScanTest, EveryRecordIsFoundAndReadAboutOnce) {
  Fill();
  const ColdScanner::Outcome out = segment_.Scan();
  EXPECT_EQ(out.live.size(), segment_.records.size());
  EXPECT_EQ(KeysOf(out).size(), segment_.records.size());
  EXPECT_EQ(out.used_bytes, segment_.end);
  const auto& large = segment_.records[39];
  EXPECT_LT(segment_.read_bytes - 2 * (large.end - large.begin), kSegmentBytes);
}

TEST_F(ColdScanTest, S49_ABadSpotCostsWhatStandsAroundIt) {
  Fill();
  constexpr uint64_t kAround = uint64_t{1} << 20;
  segment_.bad = {uint64_t{15} << 20, (uint64_t{15} << 20) + 4096};
  const ColdScanner::Outcome out = segment_.Scan();
  EXPECT_GT(out.unread_bytes, 0u);
  EXPECT_LE(out.unread_bytes, kAround);
  const auto found = KeysOf(out);
  size_t around = 0;
  for (size_t i = 0; i < segment_.records.size(); ++i) {
    const auto& record = segment_.records[i];
    const bool touched =
        record.begin < segment_.bad.end + kAround && record.end + kAround > segment_.bad.begin;
    around += touched;
    EXPECT_TRUE(touched || found.contains(segment_.keys[i].bytes)) << i;
  }
  EXPECT_LT(around, segment_.records.size() / 2);
}

}  // namespace
}  // namespace kvtier
