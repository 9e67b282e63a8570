#include "tests/fuzz/guarded_decode.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "kernels/simd/dispatch.h"
#include "tests/codecs/engine_layouts.h"

namespace kvtier {
namespace {

constexpr std::byte kUnwritten{0xA5};

/// Marks the elements of the view as unwritten again: afterwards all bytes are, or something lies beside
/// them.
void Unwrite(const BlockShape& shape, const KvLayerView& view) {
  const uint32_t element_bytes = DTypeBytes(view.dtype);
  for (const auto& [base, dim] : {std::pair(view.k, shape.k_dim), std::pair(view.v, shape.v_dim)})
    for (uint32_t head = 0; head < shape.kv_heads; ++head)
      for (uint32_t token = 0; token < shape.tokens; ++token)
        for (uint32_t c = 0; c < dim; ++c)
          memset(base + view.Row(head, token) + c * view.channel_stride, static_cast<int>(kUnwritten),
                 element_bytes);
}

}  // namespace

void DecodeGuarded(const Codec& codec, const BlockShape& shape, uint8_t planes, const ConstLayerParts& parts,
                   const DecodeTarget& target) {
  std::vector<GuardedMemory> guarded;
  ConstLayerParts in;
  for (int region = 0; region < kRegions; ++region)
    in.part[region] = guarded.emplace_back(parts.part[region], target.end).span();

  const std::vector<EngineLayout> layouts = EngineLayouts(shape, DTypeBytes(target.dtype));
  const EngineLayout& layout = layouts[target.layout % layouts.size()];
  const GuardedMemory memory(layout.bytes, target.end);
  const std::span<std::byte> bytes = memory.span();
  KvLayerView view = layout.View(bytes.data(), target.dtype);
  view.scales = target.scales;
  view.v_form = target.v_form;
  view.stores = target.stores;

  std::vector<std::byte> expected;
  for (const SimdLevel level : AvailableSimdLevels()) {  // portable first
    LimitSimd(level);
    std::ranges::fill(bytes, kUnwritten);
    codec.decode(shape, planes, in, view);
    if (expected.empty()) expected.assign(bytes.begin(), bytes.end());
    KVTIER_CHECK(std::ranges::equal(bytes, expected));
  }
  Unwrite(shape, view);
  KVTIER_CHECK(std::ranges::all_of(bytes, [](std::byte byte) { return byte == kUnwritten; }));
}

}  // namespace kvtier
