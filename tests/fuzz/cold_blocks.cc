#include "tests/fuzz/cold_blocks.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <utility>

#include "tests/support/blocks.h"
#include "tests/support/fixture.h"
#include "tests/support/paths.h"
#include "tiers/cold_tail.h"

namespace kvtier {
namespace {

constexpr uint16_t kTokens = 32;

ColdBlock MakeColdBlock(uint64_t number) {
  static const Fixture fixture = Fixture::Load(TestDataFolder() + "/smollm2-135m").value();
  BlockShape shape = fixture.Shape(kTokens, 1, 32);
  ColdBlock block;
  const std::vector<std::byte> raw = fixture.RawBlock(static_cast<uint32_t>(number), kTokens);
  // One layer of one head: the first bytes of each kind.
  shape.layers = 1;
  shape.kv_heads = 1;
  const std::vector<std::byte> one(raw.begin(), raw.begin() + static_cast<ptrdiff_t>(RawBlockBytes(shape)));
  block.identity = MakeIdentity(static_cast<uint32_t>(number), shape);
  block.identity.name_space = MakeIdentity(1, shape).name_space;
  block.meta = {.parent = MakeIdentity(static_cast<uint32_t>(number - 1), shape).key,
                .floor = Precision::kInt2,
                .is_tail = false};
  const OwnedImage int4 = EncodeOwned(*FindCodec(CodecId::kKv4p), block.identity, one).value();
  const OwnedImage int2 = RequantizeOwned(int4.bytes, *FindCodec(CodecId::kKv2p), block.identity).value();
  block.parts[0] = CopyOf(int2.bytes);
  const ImageView image = ParseImage(int4.bytes).value();
  for (const ColdPart part : kColdTails) {
    AlignedBuffer memory;
    const std::span<std::byte> out = memory.Reserve(PlainTailBytes(shape, part)).value();
    const BuiltImage tail = WriteTail(image, part, out);
    KVTIER_CHECK(tail.status.ok());
    block.parts[IndexOf(part)] = CopyOf(out.first(tail.image_bytes));
  }
  for (const auto& bytes : block.parts) KVTIER_CHECK(ColdRecordBytes(bytes.size()) == kColdBlockBytes);
  return block;
}

/// The bytes at `place`, when they check out.
std::optional<std::vector<std::byte>> ReadSound(ColdStore& store, BlockIo& io, const Place& place) {
  AlignedBuffer bounce;
  const Result<std::span<const std::byte>> bytes = store.Read(place, io, bounce);
  if (!bytes.ok()) return std::nullopt;
  if (place.part == ColdPart::kBase) {
    const Result<ImageView> image = ParseImage(*bytes);
    if (!image.ok() || !VerifyImage(*image).ok()) return std::nullopt;
    return CopyOf(image->bytes);
  }
  const Result<TailView> tail = ParseTail(*bytes);
  if (!tail.ok() || !VerifyTail(*tail).ok()) return std::nullopt;
  return CopyOf(tail->bytes);
}

template <typename Header>
void RepairCrc(std::span<std::byte> header) {
  if (header.size() < sizeof(Header)) return;
  const uint32_t crc = Crc32c(header.first(offsetof(Header, crc)));
  std::memcpy(header.data() + offsetof(Header, crc), &crc, sizeof(crc));
}

}  // namespace

const ColdBlock& ColdBlockOf(uint64_t number) {
  static const std::array<ColdBlock, kColdBlocks> blocks = {MakeColdBlock(1), MakeColdBlock(2),
                                                            MakeColdBlock(3)};
  return blocks[number - 1];
}

ColdRecord RecordOf(const ColdBlock& block, const Place& place) {
  ColdRecord record;
  record.identity = block.identity;
  record.meta = block.meta;
  record.place = place;
  const std::vector<std::byte>& payload = block.parts[IndexOf(place.part)];
  record.codec = RungOf(place.part).id;
  record.image_bytes = payload.size();
  record.binding = BindingOf(payload);
  return record;
}

void FillColdStore(ColdStore& store, BlockIo& io, uint64_t first_sequence) {
  KVTIER_CHECK(store.PutModel({.name_space = ColdBlockOf(1).identity.name_space, .fields = "fields"}).ok());
  for (uint64_t number = 1; number <= kColdBlocks; ++number) {
    const ColdBlock& block = ColdBlockOf(number);
    for (int part = kColdParts - 1; part >= 0; --part) {
      Place place;
      place.tier = TierId{2};
      place.part = static_cast<ColdPart>(part);
      place.container = static_cast<uint32_t>(part);
      place.offset = number * kColdBlockBytes;
      place.bytes = kColdBlockBytes;
      place.epoch = first_sequence + static_cast<uint64_t>(part);
      const std::vector<std::byte>& payload = block.parts[static_cast<size_t>(part)];
      AlignedBuffer bounce;
      const std::span<std::byte> built = store.BeginWrite(place, bounce).value();
      std::copy(payload.begin(), payload.end(), built.begin());
      KVTIER_CHECK(store.FinishWrite(place, io, built, payload.size(), block.meta).ok());
      const ColdRecord record = RecordOf(block, place);
      KVTIER_CHECK(store.Commit({&record, 1}, io).ok());
    }
  }
}

void CheckFoundBlocks(ColdStore& store, BlockIo& io, const ColdRecovery& found, const FoundRules& rules) {
  std::array<bool, kColdBlocks> seen{};
  for (const RecoveredBlock& block : found.blocks) {
    uint64_t number = 1;
    while (number <= kColdBlocks && ColdBlockOf(number).identity.key != block.identity.key) ++number;
    KVTIER_CHECK(number <= kColdBlocks || rules.forged);
    for (const Place& place : {block.place, block.k_tail.place, block.v_tail.place}) {
      if (place.bytes == 0) continue;
      const std::optional<std::vector<std::byte>> bytes = ReadSound(store, io, place);
      if (!bytes || rules.forged) continue;
      KVTIER_CHECK(*bytes == ColdBlockOf(number).parts[IndexOf(place.part)]);
      if (place.part == ColdPart::kBase) {
        KVTIER_CHECK(!std::exchange(seen[number - 1], true));  // once
        KVTIER_CHECK(block.meta.parent == ColdBlockOf(number).meta.parent);
      }
    }
  }
  for (size_t i = 0; i < kColdBlocks; ++i) KVTIER_CHECK(seen[i] || !rules.must_be_there[i]);
}

void RepairPayloadHeader(std::span<std::byte> payload) {
  if (payload.size() < kImageHeaderBytes) return;
  ImageHeader header;
  std::memcpy(&header, payload.data(), sizeof(header));
  const size_t entry_bytes = header.magic == kTailMagic ? sizeof(TailEntry) : kLayerEntryBytes;
  const uint64_t table_bytes = entry_bytes * header.layers;
  if (payload.size() < kImageHeaderBytes + table_bytes) return;
  const uint32_t crc = Crc32c(payload.first(offsetof(ImageHeader, header_crc)));
  header.header_crc = ContinueCrc32c(crc, payload.subspan(kImageHeaderBytes, table_bytes));
  std::memcpy(payload.data(), &header, sizeof(header));
}

void RepairRecordCrc(std::span<std::byte> header) {
  RepairCrc<RecordHeader>(header);
}

void RepairSegmentCrc(std::span<std::byte> header) {
  RepairCrc<SegmentHeader>(header);
}

}  // namespace kvtier
