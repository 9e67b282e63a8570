#pragma once

#include <cstdint>

#include "kernels/fp8.h"
#include "kernels/host_device.h"
#include "kernels/k_range.h"
#include "kernels/kv8_sections.h"
#include "kernels/layout.h"
#include "kernels/numerics.h"
#include "kernels/source_rows.h"
#include "kernels/team.h"
#include "kernels/tile.h"

namespace kvtier {

/// fp64 sums over one row: of x^2 and of (x - x^)^2.
struct Kv8RowErrors {
  double square = 0, error = 0;
};

struct QuantizeKv8Args {
  SourceRows source;  ///< finite (LayerIsFinite)
  Kv8Sections<uint8_t> out;
  Kv8RowErrors* k_errors = nullptr;  ///< [heads][tokens]
  Kv8RowErrors* v_errors = nullptr;  ///< [heads][tokens]
};

namespace internal {

inline constexpr float kKv8KSteps = 255.0f;

/// Error sums of a row in eight lanes, element i in lane i mod 8: every SIMD width gives the same bits.
class Kv8RowErrorSum {
 public:
  /// `n` is a multiple of 8; `decoded` is what a decoder to fp32 returns.
  KVTIER_HD void Add(const float* x, const float* decoded, uint32_t n) {
    for (uint32_t i = 0; i < n; i += kLanes) {
      for (uint32_t lane = 0; lane < kLanes; ++lane) {
        const double value = x[i + lane];
        const double off = x[i + lane] - decoded[i + lane];
        square_[lane] += value * value;
        error_[lane] += off * off;
      }
    }
  }
  KVTIER_HD Kv8RowErrors Sum() const { return {.square = Fold(square_), .error = Fold(error_)}; }

