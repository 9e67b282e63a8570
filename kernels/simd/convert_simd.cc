#include "kernels/simd/convert_simd.h"

// clang-format off
#include "kernels/simd/targets.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/simd/convert_simd.cc"
#include <hwy/foreach_target.h>
// clang-format on

#include <hwy/cache_control.h>
#include <hwy/highway.h>

#include <limits>

#include "kernels/simd/copy_simd.h"
#include "kernels/simd/rotate-inl.h"
#include "kernels/simd/source_vectors-inl.h"
#include "kernels/simd/target_vectors-inl.h"

HWY_BEFORE_NAMESPACE();
namespace kvtier::HWY_NAMESPACE {
#if HWY_TARGET != HWY_SCALAR

/// What is read is fetched so far ahead.
inline constexpr size_t kBytesAhead = 2048;

/// Largest magnitude of n elements, as bits.
template <class Element>
HWY_INLINE uint32_t LargestOf(const std::byte* source, size_t n) {
  const hn::ScalableTag<Element> d;
  const auto magnitude = hn::Set(d, std::numeric_limits<Element>::max() / 2);
  const auto* elements = reinterpret_cast<const Element*>(source);
  auto largest = hn::Zero(d);
  size_t i = 0;
  for (; i + hn::MaxLanes(d) <= n; i += hn::MaxLanes(d)) {
    hwy::Prefetch(source + i * sizeof(Element) + kBytesAhead);
    largest = hn::Max(largest, hn::And(hn::LoadU(d, elements + i), magnitude));
  }
  alignas(64) Element lanes[hn::MaxLanes(d)];
  hn::Store(largest, d, lanes);
  uint32_t result = 0;
  for (const Element lane : lanes) result = lane > result ? lane : result;
  const uint32_t rest = internal::LargestMagnitude(sizeof(Element), source + i * sizeof(Element), n - i);
  return rest > result ? rest : result;
}

/// Values as a target takes them.
template <class Source, bool kClamps>
struct ConvertedRow {
  const std::byte* source;
  Floats scale;

  HWY_INLINE Floats At(size_t i) const {
    const Floats number = Source::Load(source + i * Source::kBytes);
    const Floats value = Source::kBytes == 1 ? hn::Mul(number, scale) : number;
    return kClamps ? ClampVector(value) : value;
  }
};

template <class Source, bool kClamps = false>
void ConvertFrom(const RowConversion& conversion, const std::byte* source, size_t n, std::byte* target,
                 Stores stores) {
  const ConvertedRow<Source, kClamps> row = {source, hn::Set(FloatTag(), conversion.scale * Source::kFactor)};
  WithTarget(conversion.to, conversion.scale,
             [&](const auto& to) HWY_ATTR { StoreRow(to, row, n, target, stores); });
}

void ConvertPlain(const RowConversion& conversion, const std::byte* source, size_t n, std::byte* target,
                  Stores stores) {
  switch (conversion.from) {
    case DType::kFp16:
      return ConvertFrom<Fp16Source>(conversion, source, n, target, stores);
    case DType::kBf16:
      return ConvertFrom<Bf16Source>(conversion, source, n, target, stores);
    case DType::kE4m3:
      return ConvertFrom<E4m3Source>(conversion, source, n, target, stores);
    case DType::kE5m2:
      return ConvertFrom<E5m2Source>(conversion, source, n, target, stores);
    case DType::kFp32:
      return;
  }
}

void ConvertRotated(const RowConversion& conversion, const std::byte* source, size_t n, std::byte* target,
                    Stores stores) {
  alignas(64) float row[kMaxHeadDim];
  auto* bytes = reinterpret_cast<std::byte*>(row);
  ConvertPlain({.from = conversion.from, .to = DType::kFp32, .scale = conversion.scale}, source, n, bytes,
               Stores::kCached);
  RotateRow(row, static_cast<uint32_t>(n));
  if (conversion.to == DType::kFp16)
    return ConvertFrom<Fp32Source, true>(conversion, bytes, n, target, stores);
  ConvertFrom<Fp32Source>(conversion, bytes, n, target, stores);
}

#endif

uint32_t LargestMagnitudeOf(DType dtype, const std::byte* source, size_t n) {
#if HWY_TARGET == HWY_SCALAR
  return internal::LargestMagnitude(DTypeBytes(dtype), source, n);
#else
  return DTypeBytes(dtype) == 1 ? LargestOf<uint8_t>(source, n) : LargestOf<uint16_t>(source, n);
#endif
}

/// Elements that fit into the first cache with what becomes of them.
inline constexpr size_t kPieceElements = 1024;
/// Times kFactor it is still a number.
inline constexpr float kFp8ScaleMax = 0x1p100f;

void Convert(const RowConversion& conversion, const std::byte* source, size_t n, std::byte* target,
             Stores stores) {
#if HWY_TARGET == HWY_SCALAR
  (void)stores;
  ConvertRow(conversion, source, n, target);
#else
  // Not what a model may have; one NaN for all products would come of it.
  if (!(conversion.scale > 0 && conversion.scale <= kFp8ScaleMax))
    return ConvertRow(conversion, source, n, target);
  for (size_t first = 0; first < n; first += kPieceElements) {
    const size_t count = n - first < kPieceElements ? n - first : kPieceElements;
    const std::byte* from = source + first * DTypeBytes(conversion.from);
    std::byte* to = target + first * DTypeBytes(conversion.to);
    if (!internal::FitsFp16(conversion.from, conversion.scale,
                            LargestMagnitudeOf(conversion.from, from, count))) {
      ConvertRow(conversion, from, count, to);
    } else if (conversion.form == VForm::kRotated) {
      ConvertRotated(conversion, from, count, to, stores);
    } else {
      ConvertPlain(conversion, from, count, to, stores);
    }
  }
#endif
}

}  // namespace kvtier::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kvtier {

HWY_EXPORT(Convert);
HWY_EXPORT(LargestMagnitudeOf);

void ConvertSimd(const RowConversion& conversion, const std::byte* source, size_t n, std::byte* target,
                 Stores stores) {
  if (conversion.from == conversion.to && conversion.form == VForm::kPlain) {
    CopySimd(target, source, n * DTypeBytes(conversion.to), stores);
  } else {
    HWY_DYNAMIC_DISPATCH(Convert)(conversion, source, n, target, stores);
  }
}

bool FitsFp16Simd(DType dtype, float scale, const std::byte* source, size_t n) {
  return internal::FitsFp16(dtype, scale, HWY_DYNAMIC_DISPATCH(LargestMagnitudeOf)(dtype, source, n));
}

std::unique_ptr<std::byte[]> WidenFp8(const BlockShape& shape, const std::byte* raw) {
  const uint64_t n = RawLayerBytes(shape);
  auto widened = std::make_unique_for_overwrite<std::byte[]>(n * sizeof(uint16_t));
  ConvertSimd({.from = shape.dtype, .to = DType::kFp16}, raw, n, widened.get(), Stores::kCached);
  return widened;
}

}  // namespace kvtier
#endif
