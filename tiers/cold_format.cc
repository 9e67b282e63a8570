#include "tiers/cold_format.h"

#include <cstring>

#include "tiers/crc32c.h"

namespace kvtier {

namespace {

constexpr char kEntryPrefix = 'b';
constexpr size_t kBaseKeyBytes = 1 + 32 + 32;
constexpr uint8_t kIndexValueVersion = 2;
constexpr uint16_t kHeaderVersion = 2;

/// Crc over all bytes of a header that ends with its crc.
template <typename Header>
uint32_t HeaderCrc(const Header& header) {
  return Crc32c(std::as_bytes(std::span(&header, 1)).first(offsetof(Header, crc)));
}

uint32_t EntryCrc(std::string_view key, const IndexValue& value) {
  std::array<std::byte, kBaseKeyBytes + 1 + offsetof(IndexValue, crc)> covered;
  KVTIER_CHECK(key.size() <= kBaseKeyBytes + 1);
  std::memcpy(covered.data(), key.data(), key.size());
  std::memcpy(covered.data() + key.size(), &value, offsetof(IndexValue, crc));
  return Crc32c(std::span(covered).first(key.size() + offsetof(IndexValue, crc)));
}

Status Corrupt(const RecordExpectation& expected, std::string_view what) {
  return Status(Code::kDataLoss, "record at " + std::to_string(expected.offset) + " of segment " +
                                     std::to_string(expected.segment) + ": " + std::string(what));
}

}  // namespace

SegmentHeader MakeSegmentHeader(const StoreUuid& uuid, uint32_t number, uint64_t sequence,
                                uint64_t segment_bytes) {
  SegmentHeader header{};
  header.magic = kSegmentMagic;
  header.version = kHeaderVersion;
  header.number = number;
  header.sequence = sequence;
  header.segment_bytes = segment_bytes;
  header.uuid = uuid;
  header.crc = HeaderCrc(header);
  return header;
}

Status CheckSegmentHeader(const SegmentHeader& header, const StoreUuid& uuid, uint32_t number,
                          uint64_t segment_bytes) {
  const std::string name = "segment " + std::to_string(number);
  if (header.magic != kSegmentMagic || header.crc != HeaderCrc(header)) {
    return Status(Code::kDataLoss, name + ": no sound header");
  }
  if (header.version != kHeaderVersion || header.uuid != uuid || header.number != number ||
      header.segment_bytes != segment_bytes) {
    return Status(Code::kFailedPrecondition, name + ": belongs to another store or place");
  }
  return Status::Ok();
}

RecordHeader MakeRecordHeader(const StoreUuid& uuid, const ColdRecord& record, RecordState state) {
  RecordHeader header{};
  header.magic = kRecordMagic;
  header.version = kHeaderVersion;
  header.state = static_cast<uint8_t>(state);
  header.codec = static_cast<uint8_t>(record.codec);
  header.sequence = record.place.epoch;
  header.offset = record.place.offset;
  header.record_bytes = record.place.bytes;
  header.image_bytes = record.image_bytes;
  header.first_position = record.identity.first_position;
  header.segment = record.place.container;
  header.tokens = record.identity.shape.tokens;
  header.flags = record.meta.is_tail ? kRecordFlagTail : 0;
  header.floor = static_cast<uint8_t>(record.meta.floor);
  header.uuid = uuid;
  header.key = record.identity.key.bytes;
  header.name_space = record.identity.name_space.bytes;
  header.parent = record.meta.parent.bytes;
  header.part = static_cast<uint8_t>(record.place.part);
  header.binding = record.binding;
  header.crc = HeaderCrc(header);
  return header;
}

Status CheckRecordHeader(const RecordHeader& header, const RecordExpectation& expected) {
  if (header.magic != kRecordMagic) return Corrupt(expected, "no record here");
  if (header.crc != HeaderCrc(header)) return Corrupt(expected, "header checksum");
  if (header.version != kHeaderVersion) {
    return Status(Code::kUnimplemented, "record version " + std::to_string(header.version));
  }
  if (header.uuid != expected.uuid || header.segment != expected.segment ||
      header.offset != expected.offset) {
    return Corrupt(expected, "written for another place");
  }
  if (header.sequence != expected.sequence) return Corrupt(expected, "of an earlier use of the segment");
  const uint64_t room_bytes = expected.limit_bytes - expected.offset;
  if (header.record_bytes > room_bytes || header.record_bytes % kColdBlockBytes != 0 ||
      header.record_bytes < kColdRecordHeaderBytes ||
      header.image_bytes > header.record_bytes - kColdRecordHeaderBytes) {
    return Corrupt(expected, "sizes");
  }
  if (header.state != static_cast<uint8_t>(RecordState::kLive) &&
      header.state != static_cast<uint8_t>(RecordState::kDead)) {
    return Corrupt(expected, "state");
  }
  if (header.part >= kColdParts) return Corrupt(expected, "part");
  return Status::Ok();
}

bool IsDamagedRecordHeader(const RecordHeader& header, const RecordExpectation& expected) {
  // With all that the place implies put right.
  RecordHeader righted = header;
  righted.magic = kRecordMagic;
  righted.version = kHeaderVersion;
  righted.sequence = expected.sequence;
  righted.offset = expected.offset;
  righted.segment = expected.segment;
  righted.uuid = expected.uuid;
  const bool names_place = std::memcmp(&righted, &header, sizeof(header)) == 0;
  const bool sound = header.crc == HeaderCrc(header);
  if (names_place) return sound || header.crc != 0;
  if (header.crc == HeaderCrc(righted)) return true;
  return sound && header.magic == kRecordMagic && header.version == kHeaderVersion &&
         header.uuid == expected.uuid &&
         (header.offset != expected.offset || header.segment != expected.segment);
}

ColdRecord RecordOfHeader(const RecordHeader& header) {
  ColdRecord record;
  record.identity.key.bytes = header.key;
  record.identity.name_space.bytes = header.name_space;
  record.identity.first_position = header.first_position;
  record.identity.shape.tokens = header.tokens;
  record.meta.parent.bytes = header.parent;
  record.meta.floor = static_cast<Precision>(header.floor);
  record.meta.is_tail = (header.flags & kRecordFlagTail) != 0;
  record.place.part = static_cast<ColdPart>(header.part);
  record.place.container = header.segment;
  record.place.offset = header.offset;
  record.place.bytes = header.record_bytes;
  record.place.epoch = header.sequence;
  record.codec = static_cast<CodecId>(header.codec);
  record.image_bytes = header.image_bytes;
  return record;
}

std::string EncodeIndexKey(const NamespaceDigest& name_space, const Key& key, ColdPart part) {
  std::string encoded(1, kEntryPrefix);
  encoded += name_space.AsStringView();
  encoded += key.AsStringView();
  if (part != ColdPart::kBase) encoded += static_cast<char>(part);
  return encoded;
}

std::string EncodeIndexKey(const ColdRecord& record) {
  return EncodeIndexKey(record.identity.name_space, record.identity.key, record.place.part);
}

std::string EncodeIndexValue(const ColdRecord& record) {
  const BlockShape& shape = record.identity.shape;
  IndexValue value{};
  value.version = kIndexValueVersion;
  value.codec = static_cast<uint8_t>(record.codec);
  value.floor = static_cast<uint8_t>(record.meta.floor);
  value.flags = record.meta.is_tail ? kRecordFlagTail : 0;
  value.segment = record.place.container;
  value.offset = record.place.offset;
  value.record_bytes = record.place.bytes;
  value.sequence = record.place.epoch;
  value.image_bytes = record.image_bytes;
  value.first_position = record.identity.first_position;
  value.layers = shape.layers;
  value.kv_heads = shape.kv_heads;
  value.k_dim = shape.k_dim;
  value.v_dim = shape.v_dim;
  value.tokens = shape.tokens;
  value.dtype = static_cast<uint8_t>(shape.dtype);
  value.nraw = shape.nraw;
  value.nb = shape.nb;
  value.k_error = record.k_error;
  value.v_error = record.v_error;
  value.parent = record.meta.parent.bytes;
  value.part = static_cast<uint8_t>(record.place.part);
  value.binding = record.binding;
  value.crc = EntryCrc(EncodeIndexKey(record), value);
  return std::string(reinterpret_cast<const char*>(&value), sizeof(value));
}

Result<ColdRecord> DecodeIndexEntry(std::string_view key, std::string_view encoded) {
  IndexValue value;
  if (key.size() < kBaseKeyBytes || key.size() > kBaseKeyBytes + 1 || key[0] != kEntryPrefix ||
      encoded.size() != sizeof(value)) {
    return Status(Code::kDataLoss, "index entry: size");
  }
  std::memcpy(&value, encoded.data(), sizeof(value));
  const uint8_t part = key.size() == kBaseKeyBytes ? 0 : static_cast<uint8_t>(key[kBaseKeyBytes]);
  if (value.version != kIndexValueVersion) return Status(Code::kDataLoss, "index entry: version");
  if (value.crc != EntryCrc(key, value)) return Status(Code::kDataLoss, "index entry: checksum");
  const bool names_part = part < kColdParts && (part == 0) == (key.size() == kBaseKeyBytes);
  if (!names_part || value.part != part) return Status(Code::kDataLoss, "index entry: part");

  ColdRecord record;
  std::memcpy(record.identity.name_space.bytes.data(), key.data() + 1, 32);
  std::memcpy(record.identity.key.bytes.data(), key.data() + 33, 32);
  record.identity.first_position = value.first_position;
  record.identity.shape = {.layers = value.layers,
                           .kv_heads = value.kv_heads,
                           .k_dim = value.k_dim,
                           .v_dim = value.v_dim,
                           .tokens = value.tokens,
                           .dtype = static_cast<DType>(value.dtype),
                           .nraw = value.nraw,
                           .nb = value.nb};
  record.meta.parent.bytes = value.parent;
  record.meta.floor = static_cast<Precision>(value.floor);
  record.meta.is_tail = (value.flags & kRecordFlagTail) != 0;
  record.place.part = static_cast<ColdPart>(value.part);
  record.place.container = value.segment;
  record.place.offset = value.offset;
  record.place.bytes = value.record_bytes;
  record.place.epoch = value.sequence;
  record.codec = static_cast<CodecId>(value.codec);
  record.image_bytes = value.image_bytes;
  record.k_error = value.k_error;
  record.v_error = value.v_error;
  record.binding = value.binding;
  return record;
}

}  // namespace kvtier
