#pragma once

#include <cstdint>

#include "kernels/boost.h"
#include "kernels/host_device.h"
#include "kernels/k_range.h"
#include "kernels/layout.h"
#include "kernels/numerics.h"
#include "kernels/plane_sections.h"
#include "kernels/quantize_errors.h"
#include "kernels/source_rows.h"
#include "kernels/team.h"
#include "kernels/tile.h"

namespace kvtier {

/// What Quantize reads and writes. Sections that a rung lacks are null and are not written.
struct QuantizeArgs {
  BlockShape shape;
  const std::byte* raw = nullptr;  ///< as SourceRows, finite (LayerIsFinite)
  Fp8Scales scales = {};
  PlaneSections<uint8_t> out;
  /// Partial sums [heads][tokens]: only their total means something. Null: K (or V) is left out.
  RowErrors* k_errors = nullptr;
  RowErrors* v_errors = nullptr;
  ErrorMeasure measure_v = ErrorMeasure::kOnGrid;
};

struct QuantizeScratch {
  BoostScratch boost;
  float scale[kMaxHeadDim];
  float minimum[kMaxHeadDim];
  float inverse[kMaxHeadDim];
  float low_step[kMaxHeadDim];  ///< what INT2 loses a low bit of: the scale; 0 in boosted channels
};
static_assert(sizeof(QuantizeScratch) <= kScratchBytesMax);

constexpr LaunchShape QuantizeLaunch(const BlockShape& shape) {
  return {.blocks = shape.kv_heads, .scratch_bytes = sizeof(QuantizeScratch)};
}

namespace internal {

KVTIER_HD inline SourceRows SourceOf(const QuantizeArgs& args) {
  return {.shape = args.shape, .raw = args.raw, .scales = args.scales};
}

/// Minimum, maximum, and from them the stored (scale, minimum) of T::kLaneWidth neighbouring channels from
/// `c` on.
template <Team T>
KVTIER_HD void KRangesOf(const QuantizeArgs& args, uint32_t head, uint32_t c, QuantizeScratch& scratch) {
  const BlockShape& shape = args.shape;
  float low[T::kLaneWidth] = {}, high[T::kLaneWidth] = {}, row[T::kLaneWidth];
  for (uint32_t token = shape.nraw; token < shape.tokens; ++token) {
    LoadTile(SourceOf(args).K(head, token) + c * DTypeBytes(shape.dtype), shape.dtype, args.scales.k,
             T::kLaneWidth, row);
    const bool is_first = token == shape.nraw;
    for (uint32_t i = 0; i < T::kLaneWidth; ++i) {
      low[i] = is_first || row[i] < low[i] ? row[i] : low[i];
      high[i] = is_first || row[i] > high[i] ? row[i] : high[i];
    }
  }
  for (uint32_t i = 0; i < T::kLaneWidth; ++i) {
    const KRange range = KRangeOf(low[i], high[i], 15.0f);
    const float scale = Fp32FromFp16(range.scale_bits);
    scratch.boost.scale[c + i] = range.scale_bits;
    scratch.scale[c + i] = scale;
    scratch.minimum[c + i] = Fp32FromFp16(range.minimum_bits);
    scratch.inverse[c + i] = range.scale_bits != 0 ? 1.0f / scale : 0.0f;
    const uint64_t at = uint64_t{head} * shape.k_dim + c + i;
    Store16(args.out.k_scale + 2 * at, range.scale_bits);
    Store16(args.out.k_min + 2 * at, range.minimum_bits);
  }
}

/// Ranges of all channels of a head, its boosted channels, and what the INT2 decoder makes of both.
/// Synchronized.
template <Team T>
KVTIER_HD void PrepareK(const T& team, const QuantizeArgs& args, QuantizeScratch& scratch) {
  const BlockShape& shape = args.shape;
  for (uint32_t c = team.rank() * T::kLaneWidth; c < shape.k_dim; c += team.size() * T::kLaneWidth)
    KRangesOf<T>(args, team.block(), c, scratch);
  team.sync();
  SelectBoost(team, shape, scratch.boost);
  for (uint32_t c = team.rank(); c < shape.k_dim; c += team.size())
    scratch.low_step[c] = scratch.boost.is_boosted[c] ? 0.0f : scratch.scale[c];
  if (args.out.boost_ids != nullptr) {
    uint8_t* ids = args.out.boost_ids + uint64_t{team.block()} * shape.nb;
    for (uint32_t i = team.rank(); i < shape.nb; i += team.size())
      ids[i] = scratch.boost.ids[i];  // NOLINT(clang-analyzer-*): as in PackBoostRow
  }
  team.sync();
}

/// codes = clamp(rne((x - m) / s), 0, 15) of the n channels from `first` on. Adding 1.5 * 2^23 rounds to an
/// integer; clamping first changes nothing, since both bounds are integers, and keeps the addition exact.
KVTIER_HD inline void QuantizeKTile(const float* x, uint32_t first, uint32_t n,
                                    const QuantizeScratch& scratch, uint8_t* codes) {
  constexpr float kRounder = 12582912.0f;
  for (uint32_t i = 0; i < n; ++i) {
    float steps = (x[i] - scratch.minimum[first + i]) * scratch.inverse[first + i];
    steps = steps > 0.0f ? steps : 0.0f;
    steps = steps < 15.0f ? steps : 15.0f;
    codes[i] = static_cast<uint8_t>(static_cast<int32_t>(steps + kRounder - kRounder));
  }
}

KVTIER_HD inline void AddKTileErrors(const float* x, const uint8_t* codes, uint32_t first, uint32_t n,
                                     const QuantizeScratch& scratch, RowErrorSum& errors) {
  float off_int4[kTileCodes], off_int2[kTileCodes];
  for (uint32_t i = 0; i < n; ++i) {
    const float scale = scratch.scale[first + i], minimum = scratch.minimum[first + i];
    const float low_step = scratch.low_step[first + i];
    const uint8_t code_int2 = low_step == 0.0f ? codes[i] : codes[i] & 0x0c;
    off_int4[i] = x[i] - RoundToFp16Out(DequantizeK(codes[i], scale, minimum));
    off_int2[i] = x[i] - RoundToFp16Out(DequantizeK(code_int2, scale, KMinimumInt2(low_step, minimum)));
  }
  errors.Add(x, off_int4, off_int2, n);
}

/// A piece of a raw row as fp16; the errors of another source are those of that rounding.
KVTIER_HD inline void StoreRawTile(const float* x, uint32_t n, uint8_t* target, RowErrorSum& errors) {
  float off[kTileCodes];
  for (uint32_t i = 0; i < n; ++i) {
    const uint16_t half = Fp16FromFinite(x[i]);
    Store16(target + 2 * i, half);
    off[i] = x[i] - Fp32FromFp16(half);
  }
  errors.Add(x, off, off, n);
}

/// One row of K. Padding rows repeat the last token.
KVTIER_HD inline RowErrors QuantizeKRow(const QuantizeArgs& args, uint32_t head, uint32_t token,
                                        const QuantizeScratch& scratch) {
  const BlockShape& shape = args.shape;
  const uint32_t k_dim = shape.k_dim, nb = shape.nb;
  const uint64_t row = PlaneRow(shape, head, token);
  const std::byte* source = SourceOf(args).K(head, token < shape.tokens ? token : shape.tokens - 1u);
  uint8_t codes[kMaxHeadDim] = {};  // those of a raw row are zero
  RowErrorSum errors;
  for (uint32_t first = 0; first < k_dim; first += kTileCodes) {
    const uint32_t n = TileCodes(k_dim, first);
    const uint64_t plane_byte = row * (k_dim / 4) + first / 4;
    float x[kTileCodes];
    LoadTile(source + first * DTypeBytes(shape.dtype), shape.dtype, args.scales.k, n, x);
    if (token < shape.nraw) {
      StoreRawTile(x, n, args.out.k_raw + 2 * ((uint64_t{head} * shape.nraw + token) * k_dim + first),
                   errors);
    } else {
      QuantizeKTile(x, first, n, scratch, codes + first);
      AddKTileErrors(x, codes + first, first, n, scratch, errors);
    }
    PackTile<kHighShift>(codes + first, n, args.out.k_high + plane_byte);
    if (args.out.k_low != nullptr) PackTile<kLowShift>(codes + first, n, args.out.k_low + plane_byte);
  }
  if (args.out.boost_low != nullptr)
    PackBoostRow(codes, scratch.boost.ids, nb, args.out.boost_low + row * (nb / 4));
  return errors.Sum();
}

/// Codes and scale byte of one V group of n channels; a full group of 64 is rotated first. `steps` is what
/// was cut to codes, in units of the scale.
KVTIER_HD inline uint8_t QuantizeVGroup(const float* v, uint32_t n, float* steps, uint8_t* codes) {
  float y[kTileCodes];
  for (uint32_t i = 0; i < n; ++i) y[i] = v[i];
  if (n == kTileCodes) {
    Hadamard64(y);
    for (uint32_t i = 0; i < kTileCodes; ++i) y[i] *= 0.125f;
  }
  // Magnitudes order as their bits do, and an integer maximum vectorizes.
  int32_t largest_bits = 0;
  for (uint32_t i = 0; i < n; ++i) {
    const int32_t magnitude = std::bit_cast<int32_t>(y[i]) & 0x7fffffff;
    largest_bits = magnitude > largest_bits ? magnitude : largest_bits;
  }
  const auto largest = std::bit_cast<float>(largest_bits);
  // Scales have three bits of mantissa: rounded up, so that every code fits, below the fp16 range's end.
  const uint32_t rounded_up = (uint32_t{Fp16UpFromFp32(largest / 8.0f)} + 127) >> 7;
  const auto scale_byte = static_cast<uint8_t>(rounded_up < 247 ? rounded_up : 247);
  const float scale = VScale(scale_byte);
  const float inverse = scale_byte != 0 ? 1.0f / scale : 0.0f;
  for (uint32_t i = 0; i < n; ++i) {
    steps[i] = y[i] * inverse;
    const int32_t code = FloorToInt(steps[i]) + 8;
    codes[i] = static_cast<uint8_t>(code < 0 ? 0 : code < 15 ? code : 15);
  }
  return scale_byte;
}

/// What the decoder makes of a group's codes at one precision, rounded to fp16, against x.
KVTIER_HD inline void SubtractVGroup(const float* x, const uint8_t* codes, uint32_t n, int32_t offset,
                                     uint8_t scale_byte, float* off) {
  DequantizeVGroup(codes, n, offset, scale_byte, VForm::kPlain, off);
  for (uint32_t i = 0; i < n; ++i) off[i] = x[i] - RoundToFp16Out(off[i]);
}

/// Errors of the decoded values.
KVTIER_HD_RARE inline void AddVGroupErrors(const float* x, const uint8_t* codes, uint32_t n,
                                           uint8_t scale_byte, RowErrorSum& errors) {
  uint8_t codes_int2[kTileCodes] = {};
  for (uint32_t i = 0; i < n; ++i) codes_int2[i] = codes[i] & 0x0c;
  float off_int4[kTileCodes], off_int2[kTileCodes];
  SubtractVGroup(x, codes, n, kVOffsetInt4, scale_byte, off_int4);
  SubtractVGroup(x, codes_int2, n, kVOffsetInt2, scale_byte, off_int2);
  errors.Add(x, off_int4, off_int2, n);
}

/// One row of V. Padding rows repeat the last token.
KVTIER_HD inline RowErrors QuantizeVRow(const QuantizeArgs& args, uint32_t head, uint32_t token) {
  const BlockShape& shape = args.shape;
  const uint32_t v_dim = shape.v_dim;
  const uint64_t row = PlaneRow(shape, head, token);
  const std::byte* source = SourceOf(args).V(head, token < shape.tokens ? token : shape.tokens - 1u);
  RowErrorSum errors;
  for (uint32_t first = 0; first < v_dim; first += kTileCodes) {
    const uint32_t n = TileCodes(v_dim, first);
    const uint64_t plane_byte = row * (v_dim / 4) + first / 4;
    float x[kTileCodes];
    uint8_t codes[kTileCodes] = {};  // those of a raw row, and its scale, are zero
    uint8_t scale_byte = 0;
    LoadTile(source + first * DTypeBytes(shape.dtype), shape.dtype, args.scales.v, n, x);
    if (token < shape.nraw) {
      StoreRawTile(x, n, args.out.v_raw + 2 * ((uint64_t{head} * shape.nraw + token) * v_dim + first),
                   errors);
    } else {
      float steps[kTileCodes];
      scale_byte = QuantizeVGroup(x, n, steps, codes);
      if (args.measure_v == ErrorMeasure::kOnGrid && scale_byte < kVScaleClamps) {
        errors.Add(VGridErrors(steps, n, VScale(scale_byte)));
      } else {
        AddVGroupErrors(x, codes, n, scale_byte, errors);
      }
    }
    args.out.v_scale[row * VGroups(shape) + first / kTileCodes] = scale_byte;
    PackTile<kHighShift>(codes, n, args.out.v_high + plane_byte);
    if (args.out.v_low != nullptr) PackTile<kLowShift>(codes, n, args.out.v_low + plane_byte);
  }
  return errors.Sum();
}

}  // namespace internal

/// Encodes one layer into the plane family (codecs/FORMAT.md): K per channel (KIVI, arXiv:2402.02750), V per
/// token and group of 64 channels after a Walsh-Hadamard rotation. One block per head; a lane takes whole
/// rows. Always measures the errors of both precisions. Total on finite input. Bit-exact between host and
/// GPU.
template <Team T>
KVTIER_HD void Quantize(const T& team, const QuantizeArgs& args) {
  const BlockShape& shape = args.shape;
  const uint32_t head = team.block();
  auto& scratch = *reinterpret_cast<QuantizeScratch*>(team.scratch());
  if (args.k_errors != nullptr) internal::PrepareK(team, args, scratch);
  for (uint32_t token = team.rank(); token < PaddedTokens(shape); token += team.size()) {
    const uint64_t row = uint64_t{head} * shape.tokens + token;
    const bool is_padding = token >= shape.tokens;  // stored, but nobody reads it
    if (args.k_errors != nullptr) {
      const RowErrors errors = internal::QuantizeKRow(args, head, token, scratch);
      if (!is_padding) args.k_errors[row] = errors;
    }
    if (args.v_errors != nullptr) {
      const RowErrors errors = internal::QuantizeVRow(args, head, token);
      if (!is_padding) args.v_errors[row] = errors;
    }
  }
}

}  // namespace kvtier
