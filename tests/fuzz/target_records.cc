// A segment of a cold store, in memory, and entries of an index: what a scan, a reader and a recovery make of
// them.
//
// A byte of choices, then pieces: kind, block of the segment, length in two bytes, bytes. A record's header
// can be put in order before it is looked at, so that what stands behind its checksum is reached.
#include <array>
#include <map>

#include "tests/fuzz/cold_blocks.h"
#include "tests/fuzz/input_reader.h"
#include "tests/fuzz/target.h"
#include "tiers/cold_records.h"
#include "tiers/cold_recovery.h"
#include "tiers/cold_scan.h"
#include "tiers/cold_tail.h"

namespace kvtier {
namespace {

constexpr uint32_t kSegment = 5;
constexpr uint64_t kSequence = 77;
constexpr uint64_t kBlocks = 12;
constexpr uint64_t kSegmentBytes = kBlocks * kColdBlockBytes;
constexpr StoreUuid kUuid = {std::byte{0x4b}, std::byte{0x56}};
constexpr size_t kMaxPieces = 16;

enum Choice : uint8_t { kHeadersOnly = 1, kShortFile = 2 };
/// Of a piece. What is put in order is what a scan compares with the place.
enum Repair : uint8_t { kPlace = 1, kHeaderCrc = 2, kPayloadCrc = 4, kBinding = 8, kEntry = 16 };

class MemorySegment final : public SegmentBytes {
 public:
  explicit MemorySegment(std::span<const std::byte> bytes) : bytes_(bytes) {}
  Result<std::span<const std::byte>> Read(uint64_t offset, uint64_t bytes, AlignedBuffer& buffer) override {
    if (offset > bytes_.size() || bytes > bytes_.size() - offset)
      return Status(Code::kUnavailable, "beyond the file");
    KVTIER_ASSIGN(const std::span<std::byte> memory, buffer.Reserve(bytes));
    std::copy_n(bytes_.begin() + static_cast<ptrdiff_t>(offset), bytes, memory.begin());
    return std::span<const std::byte>(memory.first(bytes));
  }

