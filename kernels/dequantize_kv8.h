#pragma once

#include <cstdint>

#include "kernels/fp8.h"
#include "kernels/host_device.h"
#include "kernels/kv8_sections.h"
#include "kernels/layout.h"
#include "kernels/numerics.h"
#include "kernels/target_rows.h"
#include "kernels/team.h"
#include "kernels/tile.h"

namespace kvtier {

struct DequantizeKv8Args {
  BlockShape shape;
  Kv8Sections<const uint8_t> in;
  KvLayerView out;
};

namespace internal {

KVTIER_HD inline void DequantizeKv8KRow(const DequantizeKv8Args& args, uint32_t head, uint32_t token,
                                        const Kv8Scratch& scratch) {
  const uint32_t k_dim = args.shape.k_dim;
  const uint8_t* codes = args.in.k_codes + (uint64_t{head} * args.shape.tokens + token) * k_dim;
  std::byte* target = args.out.k + args.out.Row(head, token);
  for (uint32_t first = 0; first < k_dim; first += kTileCodes) {
    const uint32_t n = TileCodes(k_dim, first);
    float values[kTileCodes];
    for (uint32_t i = 0; i < n; ++i)
      values[i] = DequantizeK(codes[first + i], scratch.scale[first + i], scratch.minimum[first + i]);
    StoreTile(values, n, args.out, args.out.scales.k, target + first * args.out.channel_stride);
  }
}

KVTIER_HD inline void DequantizeKv8VRow(const DequantizeKv8Args& args, uint32_t head, uint32_t token) {
  const uint32_t v_dim = args.shape.v_dim;
  const uint64_t row = uint64_t{head} * args.shape.tokens + token;
  const float scale = Fp32FromFp16(Load16(args.in.v_scale + 2 * row));
  const uint8_t* codes = args.in.v_codes + row * v_dim;
  std::byte* target = args.out.v + args.out.Row(head, token);
  for (uint32_t first = 0; first < v_dim; first += kTileCodes) {
    const uint32_t n = TileCodes(v_dim, first);
    float values[kTileCodes];
    for (uint32_t i = 0; i < n; ++i) values[i] = Fp32FromE4m3(codes[first + i]) * scale;
    if (args.out.v_form == VForm::kRotated) RotateGroups(values, n);
    StoreTile(values, n, args.out, args.out.scales.v, target + first * args.out.channel_stride);
  }
}

}  // namespace internal

/// Decodes one layer. One block per head; a lane takes whole rows. Total and memory-safe on arbitrary, also
/// changing, section bytes. Bit-exact between host and GPU.
template <Team T>
KVTIER_HD void DequantizeKv8(const T& team, const DequantizeKv8Args& args) {
  const BlockShape& shape = args.shape;
  const uint32_t head = team.block();
  auto& scratch = *reinterpret_cast<Kv8Scratch*>(team.scratch());
  for (uint32_t c = team.rank(); c < shape.k_dim; c += team.size()) {
    const uint64_t at = uint64_t{head} * shape.k_dim + c;
    scratch.scale[c] = Fp32FromFp16(Load16(args.in.k_scale + 2 * at));
    scratch.minimum[c] = Fp32FromFp16(Load16(args.in.k_min + 2 * at));
  }
  team.sync();
  for (uint32_t token = team.rank(); token < shape.tokens; token += team.size()) {
    if (token < shape.nraw) {
      const uint64_t raw_row = uint64_t{head} * shape.nraw + token;
      const int64_t at = args.out.Row(head, token);
      internal::StoreRawChannels(args.in.k_raw + 2 * raw_row * shape.k_dim, shape.k_dim, args.out,
                                 args.out.scales.k, args.out.k + at);
      internal::StoreRawVRow(args.in.v_raw + 2 * raw_row * shape.v_dim, shape.v_dim, args.out,
                             args.out.v + at);
    } else {
      internal::DequantizeKv8KRow(args, head, token, scratch);
      internal::DequantizeKv8VRow(args, head, token);
    }
  }
}

}  // namespace kvtier
