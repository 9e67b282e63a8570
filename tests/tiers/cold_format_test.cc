#include "tiers/cold_format.h"

#include <gtest/gtest.h>

#include <cstring>

#include "tests/tiers/cold_fixture.h"

namespace kvtier {
namespace {

constexpr uint64_t kSegmentBytes = uint64_t{1} << 20;
const StoreUuid kUuid = {std::byte{1}, std::byte{2}, std::byte{3}};

ColdRecord SomeRecord() {
  const TestBlock block = MakeTestBlock(5);
  ColdRecord record;
  record.identity = block.identity;
  record.identity.shape.nraw = 1;
  record.identity.shape.nb = 16;
  record.meta = block.meta;
  record.place.container = 3;
  record.place.offset = 8192;
  record.place.bytes = 12288;
  record.place.epoch = 77;
  record.codec = CodecId::kKv2p;
  record.image_bytes = 9000;
  record.k_error = 0.25f;
  record.v_error = 0.5f;
  record.binding = 0x12345678;
  return record;
}

RecordExpectation ExpectedOf(const ColdRecord& record) {
  return {.uuid = kUuid,
          .segment = record.place.container,
          .sequence = record.place.epoch,
          .offset = record.place.offset,
          .limit_bytes = kSegmentBytes};
}

template <typename T>
T WithBitFlipped(T value, size_t bit) {
  std::byte bytes[sizeof(T)];
  std::memcpy(bytes, &value, sizeof(T));
  bytes[bit / 8] ^= std::byte{1} << (bit % 8);
  std::memcpy(&value, bytes, sizeof(T));
  return value;
}

TEST(ColdFormat, S44_EveryFlippedBitOfASegmentHeaderIsDetected) {
  const SegmentHeader header = MakeSegmentHeader(kUuid, 9, 41, kSegmentBytes);
  ASSERT_TRUE(CheckSegmentHeader(header, kUuid, 9, kSegmentBytes).ok());
  for (size_t bit = 0; bit < sizeof(header) * 8; ++bit) {
    EXPECT_EQ(CheckSegmentHeader(WithBitFlipped(header, bit), kUuid, 9, kSegmentBytes).code(),
              Code::kDataLoss)
        << "bit " << bit;
  }
}

TEST(ColdFormat, ASoundSegmentHeaderOfAnotherPlaceIsForeignNotDamaged) {
  const SegmentHeader header = MakeSegmentHeader(kUuid, 9, 41, kSegmentBytes);
  EXPECT_EQ(CheckSegmentHeader(header, kUuid, 8, kSegmentBytes).code(), Code::kFailedPrecondition);
  EXPECT_EQ(CheckSegmentHeader(header, StoreUuid{}, 9, kSegmentBytes).code(), Code::kFailedPrecondition);
  EXPECT_EQ(CheckSegmentHeader(header, kUuid, 9, 2 * kSegmentBytes).code(), Code::kFailedPrecondition);
}

TEST(ColdFormat, S44_EveryFlippedBitOfARecordHeaderIsDetected) {
  const ColdRecord record = SomeRecord();
  const RecordHeader header = MakeRecordHeader(kUuid, record, RecordState::kLive);
  ASSERT_TRUE(CheckRecordHeader(header, ExpectedOf(record)).ok());
  for (size_t bit = 0; bit < sizeof(header) * 8; ++bit) {
    EXPECT_FALSE(CheckRecordHeader(WithBitFlipped(header, bit), ExpectedOf(record)).ok()) << "bit " << bit;
  }
}

TEST(ColdFormat, ARecordHeaderAnswersForItsPlaceOnly) {
  const ColdRecord record = SomeRecord();
  const RecordHeader header = MakeRecordHeader(kUuid, record, RecordState::kLive);
  RecordExpectation other = ExpectedOf(record);
  other.sequence += 1;
  EXPECT_EQ(CheckRecordHeader(header, other).code(), Code::kDataLoss);
  other = ExpectedOf(record);
  other.offset += 4096;
  EXPECT_EQ(CheckRecordHeader(header, other).code(), Code::kDataLoss);
  other = ExpectedOf(record);
  other.segment += 1;
  EXPECT_EQ(CheckRecordHeader(header, other).code(), Code::kDataLoss);
  other = ExpectedOf(record);
  other.uuid = StoreUuid{};
  EXPECT_EQ(CheckRecordHeader(header, other).code(), Code::kDataLoss);
  other = ExpectedOf(record);
  other.limit_bytes = record.place.offset + record.place.bytes - 1;
  EXPECT_EQ(CheckRecordHeader(header, other).code(), Code::kDataLoss);
}

TEST(ColdFormat, AnImageLargerThanItsRecordIsDetected) {
  ColdRecord record = SomeRecord();
  record.image_bytes = record.place.bytes - kColdRecordHeaderBytes;
  EXPECT_TRUE(
      CheckRecordHeader(MakeRecordHeader(kUuid, record, RecordState::kLive), ExpectedOf(record)).ok());
  record.image_bytes += 1;
  EXPECT_EQ(CheckRecordHeader(MakeRecordHeader(kUuid, record, RecordState::kLive), ExpectedOf(record)).code(),
            Code::kDataLoss);
}

TEST(ColdFormat, AnIndexEntryKeepsEveryField) {
  const ColdRecord record = SomeRecord();
  const Result<ColdRecord> decoded = DecodeIndexEntry(EncodeIndexKey(record), EncodeIndexValue(record));
  ASSERT_TRUE(decoded.ok()) << decoded.status().ToString();
  EXPECT_EQ(decoded->identity, record.identity);
  EXPECT_EQ(decoded->meta.parent, record.meta.parent);
  EXPECT_EQ(decoded->meta.floor, record.meta.floor);
  EXPECT_EQ(decoded->meta.is_tail, record.meta.is_tail);
  EXPECT_EQ(decoded->place, record.place);
  EXPECT_EQ(decoded->codec, record.codec);
  EXPECT_EQ(decoded->image_bytes, record.image_bytes);
  EXPECT_EQ(decoded->k_error, record.k_error);
  EXPECT_EQ(decoded->v_error, record.v_error);
  EXPECT_EQ(decoded->binding, record.binding);
}

TEST(ColdFormat, TheEntriesOfABlockAreNeighboursAndKeepTheirPart) {
  ColdRecord record = SomeRecord();
  const std::string base_key = EncodeIndexKey(record);
  for (const ColdPart part : kColdTails) {
    record.place.part = part;
    EXPECT_TRUE(EncodeIndexKey(record).starts_with(base_key));
    const Result<ColdRecord> decoded = DecodeIndexEntry(EncodeIndexKey(record), EncodeIndexValue(record));
    ASSERT_TRUE(decoded.ok());
    EXPECT_EQ(decoded->place, record.place);
    EXPECT_EQ(decoded->identity, record.identity);
    EXPECT_EQ(DecodeIndexEntry(base_key, EncodeIndexValue(record)).status().code(), Code::kDataLoss);
  }
}

TEST(ColdFormat, S44_EveryFlippedBitOfAnIndexEntryIsDetected) {
  ColdRecord record = SomeRecord();
  record.place.part = ColdPart::kVTail;
  const std::string key = EncodeIndexKey(record);
  const std::string value = EncodeIndexValue(record);
  for (size_t bit = 0; bit < value.size() * 8; ++bit) {
    std::string damaged = value;
    damaged[bit / 8] = static_cast<char>(damaged[bit / 8] ^ (1 << bit % 8));
    EXPECT_EQ(DecodeIndexEntry(key, damaged).status().code(), Code::kDataLoss) << "value bit " << bit;
  }
  for (size_t bit = 0; bit < key.size() * 8; ++bit) {
    std::string damaged = key;
    damaged[bit / 8] = static_cast<char>(damaged[bit / 8] ^ (1 << bit % 8));
    EXPECT_EQ(DecodeIndexEntry(damaged, value).status().code(), Code::kDataLoss) << "key bit " << bit;
  }
  EXPECT_EQ(DecodeIndexEntry(key, value.substr(1)).status().code(), Code::kDataLoss);
}

/// tiers/FORMAT.md gives these offsets.
TEST(ColdFormat, FieldsStandWhereTheDocumentSays) {
  EXPECT_EQ(offsetof(SegmentHeader, sequence), 16u);
  EXPECT_EQ(offsetof(SegmentHeader, segment_bytes), 24u);
  EXPECT_EQ(offsetof(SegmentHeader, uuid), 32u);
  EXPECT_EQ(offsetof(SegmentHeader, crc), 4092u);
  EXPECT_EQ(offsetof(RecordHeader, sequence), 8u);
  EXPECT_EQ(offsetof(RecordHeader, first_position), 40u);
  EXPECT_EQ(offsetof(RecordHeader, uuid), 56u);
  EXPECT_EQ(offsetof(RecordHeader, key), 72u);
  EXPECT_EQ(offsetof(RecordHeader, name_space), 104u);
  EXPECT_EQ(offsetof(RecordHeader, parent), 136u);
  EXPECT_EQ(offsetof(RecordHeader, crc), 252u);
  EXPECT_EQ(offsetof(IndexValue, first_position), 40u);
  EXPECT_EQ(offsetof(IndexValue, dtype), 58u);
  EXPECT_EQ(offsetof(IndexValue, k_error), 64u);
  EXPECT_EQ(offsetof(IndexValue, parent), 72u);
  EXPECT_EQ(offsetof(IndexValue, crc), 108u);
}

}  // namespace
}  // namespace kvtier
