#pragma once

#include <cstdint>

#include "kernels/boost.h"
#include "kernels/host_device.h"
#include "kernels/layout.h"
#include "kernels/numerics.h"
#include "kernels/plane_sections.h"
#include "kernels/source_rows.h"
#include "kernels/team.h"
#include "kernels/tile.h"

namespace kvtier {

/// fp64 sums over one row: of x^2, and of (x - x^)^2 at both precisions.
struct RowErrors {
  double square = 0, int4 = 0, int2 = 0;
};

/// What Quantize reads and writes. Sections that a rung lacks are null and are not written.
struct QuantizeArgs {
  BlockShape shape;
  const std::byte* raw = nullptr;  ///< as SourceRows, finite (LayerIsFinite)
  Fp8Scales scales = {};
  PlaneSections<uint8_t> out;
  RowErrors* k_errors = nullptr;  ///< [heads][tokens]
  RowErrors* v_errors = nullptr;  ///< [heads][tokens]
};

struct QuantizeScratch {
  BoostScratch boost;
  float scale[kMaxHeadDim];
  float minimum[kMaxHeadDim];
  float inverse[kMaxHeadDim];
  float minimum_int2[kMaxHeadDim];      ///< boosted channels: the plain minimum
  uint8_t code_mask_int2[kMaxHeadDim];  ///< boosted channels keep all four bits
};
static_assert(sizeof(QuantizeScratch) <= kScratchBytesMax);

constexpr LaunchShape QuantizeLaunch(const BlockShape& shape) {
  return {.blocks = shape.kv_heads, .scratch_bytes = sizeof(QuantizeScratch)};
}

namespace internal {

KVTIER_HD inline SourceRows SourceOf(const QuantizeArgs& args) {
  return {.shape = args.shape, .raw = args.raw, .scales = args.scales};
}

/// Error sums of a row in eight lanes: element i goes to lane i mod 8, lanes are added in pairs at the end.
/// The order is fixed, so that every SIMD width gives the same bits.
class RowErrorSum {
 public:
  /// `n` is a multiple of 8; the decoded values are those after rounding to fp16.
  KVTIER_HD void Add(const float* x, const float* decoded_int4, const float* decoded_int2, uint32_t n) {
    for (uint32_t i = 0; i < n; i += kLanes) {
      for (uint32_t lane = 0; lane < kLanes; ++lane) {
        const double value = x[i + lane];
        const double off_int4 = x[i + lane] - decoded_int4[i + lane];
        const double off_int2 = x[i + lane] - decoded_int2[i + lane];
        square_[lane] += value * value;
        int4_[lane] += off_int4 * off_int4;
        int2_[lane] += off_int2 * off_int2;
      }
    }
  }
  KVTIER_HD RowErrors Sum() const {
    return {.square = Fold(square_), .int4 = Fold(int4_), .int2 = Fold(int2_)};
  }

