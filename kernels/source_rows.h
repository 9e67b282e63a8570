#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/fp8.h"
#include "kernels/host_device.h"
#include "kernels/layout.h"
#include "kernels/numerics.h"

namespace kvtier {

/// One layer as encoders read it: K [heads][tokens][k_dim], then V [heads][tokens][v_dim], in shape.dtype.
struct SourceRows {
  BlockShape shape;
  const std::byte* raw = nullptr;
  Fp8Scales scales = {};

  KVTIER_HD const std::byte* K(uint32_t head, uint32_t token) const {
    return raw + (uint64_t{head} * shape.tokens + token) * shape.k_dim * DTypeBytes(shape.dtype);
  }
  KVTIER_HD const std::byte* V(uint32_t head, uint32_t token) const {
    const uint64_t k_elements = uint64_t{shape.kv_heads} * shape.tokens * shape.k_dim;
    return raw +
           (k_elements + (uint64_t{head} * shape.tokens + token) * shape.v_dim) * DTypeBytes(shape.dtype);
  }
};

/// n source elements to fp32. An FP8 number is its value times `scale`, rounded once.
KVTIER_HD inline void LoadTile(const std::byte* source, DType dtype, float scale, uint32_t n, float* row) {
  switch (dtype) {
    case DType::kBf16:
      for (uint32_t i = 0; i < n; ++i) row[i] = Fp32FromBf16(Load16(source + 2 * i));
      return;
    case DType::kE4m3:
      for (uint32_t i = 0; i < n; ++i) row[i] = Fp32FromE4m3(static_cast<uint8_t>(source[i])) * scale;
      return;
    case DType::kE5m2:
      for (uint32_t i = 0; i < n; ++i) row[i] = Fp32FromE5m2(static_cast<uint8_t>(source[i])) * scale;
      return;
    default:
      for (uint32_t i = 0; i < n; ++i) row[i] = Fp32FromFp16(Load16(source + 2 * i));
  }
}

}  // namespace kvtier
