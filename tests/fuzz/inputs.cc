#include "tests/fuzz/inputs.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "tests/fuzz/guarded_decode.h"
#include "tests/fuzz/input_reader.h"
#include "tiers/image.h"

namespace kvtier {
namespace {

constexpr uint8_t kMaxHeads = 3;

BlockShape ShapeFrom(InputReader& input, const Codec& codec) {
  constexpr DType kSources[] = {DType::kFp16, DType::kBf16, DType::kE4m3, DType::kE5m2};
  BlockShape shape;
  shape.layers = 1;
  shape.kv_heads = 1 + input.Next() % kMaxHeads;
  shape.k_dim = static_cast<uint16_t>(16 * (1 + input.Next() % (kMaxHeadDim / 16)));
  shape.v_dim = static_cast<uint16_t>(16 * (1 + input.Next() % (kMaxHeadDim / 16)));
  shape.tokens = static_cast<uint16_t>(1 + input.Next() % kMaxTokens);
  shape.dtype = kSources[input.Next() % std::size(kSources)];
  shape.nraw = static_cast<uint8_t>(input.Next() % (kMaxRawRows + 1));
  shape.nb = static_cast<uint8_t>(std::min<uint32_t>(input.Next(), shape.k_dim) & ~3u);
  return StoredShape(codec.id, shape);
}

DecodeTarget TargetFrom(InputReader& input) {
  // As often as they matter.
  constexpr DType kTargets[] = {DType::kFp16, DType::kFp16, DType::kBf16, DType::kBf16,
                                DType::kFp32, DType::kFp32, DType::kE4m3, DType::kE5m2};
  constexpr float kScales[] = {1.0f, 0.0078125f, 3.0f, 1e-30f};
  DecodeTarget target;
  target.layout = input.Next();
  const uint8_t choices = input.Next();
  target.dtype = kTargets[choices & 7];
  target.v_form = (choices & 8) != 0 ? VForm::kRotated : VForm::kPlain;
  target.stores = (choices & 16) != 0 ? Stores::kStreaming : Stores::kCached;
  target.end = (choices & 32) != 0 ? GuardedEnd::kFront : GuardedEnd::kBack;
  target.scales = {.k = kScales[choices >> 6], .v = kScales[choices >> 6 ^ 1]};
  return target;
}

/// A header that says of itself that it is whole.
void RepairChecksum(std::span<std::byte> image) {
  if (image.size() < kImageHeaderBytes) return;
  ImageHeader header;
  memcpy(&header, image.data(), sizeof header);
  const uint64_t table_bytes = kLayerEntryBytes * header.layers;
  if (image.size() < kImageHeaderBytes + table_bytes) return;
  const uint32_t crc = Crc32c(image.first(offsetof(ImageHeader, header_crc)));
  header.header_crc = ContinueCrc32c(crc, image.subspan(kImageHeaderBytes, table_bytes));
  memcpy(image.data(), &header, sizeof header);
}

}  // namespace

bool DecodeArbitraryParts(std::span<const std::byte> bytes) {
  InputReader input(bytes);
  const Codec& codec = *AllCodecs()[input.Next() % AllCodecs().size()];
  const BlockShape shape = ShapeFrom(input, codec);
  if (!codec.supports(shape)) return false;
  const bool is_raw = IsPlaneFamily(codec.id) && input.Next() % 8 == 0;
  const uint8_t planes = is_raw ? kPlaneRaw : EncodedPlanes(codec, shape);
  const DecodeTarget target = TargetFrom(input);

  std::vector<std::byte> memory[kRegions];
  ConstLayerParts parts;
  const std::span<const std::byte> pattern = input.rest();
  size_t at = 0;
  for (int region = 0; region < kRegions; ++region) {
    memory[region].resize(PartBytes(codec.id, shape, planes, static_cast<Region>(region)));
    if (!pattern.empty())
      std::ranges::generate(memory[region], [&] { return pattern[at++ % pattern.size()]; });
    parts.part[region] = memory[region];
  }
  DecodeGuarded(codec, shape, planes, parts, target);
  return true;
}

bool DecodeArbitraryImage(std::span<const std::byte> bytes) {
  InputReader input(bytes);
  const DecodeTarget target = TargetFrom(input);
  std::vector<std::byte> image(input.rest().begin(), input.rest().end());
  RepairChecksum(image);
  const GuardedMemory guarded(image, target.end);
  const Result<ImageView> view = ParseImage(guarded.span());
  if (!view.ok()) return false;
  VerifyImage(*view).IgnoreBecause("only that it stays within the bytes matters here");
  const BlockShape& shape = view->identity.shape;
  for (uint16_t layer = 0; layer < shape.layers; ++layer)
    DecodeGuarded(*view->codec, shape, view->table[layer].planes, view->Parts(layer), target);
  return true;
}

}  // namespace kvtier
