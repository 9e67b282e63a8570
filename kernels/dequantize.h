#pragma once

#include <cstdint>

#include "kernels/boost.h"
#include "kernels/host_device.h"
#include "kernels/layout.h"
#include "kernels/numerics.h"
#include "kernels/plane_sections.h"
#include "kernels/target_rows.h"
#include "kernels/team.h"
#include "kernels/tile.h"

namespace kvtier {

/// What Dequantize reads and writes. The low planes and the boost may be null; then those bits are not used.
struct DequantizeArgs {
  BlockShape shape;
  PlaneSections<const uint8_t> in;
  KvLayerView out;
};

struct DequantizeScratch {
  float scale[kMaxHeadDim];
  float minimum[kMaxHeadDim];
  uint8_t boost_ids[kMaxHeadDim];
};

constexpr LaunchShape DequantizeLaunch(const BlockShape& shape) {
  return {.blocks = shape.kv_heads, .scratch_bytes = sizeof(DequantizeScratch)};
}

namespace internal {

/// Per channel (scale, minimum) of a head, ready for DequantizeK: with the INT2 minimum where a code has no
/// low bits. Boost ids are copied, and forced below k_dim, once: the image may change under the reader.
template <Team T>
KVTIER_HD void LoadKRanges(const T& team, const DequantizeArgs& args, DequantizeScratch& scratch) {
  const BlockShape& shape = args.shape;
  const uint32_t k_dim = shape.k_dim;
  const uint64_t first = uint64_t{team.block()} * k_dim;
  for (uint32_t c = team.rank(); c < k_dim; c += team.size()) {
    const float scale = Fp32FromFp16(Load16(args.in.k_scale + 2 * (first + c)));
    const float minimum = Fp32FromFp16(Load16(args.in.k_min + 2 * (first + c)));
    scratch.scale[c] = scale;
    scratch.minimum[c] = args.in.k_low == nullptr ? KMinimumInt2(scale, minimum) : minimum;
  }
  if (args.in.boost_ids != nullptr) {
    team.sync();
    for (uint32_t i = team.rank(); i < shape.nb; i += team.size()) {
      const uint8_t id = args.in.boost_ids[uint64_t{team.block()} * shape.nb + i];
      const uint32_t channel = id < k_dim ? id : k_dim - 1;
      scratch.boost_ids[i] = static_cast<uint8_t>(channel);
      scratch.minimum[channel] = Fp32FromFp16(Load16(args.in.k_min + 2 * (first + channel)));
    }
  }
  team.sync();
}

KVTIER_HD inline void DequantizeKRow(const DequantizeArgs& args, uint32_t head, uint32_t token,
                                     const DequantizeScratch& scratch) {
  const uint32_t k_dim = args.shape.k_dim, nb = args.shape.nb;
  const uint64_t row = PlaneRow(args.shape, head, token);
  const uint8_t* high = args.in.k_high + row * (k_dim / 4);
  std::byte* target = args.out.k + args.out.Row(head, token);
  // The low bits of a row without a low plane: zero, except in boosted channels.
  uint8_t codes[kMaxHeadDim] = {};
  if (args.in.boost_ids != nullptr && args.in.k_low == nullptr)
    UnpackBoostRow(args.in.boost_low + row * (nb / 4), scratch.boost_ids, nb, codes);
  for (uint32_t first = 0; first < k_dim; first += kTileCodes) {
    const uint32_t n = TileCodes(k_dim, first);
    UnpackTile<kHighShift>(high + first / 4, n, codes + first);
    if (args.in.k_low != nullptr)
      UnpackTile<kLowShift>(args.in.k_low + row * (k_dim / 4) + first / 4, n, codes + first);
    float values[kTileCodes];
    for (uint32_t i = 0; i < n; ++i)
      values[i] = DequantizeK(codes[first + i], scratch.scale[first + i], scratch.minimum[first + i]);
    StoreTile(values, n, args.out, args.out.scales.k, target + first * args.out.channel_stride);
  }
}

KVTIER_HD inline void DequantizeVRow(const DequantizeArgs& args, uint32_t head, uint32_t token) {
  const uint32_t v_dim = args.shape.v_dim;
  const uint64_t row = PlaneRow(args.shape, head, token);
  const uint8_t* scales = args.in.v_scale + row * VGroups(args.shape);
  const int32_t offset = args.in.v_low != nullptr ? kVOffsetInt4 : kVOffsetInt2;
  std::byte* target = args.out.v + args.out.Row(head, token);
  for (uint32_t first = 0; first < v_dim; first += kTileCodes) {
    const uint32_t n = TileCodes(v_dim, first);
    const uint64_t plane_byte = row * (v_dim / 4) + first / 4;
    uint8_t codes[kTileCodes] = {};
    UnpackTile<kHighShift>(args.in.v_high + plane_byte, n, codes);
    if (args.in.v_low != nullptr) UnpackTile<kLowShift>(args.in.v_low + plane_byte, n, codes);
    float values[kTileCodes];
    DequantizeVGroup(codes, n, offset, scales[first / kTileCodes], args.out.v_form, values);
    StoreTile(values, n, args.out, args.out.scales.v, target + first * args.out.channel_stride);
  }
}

}  // namespace internal

/// Decodes one layer of the plane family (codecs/FORMAT.md). One block per head; a lane takes whole rows.
/// Total and memory-safe on arbitrary, also changing, section bytes. Bit-exact between host and GPU.
template <Team T>
KVTIER_HD void Dequantize(const T& team, const DequantizeArgs& args) {
  const BlockShape& shape = args.shape;
  const uint32_t head = team.block();
  auto& scratch = *reinterpret_cast<DequantizeScratch*>(team.scratch());
  internal::LoadKRanges(team, args, scratch);
  for (uint32_t token = team.rank(); token < shape.tokens; token += team.size()) {
    if (token < shape.nraw) {
      const uint64_t raw_row = uint64_t{head} * shape.nraw + token;
      const int64_t at = args.out.Row(head, token);
      internal::StoreRawChannels(args.in.k_raw + raw_row * shape.k_dim * 2, shape.k_dim, args.out,
                                 args.out.scales.k, args.out.k + at);
      internal::StoreRawVRow(args.in.v_raw + raw_row * shape.v_dim * 2, shape.v_dim, args.out,
                             args.out.v + at);
    } else {
      internal::DequantizeKRow(args, head, token, scratch);
      internal::DequantizeVRow(args, head, token);
    }
  }
}

}  // namespace kvtier