 private:
  static constexpr uint32_t kLanes = 8;
  KVTIER_HD static double Fold(const double* lane) {
    return ((lane[0] + lane[4]) + (lane[2] + lane[6])) + ((lane[1] + lane[5]) + (lane[3] + lane[7]));
  }
  double square_[kLanes] = {}, int4_[kLanes] = {}, int2_[kLanes] = {};
};

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
    // A zero is stored as +0, whichever zero the comparisons met.
    uint16_t minimum_bits = Fp16FromFp32(low[i]);
    minimum_bits = minimum_bits == 0x8000 ? 0 : minimum_bits;
    const uint16_t scale_bits = high[i] > low[i] ? Fp16FromFp32((high[i] - low[i]) / 15.0f) : 0;
    const float scale = Fp32FromFp16(scale_bits);
    scratch.boost.scale[c + i] = scale_bits;
    scratch.scale[c + i] = scale;
    scratch.minimum[c + i] = Fp32FromFp16(minimum_bits);
    scratch.inverse[c + i] = scale_bits != 0 ? 1.0f / scale : 0.0f;
    const uint64_t at = uint64_t{head} * shape.k_dim + c + i;
    Store16(args.out.k_scale + 2 * at, scale_bits);
    Store16(args.out.k_min + 2 * at, minimum_bits);
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
  for (uint32_t c = team.rank(); c < shape.k_dim; c += team.size()) {
    const bool is_boosted = scratch.boost.is_boosted[c];
    const float minimum = scratch.minimum[c];
    scratch.minimum_int2[c] = is_boosted ? minimum : KMinimumInt2(scratch.scale[c], minimum);
    scratch.code_mask_int2[c] = is_boosted ? 0x0f : 0x0c;
  }
  if (args.out.boost_ids != nullptr) {
    for (uint32_t i = team.rank(); i < shape.nb; i += team.size())
      args.out.boost_ids[uint64_t{team.block()} * shape.nb + i] = scratch.boost.ids[i];
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
  float decoded_int4[kTileCodes], decoded_int2[kTileCodes];
  for (uint32_t i = 0; i < n; ++i) {
    const uint32_t c = first + i;
    const uint8_t code_int2 = codes[i] & scratch.code_mask_int2[c];
    decoded_int4[i] = RoundToFp16Out(DequantizeK(codes[i], scratch.scale[c], scratch.minimum[c]));
    decoded_int2[i] = RoundToFp16Out(DequantizeK(code_int2, scratch.scale[c], scratch.minimum_int2[c]));
  }
  errors.Add(x, decoded_int4, decoded_int2, n);
}

/// A piece of a raw row as fp16; the errors of another source are those of that rounding.
KVTIER_HD inline void StoreRawTile(const float* x, uint32_t n, uint8_t* target, RowErrorSum& errors) {
  float rounded[kTileCodes];
  for (uint32_t i = 0; i < n; ++i) {
    const uint16_t half = Fp16FromFinite(x[i]);
    Store16(target + 2 * i, half);
    rounded[i] = Fp32FromFp16(half);
  }
  errors.Add(x, rounded, rounded, n);
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

/// Codes and scale byte of one V group of n channels; a full group of 64 is rotated first.
KVTIER_HD inline uint8_t QuantizeVGroup(const float* v, uint32_t n, uint8_t* codes) {
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
  const float scale = Fp32FromFp16(static_cast<uint16_t>(scale_byte << 7));
  const float inverse = scale_byte != 0 ? 1.0f / scale : 0.0f;
  for (uint32_t i = 0; i < n; ++i) {
    const float steps = y[i] * inverse;
    int32_t code = static_cast<int32_t>(steps);
    code -= steps < static_cast<float>(code) ? 1 : 0;  // truncated to floored
    code += 8;
    code = code > 0 ? code : 0;
    codes[i] = static_cast<uint8_t>(code < 15 ? code : 15);
  }
  return scale_byte;
}

/// What the decoder makes of a group's codes at one precision, rounded to fp16.
KVTIER_HD inline void DecodeVGroup(const uint8_t* codes, uint32_t n, int32_t offset, uint8_t scale_byte,
                                   float* decoded) {
  DequantizeVGroup(codes, n, offset, scale_byte, VForm::kPlain, decoded);
  for (uint32_t i = 0; i < n; ++i) decoded[i] = RoundToFp16Out(decoded[i]);
}

KVTIER_HD inline void AddVGroupErrors(const float* x, const uint8_t* codes, uint32_t n, uint8_t scale_byte,
                                      RowErrorSum& errors) {
  uint8_t codes_int2[kTileCodes];
  for (uint32_t i = 0; i < n; ++i) codes_int2[i] = codes[i] & 0x0c;
  float decoded_int4[kTileCodes], decoded_int2[kTileCodes];
  DecodeVGroup(codes, n, kVOffsetInt4, scale_byte, decoded_int4);
  DecodeVGroup(codes_int2, n, kVOffsetInt2, scale_byte, decoded_int2);
  errors.Add(x, decoded_int4, decoded_int2, n);
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
      scale_byte = QuantizeVGroup(x, n, codes);
      AddVGroupErrors(x, codes, n, scale_byte, errors);
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
/// rows. Always measures the error of both precisions. Total on finite input. Bit-exact between host and GPU.
template <Team T>
KVTIER_HD void Quantize(const T& team, const QuantizeArgs& args) {
  const BlockShape& shape = args.shape;
  const uint32_t head = team.block();
  auto& scratch = *reinterpret_cast<QuantizeScratch*>(team.scratch());
  internal::PrepareK(team, args, scratch);
  for (uint32_t token = team.rank(); token < PaddedTokens(shape); token += team.size()) {
    const RowErrors k_errors = internal::QuantizeKRow(args, head, token, scratch);
    const RowErrors v_errors = internal::QuantizeVRow(args, head, token);
    if (token < shape.tokens) {  // padding is stored, but nobody reads it
      args.k_errors[uint64_t{head} * shape.tokens + token] = k_errors;
      args.v_errors[uint64_t{head} * shape.tokens + token] = v_errors;
    }
  }
}

}  // namespace kvtier
