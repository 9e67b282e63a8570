#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "tiers/cold_store.h"

namespace kvtier {

// The bytes of a cold store, exactly as tiers/FORMAT.md writes them down. Little endian, no implicit padding.
static_assert(std::endian::native == std::endian::little);

inline constexpr uint32_t kColdFormatVersion = 2;
inline constexpr uint32_t kSegmentMagic = 0x3147534B;  // "KSG1"
inline constexpr uint32_t kRecordMagic = 0x3143524B;   // "KRC1"
inline constexpr uint64_t kColdBlockBytes =
    4096;  ///< unit of every offset, length and memory address of the store's I/O

/// 128 random bits made with the store. They stand in every segment and record header, and no client ever
/// sees them: bytes that a client stores cannot pass for a record when a scan looks for one.
using StoreUuid = std::array<std::byte, 16>;

/// First block of a segment file.
struct SegmentHeader {
  uint32_t magic;
  uint16_t version;
  uint16_t zero0;
  uint32_t number;
  uint32_t zero1;
  uint64_t sequence;
  uint64_t segment_bytes;
  StoreUuid uuid;
  std::array<std::byte, 4044> zero2;
  uint32_t crc;  ///< over bytes 0..4091
};
static_assert(sizeof(SegmentHeader) == kColdBlockBytes && sizeof(SegmentHeader) == kColdSegmentHeaderBytes);

enum class RecordState : uint8_t { kLive = 1, kDead = 2 };

inline constexpr uint8_t kRecordFlagTail = 1;

/// First bytes of a record; the image follows at once.
struct RecordHeader {
  uint32_t magic;
  uint16_t version;
  uint8_t state;
  uint8_t codec;
  uint64_t sequence;      ///< of the segment when the record was written
  uint64_t offset;        ///< where the record starts, so that a misdirected write shows
  uint64_t record_bytes;  ///< up to the next record
  uint64_t image_bytes;
  uint64_t first_position;
  uint32_t segment;
  uint16_t tokens;
  uint8_t flags;
  uint8_t floor;
  StoreUuid uuid;
  std::array<std::byte, 32> key;
  std::array<std::byte, 32> name_space;
  std::array<std::byte, 32> parent;
  uint8_t part;
  std::array<uint8_t, 3> zero0;
  uint32_t binding;
  std::array<std::byte, 76> zero1;
  uint32_t crc;  ///< over bytes 0..251
};
static_assert(sizeof(RecordHeader) == kColdRecordHeaderBytes);

/// Value of an index entry; its key is 'b', namespace, block key, and for a tail one byte more: its part.
struct IndexValue {
  uint8_t version;
  uint8_t codec;
  uint8_t floor;
  uint8_t flags;
  uint32_t segment;
  uint64_t offset;
  uint64_t record_bytes;
  uint64_t sequence;
  uint64_t image_bytes;
  uint64_t first_position;
  uint16_t layers, kv_heads, k_dim, v_dim, tokens;
  uint8_t dtype, nraw, nb;
  uint8_t part;
  std::array<uint8_t, 2> zero;
  float k_error, v_error;
  std::array<std::byte, 32> parent;
  uint32_t binding;
  uint32_t crc;  ///< over the entry's key and then bytes 0..107 of the value
};
static_assert(sizeof(IndexValue) == 112 && offsetof(IndexValue, parent) == 72);

/// What a record must say to be the one at `place`.
struct RecordExpectation {
  StoreUuid uuid;
  uint32_t segment = 0;
  uint64_t sequence = 0;
  uint64_t offset = 0;
  uint64_t limit_bytes = 0;  ///< the record must end at or before this offset of the segment
};

SegmentHeader MakeSegmentHeader(const StoreUuid& uuid, uint32_t number, uint64_t sequence,
                                uint64_t segment_bytes);
/// Errors: kDataLoss (not a header, or damaged), kFailedPrecondition (a sound header of another store or
/// segment).
Status CheckSegmentHeader(const SegmentHeader& header, const StoreUuid& uuid, uint32_t number,
                          uint64_t segment_bytes);

/// The header of `record` with its crc.
RecordHeader MakeRecordHeader(const StoreUuid& uuid, const ColdRecord& record, RecordState state);
/// Magic, version, crc, part, and everything that the place implies. Live or dead. Errors: kDataLoss;
/// kUnimplemented for a newer version.
Status CheckRecordHeader(const RecordHeader& header, const RecordExpectation& expected);
/// Of what CheckRecordHeader refuses: whether a record stood here in this use of the segment and its header
/// is damaged since, or another place's was written over it. False of a record of an earlier use, and of one
/// whose header was never written to its end, where zeros stood before.
bool IsDamagedRecordHeader(const RecordHeader& header, const RecordExpectation& expected);

/// What the header alone says: of the shape only the tokens, no errors.
ColdRecord RecordOfHeader(const RecordHeader& header);

std::string EncodeIndexKey(const NamespaceDigest& name_space, const Key& key, ColdPart part);
std::string EncodeIndexKey(const ColdRecord& record);
std::string EncodeIndexValue(const ColdRecord& record);
/// Errors: kDataLoss.
Result<ColdRecord> DecodeIndexEntry(std::string_view key, std::string_view value);

}  // namespace kvtier
