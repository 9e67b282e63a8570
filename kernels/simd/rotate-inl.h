// H64 on groups of 64 floats. Compiled once per target.

#if defined(KVTIER_KERNELS_SIMD_ROTATE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KVTIER_KERNELS_SIMD_ROTATE_INL_H_
#undef KVTIER_KERNELS_SIMD_ROTATE_INL_H_
#else
#define KVTIER_KERNELS_SIMD_ROTATE_INL_H_
#endif

#include <hwy/highway.h>

#include <cstdint>

#include "kernels/simd/source_vectors-inl.h"
#include "kernels/tile.h"

#if HWY_TARGET != HWY_SCALAR

HWY_BEFORE_NAMESPACE();
namespace kvtier::HWY_NAMESPACE {

inline constexpr uint32_t kTileVectors = kTileCodes / kFloats;

/// (a + b, a - b) of lanes `distance` apart: v * (1, -1) is exact, so one fused operation rounds once.
template <uint32_t distance>
HWY_INLINE Floats ButterflyLanes(Floats v) {
  const FloatTag df;
  alignas(64) static constexpr uint32_t kSigns[4][16] = {
#define KVTIER_MINUS 0x80000000u
      {0, KVTIER_MINUS, 0, KVTIER_MINUS, 0, KVTIER_MINUS, 0, KVTIER_MINUS, 0, KVTIER_MINUS, 0, KVTIER_MINUS,
       0, KVTIER_MINUS, 0, KVTIER_MINUS},
      {0, 0, KVTIER_MINUS, KVTIER_MINUS, 0, 0, KVTIER_MINUS, KVTIER_MINUS, 0, 0, KVTIER_MINUS, KVTIER_MINUS,
       0, 0, KVTIER_MINUS, KVTIER_MINUS},
      {0, 0, 0, 0, KVTIER_MINUS, KVTIER_MINUS, KVTIER_MINUS, KVTIER_MINUS, 0, 0, 0, 0, KVTIER_MINUS,
       KVTIER_MINUS, KVTIER_MINUS, KVTIER_MINUS},
      {0, 0, 0, 0, 0, 0, 0, 0, KVTIER_MINUS, KVTIER_MINUS, KVTIER_MINUS, KVTIER_MINUS, KVTIER_MINUS,
       KVTIER_MINUS, KVTIER_MINUS, KVTIER_MINUS},
#undef KVTIER_MINUS
  };
  constexpr uint32_t kStage = distance == 1 ? 0 : distance == 2 ? 1 : distance == 4 ? 2 : 3;
  const auto sign =
      hn::Or(hn::BitCast(df, hn::Load(hn::RebindToUnsigned<FloatTag>(), kSigns[kStage])), hn::Set(df, 1.0f));
  Floats swapped;
  if constexpr (distance == 1) {
    swapped = hn::Shuffle2301(v);
  } else if constexpr (distance == 2) {
    swapped = hn::Shuffle1032(v);
  } else if constexpr (distance == 4) {
    swapped = hn::SwapAdjacentBlocks(v);
  } else {
    swapped = hn::ConcatLowerUpper(df, v, v);
  }
  return hn::MulAdd(v, sign, swapped);
}

template <uint32_t distance>
HWY_INLINE void ButterflyVectors(Floats (&v)[kTileVectors]) {
  constexpr uint32_t kStep = distance / kFloats;
  for (uint32_t start = 0; start < kTileVectors; start += 2 * kStep) {
    for (uint32_t i = start; i < start + kStep; ++i) {
      const Floats a = v[i], b = v[i + kStep];
      v[i] = hn::Add(a, b);
      v[i + kStep] = hn::Sub(a, b);
    }
  }
}

template <uint32_t distance>
HWY_INLINE void Butterfly(Floats (&v)[kTileVectors]) {
  if constexpr (distance < kFloats) {
    for (Floats& lanes : v) lanes = ButterflyLanes<distance>(lanes);
  } else {
    ButterflyVectors<distance>(v);
  }
}

/// v = H64 v: Hadamard64, in its order.
HWY_INLINE void RotateVectors(Floats (&v)[kTileVectors]) {
  Butterfly<1>(v);
  Butterfly<2>(v);
  Butterfly<4>(v);
  Butterfly<8>(v);
  Butterfly<16>(v);
  Butterfly<32>(v);
}

/// RotateGroups.
inline void RotateRow(float* row, uint32_t n) {
  const FloatTag df;
  for (uint32_t first = 0; first + kTileCodes <= n; first += kTileCodes) {
    Floats v[kTileVectors];
    for (uint32_t i = 0; i < kTileVectors; ++i) v[i] = hn::LoadU(df, row + first + i * kFloats);
    RotateVectors(v);
    for (uint32_t i = 0; i < kTileVectors; ++i)
      hn::StoreU(hn::Mul(v[i], hn::Set(df, 0.125f)), df, row + first + i * kFloats);
  }
}

}  // namespace kvtier::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // HWY_TARGET

#endif
