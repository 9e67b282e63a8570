#include "tiers/image.h"

#include <cstring>
#include <string>

#include "kernels/numerics.h"
#include "tiers/image_header.h"
#include "tiers/place.h"

namespace kvtier {
namespace {

Status Corrupt(std::string what) {
  return Status(Code::kDataLoss, "image: " + std::move(what));
}
Status Unsupported(std::string what) {
  return Status(Code::kUnimplemented, "image: " + std::move(what));
}

bool AllZero(std::span<const std::byte> bytes) {
  for (std::byte b : bytes) {
    if (b != std::byte{0}) return false;
  }
  return true;
}

/// What this version does not know is left alone: first of all checks, so that a newer image is not taken for
/// a broken one.
Status CheckKnown(const ImageHeader& header) {
  if (header.magic != kImageMagic) return Corrupt("foreign bytes");
  if (header.version != kImageVersion) return Unsupported("version " + std::to_string(header.version));
  if (FindCodec(static_cast<CodecId>(header.codec)) == nullptr) {
    return Unsupported("codec " + std::to_string(header.codec));
  }
  if (header.dtype < static_cast<uint8_t>(DType::kFp16) ||
      header.dtype > static_cast<uint8_t>(DType::kE5m2)) {
    return Unsupported("dtype " + std::to_string(header.dtype));
  }
  if ((header.flags & ~kImageFlagRotatedV) != 0) return Unsupported("flags " + std::to_string(header.flags));
  return Status::Ok();
}

Status CheckHeader(const ImageHeader& header, const Codec& codec, const BlockShape& shape) {
  const uint32_t flags = IsPlaneFamily(codec.id) ? kImageFlagRotatedV : 0;
  if (header.flags != flags) return Corrupt("flags do not fit the codec");
  if (header.content_generation != 0 || !AllZero(header.zero))
    return Corrupt("reserved header bytes are not zero");
  if (StoredShape(codec.id, shape) != shape || !codec.supports(shape)) return Corrupt("impossible shape");
  return Status::Ok();
}

/// Planes of the rungs that a layer of a plane-family image may have: at least those of the image.
bool PlanesFit(const Codec& codec, const BlockShape& shape, uint8_t planes) {
  if (IsRawCodec(codec.id)) return planes == 0;
  if (planes == kPlaneRaw) return true;
  if (codec.id == CodecId::kKv8) return planes == 0;
  for (const Codec* rung : AllCodecs()) {
    if (IsPlaneFamily(rung->id) && rung->precision >= codec.precision &&
        planes == EncodedPlanes(*rung, shape)) {
      return true;
    }
  }
  return false;
}

Status CheckEntry(const LayerEntry& entry, const Codec& codec, const BlockShape& shape) {
  if (!PlanesFit(codec, shape, entry.planes)) return Corrupt("impossible planes");
  if (entry.zero0 != std::array<uint8_t, 3>{} || entry.zero1 != 0)
    return Corrupt("reserved table bytes are not zero");
  return Status::Ok();
}

Status CheckAbsentParts(const ImageView& image) {
  for (size_t layer = 0; layer < image.table.size(); ++layer) {
    for (int region = 0; region < kRegions; ++region) {
      if (image.layout.layers[layer][region].bytes == 0 && image.table[layer].crc[region] != 0) {
        return Corrupt("a checksum of an absent part");
      }
    }
  }
  return Status::Ok();
}

}  // namespace

BlockShape StoredShape(CodecId codec, BlockShape shape) {
  if (IsRawCodec(codec)) shape.nraw = 0;
  if (!IsPlaneFamily(codec)) shape.nb = 0;
  return shape;
}

ConstLayerParts ImageView::Parts(uint16_t layer) const {
  ConstLayerParts parts;
  for (int region = 0; region < kRegions; ++region) {
    const ImageLayout::Part& part = layout.layers[layer][region];
    parts.part[region] = bytes.subspan(part.offset, part.bytes);
  }
  return parts;
}

float ImageView::KError(uint16_t layer) const {
  const LayerEntry& entry = table[layer];
  if (!IsPlaneFamily(codec->id) || entry.planes == kPlaneRaw) return Fp32FromFp16(entry.error[0]);
  return Fp32FromFp16(entry.error[(entry.planes & kPlaneKLow) != 0 ? 0 : 1]);
}

float ImageView::VError(uint16_t layer) const {
  const LayerEntry& entry = table[layer];
  if (!IsPlaneFamily(codec->id) || entry.planes == kPlaneRaw) return Fp32FromFp16(entry.error[2]);
  return Fp32FromFp16(entry.error[(entry.planes & kPlaneVLow) != 0 ? 2 : 3]);
}

Result<ImageView> ParseImage(std::span<const std::byte> bytes) {
  if (bytes.size() < kImageHeaderBytes) return Corrupt("shorter than its header");
  ImageHeader header;
  std::memcpy(&header, bytes.data(), sizeof(header));
  KVTIER_TRY(CheckKnown(header));

  const uint64_t table_end = kImageHeaderBytes + kLayerEntryBytes * header.layers;
  if (header.layers == 0 || header.layers > kMaxLayers) return Corrupt("impossible number of layers");
  if (bytes.size() < table_end) return Corrupt("shorter than its table");
  ImageView image;
  image.table.resize(header.layers);
  std::memcpy(image.table.data(), bytes.data() + kImageHeaderBytes, image.table.size() * sizeof(LayerEntry));
  uint32_t crc = Crc32c(std::as_bytes(std::span(&header, 1)).first(offsetof(ImageHeader, header_crc)));
  crc = ContinueCrc32c(crc, std::as_bytes(std::span(image.table)));
  if (crc != header.header_crc) return Corrupt("header checksum");

  image.codec = FindCodec(static_cast<CodecId>(header.codec));
  image.identity = IdentityOf(header);
  const BlockShape& shape = image.identity.shape;
  KVTIER_TRY(CheckHeader(header, *image.codec, shape));
  std::vector<uint8_t> planes;
  planes.reserve(image.table.size());
  for (const LayerEntry& entry : image.table) {
    KVTIER_TRY(CheckEntry(entry, *image.codec, shape));
    planes.push_back(entry.planes);
  }
  image.layout = ComputeImageLayout(image.codec->id, shape, planes);
  if (header.image_bytes != image.layout.image_bytes || header.base_bytes != image.layout.base_bytes) {
    return Corrupt("sizes do not follow from the shape");
  }
  if (bytes.size() < header.image_bytes) return Corrupt("truncated");
  KVTIER_TRY(CheckAbsentParts(image));
  if (!AllZero(bytes.subspan(table_end, AlignUp(table_end, kImageAlign) - table_end))) {
    return Corrupt("padding of the table is not zero");
  }
  image.bytes = bytes.first(header.image_bytes);
  return image;
}

Status MatchIdentity(const ImageView& image, const BlockIdentity& expected) {
  const char* differs = nullptr;
  if (image.identity.key != expected.key) {
    differs = "key";
  } else if (image.identity.name_space != expected.name_space) {
    differs = "namespace";
  } else if (image.identity.first_position != expected.first_position) {
    differs = "position";
  } else if (image.identity.shape != StoredShape(image.codec->id, expected.shape)) {
    differs = "shape";
  }
  return differs == nullptr ? Status::Ok()
                            : Corrupt(std::string("another block: its ") + differs + " differs");
}

Status VerifyLayer(const ImageView& image, uint16_t layer) {
  KVTIER_CHECK(layer < image.table.size());
  const ConstLayerParts parts = image.Parts(layer);
  for (int region = 0; region < kRegions; ++region) {
    if (Crc32c(parts.part[region]) != image.table[layer].crc[region]) {
      return Corrupt("checksum of layer " + std::to_string(layer) + ", region " + std::to_string(region));
    }
  }
  return Status::Ok();
}

Status VerifyImage(const ImageView& image) {
  for (size_t layer = 0; layer < image.table.size(); ++layer) {
    KVTIER_TRY(VerifyLayer(image, static_cast<uint16_t>(layer)));
  }
  return Status::Ok();
}

}  // namespace kvtier
