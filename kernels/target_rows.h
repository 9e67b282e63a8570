#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/fp8.h"
#include "kernels/host_device.h"
#include "kernels/layout.h"
#include "kernels/numerics.h"
#include "kernels/tile.h"

// How decoders leave their values in a destination.

namespace kvtier::internal {

/// elements[n] to the destination's channel stride.
template <typename Element>
KVTIER_HD void StoreElements(const Element* elements, uint32_t n, const KvLayerView& view,
                             std::byte* target) {
  if (view.channel_stride == sizeof(Element)) {
    memcpy(target, elements, n * sizeof(Element));
  } else {
    for (uint32_t i = 0; i < n; ++i) memcpy(target + i * view.channel_stride, &elements[i], sizeof(Element));
  }
}

/// value / scale in the destination's FP8.
KVTIER_HD inline uint8_t Fp8Out(float value, DType dtype, float scale) {
  const float stored = ClampToFp16(value) / scale;
  return dtype == DType::kE4m3 ? E4m3FromFp32(stored) : E5m2FromFp32(stored);
}

/// values[n], n <= 64, to the destination: out16, its like for BF16, for FP32 clamped alone, for FP8 clamped
/// and divided by `scale`.
KVTIER_HD inline void StoreTile(const float* values, uint32_t n, const KvLayerView& view, float scale,
                                std::byte* target) {
  if (IsFp8(view.dtype)) {
    uint8_t narrow[kTileCodes];
    for (uint32_t i = 0; i < n; ++i) narrow[i] = Fp8Out(values[i], view.dtype, scale);
    StoreElements(narrow, n, view, target);
    return;
  }
  if (view.dtype == DType::kFp32) {
    float wide[kTileCodes];
    for (uint32_t i = 0; i < n; ++i) wide[i] = ClampToFp16(values[i]);
    StoreElements(wide, n, view, target);
    return;
  }
  uint16_t narrow[kTileCodes];
  if (view.dtype == DType::kBf16) {
    for (uint32_t i = 0; i < n; ++i) narrow[i] = Bf16Out(values[i]);
  } else {
    for (uint32_t i = 0; i < n; ++i) narrow[i] = Fp16Out(values[i]);
  }
  StoreElements(narrow, n, view, target);
}

/// n channels of a raw row, as they are: FP16 bits unchanged, FP32 exact, BF16 and FP8 by one rounding.
KVTIER_HD inline void StoreRawChannels(const uint8_t* row, uint32_t n, const KvLayerView& view, float scale,
                                       std::byte* target) {
  for (uint32_t i = 0; i < n; ++i, target += view.channel_stride) {
    const uint16_t half = Load16(row + 2 * i);
    const float value = Fp32FromFp16(half);
    if (view.dtype == DType::kFp32) {
      memcpy(target, &value, sizeof value);
    } else if (IsFp8(view.dtype)) {
      *target = static_cast<std::byte>(Fp8Out(value, view.dtype, scale));
    } else {
      Store16(target, view.dtype == DType::kBf16 ? Bf16FromFp32(value) : half);
    }
  }
}

/// A raw row of V. In rotated form its groups of 64 are rotated as the encoder does, in fp32, and then end as
/// every decoded value does.
KVTIER_HD inline void StoreRawVRow(const uint8_t* row, uint32_t v_dim, const KvLayerView& view,
                                   std::byte* target) {
  uint32_t first = 0;
  for (; view.v_form == VForm::kRotated && first + kTileCodes <= v_dim; first += kTileCodes) {
    float group[kTileCodes];
    for (uint32_t i = 0; i < kTileCodes; ++i) group[i] = Fp32FromFp16(Load16(row + 2 * (first + i)));
    RotateGroups(group, kTileCodes);
    StoreTile(group, kTileCodes, view, view.scales.v, target + first * view.channel_stride);
  }
  StoreRawChannels(row + 2 * first, v_dim - first, view, view.scales.v, target + first * view.channel_stride);
}

}  // namespace kvtier::internal