 private:
  static constexpr uint32_t kLanes = 8;
  KVTIER_HD static double Fold(const double* lane) {
    return ((lane[0] + lane[4]) + (lane[2] + lane[6])) + ((lane[1] + lane[5]) + (lane[3] + lane[7]));
  }
  double square_[kLanes] = {}, error_[kLanes] = {};
};

KVTIER_HD inline KRange Kv8KRangeOf(float least, float greatest) {
  return KRangeOf(least, greatest, kKv8KSteps);
}

/// Scale and minimum of T::kLaneWidth neighbouring K channels from `c` on, as of the plane family but for the
/// number of steps.
template <Team T>
KVTIER_HD void Kv8KRangesOf(const QuantizeKv8Args& args, uint32_t head, uint32_t c, Kv8Scratch& scratch) {
  const BlockShape& shape = args.source.shape;
  float low[T::kLaneWidth] = {}, high[T::kLaneWidth] = {}, row[T::kLaneWidth];
  for (uint32_t token = shape.nraw; token < shape.tokens; ++token) {
    LoadTile(args.source.K(head, token) + c * DTypeBytes(shape.dtype), shape.dtype, args.source.scales.k,
             T::kLaneWidth, row);
    const bool is_first = token == shape.nraw;
    for (uint32_t i = 0; i < T::kLaneWidth; ++i) {
      low[i] = is_first || row[i] < low[i] ? row[i] : low[i];
      high[i] = is_first || row[i] > high[i] ? row[i] : high[i];
    }
  }
  for (uint32_t i = 0; i < T::kLaneWidth; ++i) {
    const KRange range = Kv8KRangeOf(low[i], high[i]);
    const float scale = Fp32FromFp16(range.scale_bits);
    scratch.scale[c + i] = scale;
    scratch.minimum[c + i] = Fp32FromFp16(range.minimum_bits);
    scratch.inverse[c + i] = range.scale_bits != 0 ? 1.0f / scale : 0.0f;
    const uint64_t at = uint64_t{head} * shape.k_dim + c + i;
    Store16(args.out.k_scale + 2 * at, range.scale_bits);
    Store16(args.out.k_min + 2 * at, range.minimum_bits);
  }
}

/// A raw row as fp16, its codes zero. Errors are those of the rounding.
KVTIER_HD inline Kv8RowErrors StoreKv8RawRow(const std::byte* source, DType dtype, float scale, uint32_t dim,
                                             uint8_t* raw, uint8_t* codes) {
  Kv8RowErrorSum errors;
  for (uint32_t first = 0; first < dim; first += kTileCodes) {
    const uint32_t n = TileCodes(dim, first);
    float x[kTileCodes], rounded[kTileCodes];
    LoadTile(source + first * DTypeBytes(dtype), dtype, scale, n, x);
    for (uint32_t i = 0; i < n; ++i) {
      const uint16_t half = Fp16FromFinite(x[i]);
      Store16(raw + 2 * (first + i), half);
      rounded[i] = Fp32FromFp16(half);
      codes[first + i] = 0;
    }
    errors.Add(x, rounded, n);
  }
  return errors.Sum();
}

/// codes = clamp(rne((x - m) / s), 0, 255): see QuantizeKTile.
KVTIER_HD inline Kv8RowErrors QuantizeKv8KRow(const QuantizeKv8Args& args, uint32_t head, uint32_t token,
                                              const Kv8Scratch& scratch) {
  constexpr float kRounder = 12582912.0f;
  const BlockShape& shape = args.source.shape;
  const std::byte* source = args.source.K(head, token);
  uint8_t* codes = args.out.k_codes + (uint64_t{head} * shape.tokens + token) * shape.k_dim;
  Kv8RowErrorSum errors;
  for (uint32_t first = 0; first < shape.k_dim; first += kTileCodes) {
    const uint32_t n = TileCodes(shape.k_dim, first);
    float x[kTileCodes], decoded[kTileCodes];
    LoadTile(source + first * DTypeBytes(shape.dtype), shape.dtype, args.source.scales.k, n, x);
    for (uint32_t i = 0; i < n; ++i) {
      const uint32_t c = first + i;
      float steps = (x[i] - scratch.minimum[c]) * scratch.inverse[c];
      steps = steps > 0.0f ? steps : 0.0f;
      steps = steps < kKv8KSteps ? steps : kKv8KSteps;
      const auto code = static_cast<uint8_t>(static_cast<int32_t>(steps + kRounder - kRounder));
      codes[c] = code;
      decoded[i] = ClampToFp16(DequantizeK(code, scratch.scale[c], scratch.minimum[c]));
    }
    errors.Add(x, decoded, n);
  }
  return errors.Sum();
}

/// The scale of one V row: its largest magnitude goes to the largest E4M3.
KVTIER_HD inline uint16_t Kv8VScale(const std::byte* source, DType dtype, float source_scale,
                                    uint32_t v_dim) {
  int32_t largest_bits = 0;  // magnitudes order as their bits do
  for (uint32_t first = 0; first < v_dim; first += kTileCodes) {
    const uint32_t n = TileCodes(v_dim, first);
    float x[kTileCodes];
    LoadTile(source + first * DTypeBytes(dtype), dtype, source_scale, n, x);
    for (uint32_t i = 0; i < n; ++i) {
      const int32_t magnitude = std::bit_cast<int32_t>(x[i]) & 0x7fffffff;
      largest_bits = magnitude > largest_bits ? magnitude : largest_bits;
    }
  }
  return Fp16UpFromFp32(std::bit_cast<float>(largest_bits) / kE4m3Max);
}

KVTIER_HD inline Kv8RowErrors QuantizeKv8VRow(const QuantizeKv8Args& args, uint32_t head, uint32_t token) {
  const BlockShape& shape = args.source.shape;
  const uint64_t row = uint64_t{head} * shape.tokens + token;
  const std::byte* source = args.source.V(head, token);
  uint8_t* codes = args.out.v_codes + row * shape.v_dim;
  const uint16_t scale_bits = Kv8VScale(source, shape.dtype, args.source.scales.v, shape.v_dim);
  const float scale = Fp32FromFp16(scale_bits);
  Store16(args.out.v_scale + 2 * row, scale_bits);
  Kv8RowErrorSum errors;
  for (uint32_t first = 0; first < shape.v_dim; first += kTileCodes) {
    const uint32_t n = TileCodes(shape.v_dim, first);
    float x[kTileCodes], decoded[kTileCodes];
    LoadTile(source + first * DTypeBytes(shape.dtype), shape.dtype, args.source.scales.v, n, x);
    for (uint32_t i = 0; i < n; ++i) {
      const uint8_t code = scale_bits != 0 ? E4m3FromFp32(x[i] / scale) : 0;
      codes[first + i] = code;
      decoded[i] = ClampToFp16(Fp32FromE4m3(code) * scale);
    }
    errors.Add(x, decoded, n);
  }
  return errors.Sum();
}

}  // namespace internal

/// Encodes one layer. One block per head; a lane takes whole rows. Total on finite input. Bit-exact between
/// host and GPU.
template <Team T>
KVTIER_HD void QuantizeKv8(const T& team, const QuantizeKv8Args& args) {
  const BlockShape& shape = args.source.shape;
  const uint32_t head = team.block();
  auto& scratch = *reinterpret_cast<Kv8Scratch*>(team.scratch());
  for (uint32_t c = team.rank() * T::kLaneWidth; c < shape.k_dim; c += team.size() * T::kLaneWidth)
    internal::Kv8KRangesOf<T>(args, head, c, scratch);
  team.sync();
  for (uint32_t token = team.rank(); token < shape.tokens; token += team.size()) {
    const uint64_t row = uint64_t{head} * shape.tokens + token;
    if (token < shape.nraw) {
      const uint64_t raw_row = uint64_t{head} * shape.nraw + token;
      args.k_errors[row] = internal::StoreKv8RawRow(
          args.source.K(head, token), shape.dtype, args.source.scales.k, shape.k_dim,
          args.out.k_raw + 2 * raw_row * shape.k_dim, args.out.k_codes + row * shape.k_dim);
      args.v_errors[row] = internal::StoreKv8RawRow(
          args.source.V(head, token), shape.dtype, args.source.scales.v, shape.v_dim,
          args.out.v_raw + 2 * raw_row * shape.v_dim, args.out.v_codes + row * shape.v_dim);
      Store16(args.out.v_scale + 2 * row, 0);
    } else {
      args.k_errors[row] = internal::QuantizeKv8KRow(args, head, token, scratch);
      args.v_errors[row] = internal::QuantizeKv8VRow(args, head, token);
    }
  }
}

}  // namespace kvtier
