#include "tiers/cold_tail.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>

#include "kernels/numerics.h"
#include "tiers/base/check.h"
#include "tiers/image_header.h"

namespace kvtier {
namespace {

Status Corrupt(std::string what) {
  return Status(Code::kDataLoss, "tail: " + std::move(what));
}

Region RegionOf(ColdPart part) {
  KVTIER_CHECK(part != ColdPart::kBase);
  return part == ColdPart::kKTail ? Region::kKTail : Region::kVTail;
}
uint8_t PlaneOf(ColdPart part) {
  return part == ColdPart::kKTail ? kPlaneKLow : kPlaneVLow;
}

uint64_t TableEnd(size_t layers) {
  return AlignUp(kImageHeaderBytes + layers * sizeof(TailEntry), kImageAlign);
}

/// Where the planes of each layer lie; returns the bytes of the whole.
uint64_t LayOut(const BlockShape& shape, ColdPart part, std::span<const TailEntry> table,
                std::vector<ImageLayout::Part>& parts) {
  uint64_t offset = TableEnd(table.size());
  parts.clear();
  for (const TailEntry& entry : table) {
    const uint64_t bytes = PartBytes(RungOf(part).id, shape, entry.planes, RegionOf(part));
    parts.push_back({.offset = offset, .bytes = bytes});
    offset += bytes;
  }
  return offset;
}

uint32_t HeaderCrc(const ImageHeader& header, std::span<const TailEntry> table) {
  const uint32_t crc = Crc32c(std::as_bytes(std::span(&header, 1)).first(offsetof(ImageHeader, header_crc)));
  return ContinueCrc32c(crc, std::as_bytes(table));
}

ImageHeader MakeHeader(const BlockIdentity& identity, ColdPart part, uint64_t bytes) {
  ImageHeader header = HeaderOf(identity, identity.shape, RungOf(part).id);
  header.magic = kTailMagic;
  header.image_bytes = bytes;
  return header;
}

/// Every field follows from what the header says of the block: so it must be what would be written.
Status CheckHeader(const ImageHeader& header, const TailView& tail, uint64_t bytes) {
  if (!RungOf(tail.part).supports(tail.identity.shape)) return Corrupt("impossible shape");
  ImageHeader expected = MakeHeader(tail.identity, tail.part, bytes);
  expected.header_crc = header.header_crc;
  if (std::memcmp(&header, &expected, sizeof(header)) != 0) return Corrupt("header fields");
  return Status::Ok();
}

Status CheckTable(const TailView& tail) {
  for (const TailEntry& entry : tail.table) {
    const bool is_raw = entry.planes == kPlaneRaw;
    if (!is_raw && entry.planes != PlaneOf(tail.part)) return Corrupt("impossible planes");
    if (is_raw && entry.part_crc != 0) return Corrupt("a checksum of an absent part");
    if (entry.zero != 0) return Corrupt("reserved table bytes are not zero");
  }
  return Status::Ok();
}

}  // namespace

const Codec& RungOf(ColdPart part) {
  constexpr CodecId kRungs[kColdParts] = {CodecId::kKv2p, CodecId::kKv42, CodecId::kKv4p};
  return *FindCodec(kRungs[IndexOf(part)]);
}

bool HasTail(const ImageView& image, ColdPart part) {
  const uint8_t planes = RungOf(part).planes;
  if (!IsPlaneFamily(image.codec->id)) return false;
  bool any = false;
  for (const LayerEntry& entry : image.table) {
    if (entry.planes == kPlaneRaw) continue;
    if ((entry.planes & planes) != planes) return false;
    any = true;
  }
  return any;
}

uint64_t PlainTailBytes(const BlockShape& shape, ColdPart part) {
  return TableEnd(shape.layers) +
         shape.layers * PartBytes(RungOf(part).id, shape, PlaneOf(part), RegionOf(part));
}

ColdRecord TailRecord(const ColdRecord& base, const Place& place, uint64_t tail_bytes, float error) {
  ColdRecord record = base;
  record.place = place;
  record.codec = RungOf(place.part).id;
  record.image_bytes = tail_bytes;
  record.k_error = place.part == ColdPart::kKTail ? error : 0;
  record.v_error = place.part == ColdPart::kVTail ? error : 0;
  return record;
}

BuiltImage WriteTail(const ImageView& image, ColdPart part, std::span<std::byte> out) {
  KVTIER_CHECK(HasTail(image, part));
  const int region = static_cast<int>(RegionOf(part));
  std::vector<TailEntry> table(image.table.size());
  for (size_t layer = 0; layer < table.size(); ++layer) {
    const LayerEntry& from = image.table[layer];
    table[layer].planes = from.planes == kPlaneRaw ? kPlaneRaw : PlaneOf(part);
    table[layer].zero = 0;
    table[layer].error = from.error[part == ColdPart::kKTail ? 0 : 2];
    table[layer].part_crc = from.crc[region];
    table[layer].base_crc = from.crc[static_cast<int>(Region::kBase)];
  }
  std::vector<ImageLayout::Part> parts;
  const uint64_t bytes = LayOut(image.identity.shape, part, table, parts);
  if (bytes > out.size()) return {Status(Code::kOutOfRange, "the tail does not fit"), bytes};
  for (size_t layer = 0; layer < table.size(); ++layer) {
    const std::span<std::byte> to = out.subspan(parts[layer].offset, parts[layer].bytes);
    const std::span<const std::byte> from = image.Parts(static_cast<uint16_t>(layer)).part[region];
    if (CopyAndCrc32c(from, to) != table[layer].part_crc) {
      return {Corrupt("checksum of layer " + std::to_string(layer) + " in the image"), 0};
    }
  }
  ImageHeader header = MakeHeader(image.identity, part, bytes);
  header.header_crc = HeaderCrc(header, table);
  std::memcpy(out.data(), &header, sizeof(header));
  std::memcpy(out.data() + sizeof(header), table.data(), table.size() * sizeof(TailEntry));
  const uint64_t written = sizeof(header) + table.size() * sizeof(TailEntry);
  std::memset(out.data() + written, 0, TableEnd(table.size()) - written);
  return {Status::Ok(), bytes};
}

Result<TailView> ParseTail(std::span<const std::byte> bytes) {
  if (bytes.size() < kImageHeaderBytes) return Corrupt("shorter than its header");
  ImageHeader header;
  std::memcpy(&header, bytes.data(), sizeof(header));
  if (header.magic != kTailMagic) return Corrupt("foreign bytes");
  if (header.layers == 0 || header.layers > kMaxLayers) return Corrupt("impossible number of layers");
  const uint64_t written = kImageHeaderBytes + header.layers * sizeof(TailEntry);
  if (bytes.size() < TableEnd(header.layers)) return Corrupt("shorter than its table");
  TailView tail;
  tail.table.resize(header.layers);
  std::memcpy(tail.table.data(), bytes.data() + kImageHeaderBytes, header.layers * sizeof(TailEntry));
  if (HeaderCrc(header, tail.table) != header.header_crc) return Corrupt("header checksum");
  if (header.version != kImageVersion) {
    return Status(Code::kUnimplemented, "tail: version " + std::to_string(header.version));
  }
  if (header.dtype < static_cast<uint8_t>(DType::kFp16) ||
      header.dtype > static_cast<uint8_t>(DType::kE5m2)) {
    return Corrupt("impossible dtype");
  }
  const auto codec = static_cast<CodecId>(header.codec);
  if (codec != CodecId::kKv42 && codec != CodecId::kKv4p) return Corrupt("impossible codec");
  tail.part = codec == CodecId::kKv42 ? ColdPart::kKTail : ColdPart::kVTail;
  tail.identity = IdentityOf(header);
  KVTIER_TRY(CheckTable(tail));
  KVTIER_TRY(CheckHeader(header, tail, header.image_bytes));  // before sizes are taken from the shape
  if (LayOut(tail.identity.shape, tail.part, tail.table, tail.parts) != header.image_bytes) {
    return Corrupt("sizes do not follow from the shape");
  }
  if (bytes.size() < header.image_bytes) return Corrupt("truncated");
  const std::span<const std::byte> padding = bytes.subspan(written, TableEnd(header.layers) - written);
  if (std::ranges::any_of(padding, [](std::byte b) { return b != std::byte{0}; })) {
    return Corrupt("padding of the table is not zero");
  }
  tail.bytes = bytes.first(header.image_bytes);
  return tail;
}

Status VerifyTailLayer(const TailView& tail, size_t layer) {
  if (Crc32c(tail.Part(layer)) == tail.table[layer].part_crc) return Status::Ok();
  return Corrupt("checksum of layer " + std::to_string(layer));
}

Status VerifyTail(const TailView& tail) {
  for (size_t layer = 0; layer < tail.table.size(); ++layer) KVTIER_TRY(VerifyTailLayer(tail, layer));
  return Status::Ok();
}

Status MatchTail(const TailView& tail, const ImageView& base) {
  if (base.codec->id != CodecId::kKv2p || tail.identity != base.identity) {
    return Corrupt("of another block than its base");
  }
  for (size_t layer = 0; layer < tail.table.size(); ++layer) {
    const LayerEntry& own = base.table[layer];
    const TailEntry& entry = tail.table[layer];
    const bool same_kind = own.planes == kPlaneRaw
                               ? entry.planes == kPlaneRaw
                               : own.planes == EncodedPlanes(*base.codec, base.identity.shape) &&
                                     entry.planes == PlaneOf(tail.part);
    if (!same_kind || entry.base_crc != own.crc[static_cast<int>(Region::kBase)]) {
      return Corrupt("of another encoding than its base");
    }
  }
  return Status::Ok();
}

float TailView::Error() const {
  double squares = 0;
  for (const TailEntry& entry : table) {
    const double error = Fp32FromFp16(entry.error);
    squares += error * error;
  }
  return static_cast<float>(std::sqrt(squares / static_cast<double>(table.size())));
}

uint32_t BindingOf(std::span<const std::byte> payload) {
  ImageHeader header;
  std::memcpy(&header, payload.data(), sizeof(header));
  const bool is_tail = header.magic == kTailMagic;
  const uint64_t entry_bytes = is_tail ? sizeof(TailEntry) : sizeof(LayerEntry);
  const uint64_t crc_offset = is_tail ? offsetof(TailEntry, base_crc) : offsetof(LayerEntry, crc);
  KVTIER_CHECK(payload.size() >= kImageHeaderBytes + header.layers * entry_bytes);
  uint32_t binding = 0;
  for (uint64_t layer = 0; layer < header.layers; ++layer) {
    binding = ContinueCrc32c(
        binding, payload.subspan(kImageHeaderBytes + layer * entry_bytes + crc_offset, sizeof(uint32_t)));
  }
  return binding;
}

}  // namespace kvtier
