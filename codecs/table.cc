#include <algorithm>
#include <array>

#include "codecs/codec.h"
#include "codecs/rows.h"

namespace kvtier {
namespace {

constexpr std::array kTable = {&kRaw16Codec, &kRaw8Codec, &kKv8Codec, &kKv4pCodec, &kKv42Codec, &kKv2pCodec};

}  // namespace

std::span<const Codec* const> AllCodecs() {
  return kTable;
}

const Codec* FindCodec(CodecId id) {
  const auto row = std::ranges::find(kTable, id, &Codec::id);
  return row == kTable.end() ? nullptr : *row;
}

const Codec* FindCodec(std::string_view name) {
  const auto row = std::ranges::find(kTable, name, &Codec::name);
  return row == kTable.end() ? nullptr : *row;
}

uint8_t EncodedPlanes(const Codec& codec, const BlockShape& shape) {
  return shape.nb == 0 ? static_cast<uint8_t>(codec.planes & ~kPlaneBoost) : codec.planes;
}

bool CanCut(CodecId from, CodecId to) {
  if (from == to) return true;
  if (from == CodecId::kKv4p) return to == CodecId::kKv42 || to == CodecId::kKv2p;
  return from == CodecId::kKv42 && to == CodecId::kKv2p;
}

}  // namespace kvtier
