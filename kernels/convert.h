#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>

#include "kernels/fp8.h"
#include "kernels/host_device.h"
#include "kernels/layout.h"
#include "kernels/numerics.h"
#include "kernels/source_rows.h"
#include "kernels/tile.h"

// Elements of one type as another: how raw layers become what an engine asks for.

namespace kvtier {

struct RowConversion {
  DType from = DType::kFp16;  ///< not fp32
  DType to = DType::kFp16;
  float scale = 1;  ///< of FP8, on either side
  VForm form = VForm::kPlain;
};

namespace internal {

/// fp32 to the destination's type. fp16 and FP8 end at their limits; NaN stays NaN.
KVTIER_HD inline void StoreAs(DType to, float value, float scale, std::byte* at) {
  switch (to) {
    case DType::kFp16:
      return Store16(at, value == value ? Fp16Out(value) : Fp16FromFp32(value));
    case DType::kBf16:
      return Store16(at, Bf16FromFp32(value));
    case DType::kE4m3:
      *at = static_cast<std::byte>(E4m3FromFp32(value / scale));
      return;
    case DType::kE5m2:
      *at = static_cast<std::byte>(E5m2FromFp32(value / scale));
      return;
    case DType::kFp32:
      memcpy(at, &value, sizeof value);
  }
}

/// Largest magnitude of n elements, as bits: one maximum and no branch in the loop.
inline uint32_t LargestMagnitude(uint32_t element_bytes, const std::byte* source, size_t n) {
  uint32_t largest = 0;
  for (size_t i = 0; i < n; ++i) {
    const uint32_t bits =
        element_bytes == 1 ? static_cast<uint32_t>(source[i]) & 0x7f : Load16(source + 2 * i) & 0x7fffu;
    largest = bits > largest ? bits : largest;
  }
  return largest;
}

/// Whether a number of such a magnitude is finite and in the range of fp16. A scale is a normal number above
/// 0.
inline bool FitsFp16(DType dtype, float scale, uint32_t magnitude) {
  const auto code = static_cast<uint8_t>(magnitude);
  switch (dtype) {
    case DType::kBf16:
      return magnitude < kBf16AboveFp16;
    case DType::kE4m3:
      return magnitude < kFp8Nan && Fp32FromE4m3(code) * scale <= kFp16Max;
    case DType::kE5m2:
      return magnitude < kE5m2Infinity && Fp32FromE5m2(code) * scale <= kFp16Max;
    default:
      return magnitude < kFp16Infinity;
  }
}

}  // namespace internal

/// source[n] to target[n] through fp32. In rotated form the n elements are one row of V, and a NaN in a group
/// that is rotated becomes the positive quiet one.
/// Total: cannot fail. Any thread. ConvertSimd gives the same bytes with vectors.
KVTIER_HD inline void ConvertRow(const RowConversion& conversion, const std::byte* source, size_t n,
                                 std::byte* target) {
  const uint32_t from_bytes = DTypeBytes(conversion.from), to_bytes = DTypeBytes(conversion.to);
  for (size_t first = 0; first < n; first += kTileCodes) {
    const auto count = static_cast<uint32_t>(n - first < kTileCodes ? n - first : kTileCodes);
    float values[kTileCodes];
    LoadTile(source + first * from_bytes, conversion.from, conversion.scale, count, values);
    if (conversion.form == VForm::kRotated && count == kTileCodes) {
      RotateGroups(values, count);
      // Which NaN comes out of a sum is the compiler's choice, so none of them is kept.
      for (float& value : values) value = value == value ? value : std::numeric_limits<float>::quiet_NaN();
    }
    for (uint32_t i = 0; i < count; ++i)
      internal::StoreAs(conversion.to, values[i], conversion.scale, target + (first + i) * to_bytes);
  }
}

}  // namespace kvtier
