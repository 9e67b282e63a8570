#pragma once

#include <cstddef>

#include "kernels/convert.h"

namespace kvtier {

/// ConvertRow with the widest vectors that the CPU has, and copies where nothing changes. Counts of elements
/// are multiples of 16. FinishStores is the caller's (copy_simd.h).
void ConvertSimd(const RowConversion& conversion, const std::byte* source, size_t n, std::byte* target,
                 Stores stores);

/// Whether n elements are finite and in the range of fp16.
bool FitsFp16Simd(DType dtype, float scale, const std::byte* source, size_t n);

}  // namespace kvtier