 private:
  std::span<const std::byte> bytes_;
};

void PutInOrder(std::span<std::byte> record, uint64_t offset, uint8_t repair) {
  RecordHeader header;
  std::memcpy(&header, record.data(), sizeof(header));
  if ((repair & kPlace) != 0) {
    header.magic = kRecordMagic;
    header.version = 2;
    header.sequence = kSequence;
    header.offset = offset;
    header.segment = kSegment;
    header.uuid = kUuid;
  }
  const std::span<std::byte> payload = record.subspan(sizeof(header));
  const std::span<std::byte> image = payload.first(std::min<uint64_t>(header.image_bytes, payload.size()));
  if ((repair & kPayloadCrc) != 0) RepairPayloadHeader(image);
  if ((repair & kBinding) != 0 && ParseImage(image).ok()) header.binding = BindingOf(image);
  std::memcpy(record.data(), &header, sizeof(header));
  if ((repair & kHeaderCrc) != 0) RepairRecordCrc(record);
}

/// A sound entry is told again in the same bytes; with a right checksum whatever it says.
bool ReadEntry(std::span<const std::byte> bytes, uint8_t repair) {
  constexpr size_t kValueBytes = sizeof(IndexValue);
  if (bytes.size() < kValueBytes) return DecodeIndexEntry(AsText(bytes), "").ok();
  const std::string key(AsText(bytes.first(bytes.size() - kValueBytes)));
  std::string value(AsText(bytes.last(kValueBytes)));
  if ((repair & kHeaderCrc) != 0) {
    const std::string covered = key + value.substr(0, offsetof(IndexValue, crc));
    const uint32_t crc = Crc32c(std::as_bytes(std::span(covered)));
    std::memcpy(value.data() + offsetof(IndexValue, crc), &crc, sizeof(crc));
  }
  const Result<ColdRecord> record = DecodeIndexEntry(key, value);
  if (!record.ok()) return false;
  KVTIER_CHECK(EncodeIndexKey(*record) == key);
  const Result<ColdRecord> again = DecodeIndexEntry(key, EncodeIndexValue(*record));
  KVTIER_CHECK(again.ok() && again->identity == record->identity && again->place == record->place);
  return true;
}

std::span<const std::byte> PayloadOf(std::span<const std::byte> segment, const ColdRecord& record) {
  return segment.subspan(record.place.offset + kColdRecordHeaderBytes, record.image_bytes);
}

void CheckFound(std::span<const std::byte> segment, const ColdScanner::Outcome& found, bool images) {
  uint64_t end = 0;
  for (const ColdRecord& record : found.live) {
    KVTIER_CHECK(record.place.offset >= std::max(end, kColdSegmentHeaderBytes));
    end = record.place.offset + record.place.bytes;
    KVTIER_CHECK(end <= found.used_bytes && found.used_bytes <= segment.size());
    // What a reader of the place does.
    const auto whole = segment.subspan(record.place.offset, record.place.bytes);
    const auto payload = ImageOfRecord(kUuid, record.place, whole);
    KVTIER_CHECK(payload.ok() && payload->size() == record.image_bytes);
    if (!images) continue;
    const bool base = record.place.part == ColdPart::kBase;
    KVTIER_CHECK(base ? VerifyImage(ParseImage(*payload).value()).ok()
                      : VerifyTail(ParseTail(*payload).value()).ok());
  }
}

/// Bases with the tails that recovery gives them: what a reader puts together is whole, or it is refused.
void JoinFound(std::span<const std::byte> segment, const std::vector<ColdRecord>& live) {
  std::map<std::string, ColdRecord> newest;
  for (const ColdRecord& record : live) newest.insert_or_assign(EncodeIndexKey(record), record);
  std::vector<ColdRecord> records;
  for (const auto& [key, record] : newest) records.push_back(record);
  ColdRecovery recovery;
  const size_t orphans = JoinTails(records, recovery).size();
  KVTIER_CHECK(orphans == recovery.orphan_tails && orphans + recovery.blocks.size() <= records.size());
  for (const RecoveredBlock& block : recovery.blocks) {
    const ImageView base = ParseImage(PayloadOf(segment, block)).value();
    if (block.k_tail.place.bytes == 0) continue;
    const auto tail_at = [&](const Place& place) {
      for (const ColdRecord& record : records)
        if (record.place == place) return ParseTail(PayloadOf(segment, record)).value();
      KVTIER_CHECK(false);
    };
    const TailView k_tail = tail_at(block.k_tail.place);
    std::optional<TailView> v_tail;
    if (block.v_tail.place.bytes > 0) v_tail = tail_at(block.v_tail.place);
    if (!MatchTail(k_tail, base).ok() || (v_tail && !MatchTail(*v_tail, base).ok())) continue;
    AlignedBuffer memory;
    const uint64_t room = 2 * (base.bytes.size() + k_tail.bytes.size()) + kColdBlockBytes;
    const std::span<std::byte> out = memory.Reserve(room).value();
    const JoinedImage joined = JoinImage(base, k_tail, v_tail ? &*v_tail : nullptr, out);
    if (!joined.image.status.ok()) continue;
    KVTIER_CHECK(VerifyImage(ParseImage(out.first(joined.image.image_bytes)).value()).ok());
  }
}

void PutPiece(InputWriter& input, uint8_t repair, uint8_t block, std::span<const std::byte> bytes) {
  input.Put(repair).Put(block).Put16(static_cast<uint16_t>(bytes.size())).PutBytes(bytes);
}

void PutRecord(InputWriter& input, uint8_t repair, uint64_t block, const ColdBlock& from, ColdPart part,
               RecordState state = RecordState::kLive) {
  Place place;
  place.part = part;
  place.container = kSegment;
  place.offset = block * kColdBlockBytes;
  place.bytes = kColdBlockBytes;
  place.epoch = kSequence;
  const RecordHeader header = MakeRecordHeader(kUuid, RecordOf(from, place), state);
  std::vector<std::byte> bytes(sizeof(header));
  std::memcpy(bytes.data(), &header, sizeof(header));
  const std::vector<std::byte>& payload = from.parts[IndexOf(part)];
  bytes.insert(bytes.end(), payload.begin(), payload.end());
  PutPiece(input, repair, static_cast<uint8_t>(block - 1), bytes);
}

}  // namespace

bool RunRecords(std::span<const std::byte> bytes) {
  InputReader input(bytes);
  const uint8_t choices = input.Next();
  std::vector<std::byte> segment(kSegmentBytes);
  bool sound_entry = false;
  for (size_t piece = 0; piece < kMaxPieces && !input.empty(); ++piece) {
    const uint8_t repair = input.Next();
    const uint64_t offset = (1 + input.Next() % (kBlocks - 1)) * kColdBlockBytes;
    const uint16_t length = input.Next16();
    const std::span<const std::byte> content = input.Take(length);
    if ((repair & kEntry) != 0) {
      sound_entry |= ReadEntry(content, repair);
      continue;
    }
    const std::span<std::byte> record = std::span(segment).subspan(offset);
    std::copy_n(content.begin(), std::min(content.size(), record.size()), record.begin());
    PutInOrder(record, offset, repair);
  }
  const uint64_t file_bytes = (choices & kShortFile) != 0 ? kSegmentBytes - 1000 : kSegmentBytes;
  const bool images = (choices & kHeadersOnly) == 0;
  const std::span<const std::byte> all = segment;
  MemorySegment file(all.first(file_bytes));
  ColdScanner::Outcome found;
  ColdScanner(kUuid, images ? ScanDepth::kImages : ScanDepth::kHeaders)
      .Scan(file, {.number = kSegment, .sequence = kSequence, .file_bytes = file_bytes},
            {kColdSegmentHeaderBytes, kSegmentBytes}, found);
  CheckFound(segment, found, images);
  JoinFound(segment, found.live);
  return sound_entry || !found.live.empty();
}

std::vector<FuzzTarget::Bytes> RecordsSeeds() {
  std::vector<FuzzTarget::Bytes> seeds;
  for (const int repairs : {0, kPlace | kHeaderCrc, kPlace | kHeaderCrc | kPayloadCrc | kBinding}) {
    const auto repair = static_cast<uint8_t>(repairs);
    InputWriter input;
    input.Put(0);
    for (int part = 0; part < kColdParts; ++part)
      PutRecord(input, repair, 1 + static_cast<uint64_t>(part), ColdBlockOf(1), static_cast<ColdPart>(part));
    PutRecord(input, repair, 6, ColdBlockOf(2), ColdPart::kBase, RecordState::kDead);
    seeds.push_back(input.Take());
  }
  InputWriter input;
  input.Put(kHeadersOnly | kShortFile);
  PutRecord(input, kHeaderCrc, 1, ColdBlockOf(2), ColdPart::kBase);
  PutRecord(input, kHeaderCrc, 2, ColdBlockOf(2), ColdPart::kBase);
  for (const ColdPart part : {ColdPart::kBase, ColdPart::kVTail}) {
    const ColdRecord record = RecordOf(ColdBlockOf(3), {.tier = TierId{0},
                                                        .part = part,
                                                        .container = kSegment,
                                                        .slot = 0,
                                                        .offset = 8192,
                                                        .bytes = 4096,
                                                        .epoch = kSequence});
    const std::string entry = EncodeIndexKey(record) + EncodeIndexValue(record);
    PutPiece(input, kEntry | kHeaderCrc, 0, std::as_bytes(std::span(entry)));
  }
  seeds.push_back(input.Take());
  return seeds;
}

}  // namespace kvtier
