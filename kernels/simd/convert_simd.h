#pragma once

#include <cstddef>
#include <memory>

#include "kernels/convert.h"

namespace kvtier {

/// ConvertRow with the widest vectors that the CPU has, and copies where nothing changes. Counts of elements
/// are multiples of 16. FinishStores is the caller's (copy_simd.h).
void ConvertSimd(const RowConversion& conversion, const std::byte* source, size_t n, std::byte* target,
                 Stores stores);

/// Whether n elements are finite and in the range of fp16.
bool FitsFp16Simd(DType dtype, float scale, const std::byte* source, size_t n);

/// A finite layer in FP8 as fp16, without its scales: exact.
std::unique_ptr<std::byte[]> WidenFp8(const BlockShape& shape, const std::byte* raw);

/// Scales whose products with FP8 are normal numbers, which encoders with vectors rely on.
inline bool HasUsualScales(const Fp8Scales& scales) {
  constexpr float kMin = 0x1p-100f, kMax = 0x1p100f;
  return scales.k >= kMin && scales.k <= kMax && scales.v >= kMin && scales.v <= kMax;
}

}  // namespace kvtier
