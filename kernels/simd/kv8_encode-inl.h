// kv8 from elements of 16 bits: errors and K; V is in kv8_encode_v-inl.h. Compiled once per target.

#if defined(KVTIER_KERNELS_SIMD_KV8_ENCODE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KVTIER_KERNELS_SIMD_KV8_ENCODE_INL_H_
#undef KVTIER_KERNELS_SIMD_KV8_ENCODE_INL_H_
#else
#define KVTIER_KERNELS_SIMD_KV8_ENCODE_INL_H_
#endif

#include <hwy/cache_control.h>
#include <hwy/highway.h>

#include <cstddef>
#include <cstdint>

#include "kernels/quantize_kv8.h"
#include "kernels/simd/quantize_k-inl.h"
#include "kernels/simd/source_vectors-inl.h"
#include "kernels/simd/target_vectors-inl.h"

#if HWY_TARGET != HWY_SCALAR

HWY_BEFORE_NAMESPACE();
namespace kvtier::HWY_NAMESPACE {

/// Rows of codes that are fetched before they are written.
inline constexpr uint32_t kRowsAhead = 4;

struct Kv8ErrorVectors {
  Floats square, error;

  Kv8ErrorVectors() : square(hn::Zero(FloatTag())), error(square) {}
  HWY_INLINE void Add(Floats x, Floats off) {
    square = hn::MulAdd(x, x, square);
    error = hn::MulAdd(off, off, error);
  }
  Kv8RowErrors Sum() const {
    const FloatTag df;
    return {.square = hn::GetLane(hn::SumOfLanes(df, square)),
            .error = hn::GetLane(hn::SumOfLanes(df, error))};
  }
};

/// What a decoder to fp32 ends with.
HWY_INLINE Floats ClampToFp16Range(Floats v) {
  const auto limit = hn::Set(FloatTag(), kFp16Max);
  return hn::Min(hn::Max(v, hn::Neg(limit)), limit);
}

/// Codes below 256, to bytes in order.
template <uint32_t vectors>
HWY_INLINE void StoreBytes(const Int32s (&codes)[vectors], uint8_t* target) {
  if constexpr (vectors == 4) {
    hn::StoreU(BytesInOrder(codes), ByteTag(), target);
  } else {
    const hn::Rebind<uint8_t, FloatTag> d8;
    for (uint32_t i = 0; i < vectors; ++i) hn::StoreU(hn::DemoteTo(d8, codes[i]), d8, target + i * kFloats);
  }
}

/// Sums of the channels of some vectors: `error` of squared distances, where none is clamped in units of the
/// channel's scale.
template <uint32_t vectors>
struct Kv8KSums {
  Floats square, error[vectors];

  Kv8KSums() : square(hn::Zero(FloatTag())) {
    for (Floats& sum : error) sum = square;
  }
};

template <bool kClamps>
HWY_INLINE Int32s QuantizeKv8K(Floats x, const KChannels& channels, Floats& square, Floats& error) {
  const FloatTag df;
  auto steps = hn::Mul(hn::Sub(x, channels.minimum), channels.inverse);
  if constexpr (kClamps) steps = hn::Min(hn::Max(steps, hn::Zero(df)), hn::Set(df, internal::kKv8KSteps));
  const auto codes = NearestInts(steps);
  Floats off;
  if constexpr (kClamps) {
    const auto decoded = hn::MulAdd(hn::ConvertTo(df, codes), channels.scale, channels.minimum);
    off = hn::Sub(x, ClampToFp16Range(decoded));
  } else {
    off = OffNearest(steps, codes);
  }
  square = hn::MulAdd(x, x, square);
  error = hn::MulAdd(off, off, error);
  return codes;
}

/// `vectors` vectors of channels from `channel` on, all rows.
template <class Source, bool kClamps, uint32_t vectors>
inline void QuantizeKv8Columns(const Source& elements, const KHead& head, uint32_t channel,
                               const QuantizeScratch& ranges, Kv8ErrorVectors& errors) {
  KChannels channels[vectors];
  for (uint32_t i = 0; i < vectors; ++i) channels[i] = KChannels(ranges, channel + i * kFloats);
  Kv8KSums<vectors> sums;
  for (uint32_t row = 0; row < head.rows; ++row) {
    const std::byte* at = head.At(row, channel);
    PrefetchNext(head.next + (at - head.source));
    PrefetchNext(head.next + (at - head.source) + 64);
    hwy::Prefetch(head.high + size_t{row + kRowsAhead} * head.dim + channel);
    Int32s codes[vectors];
    for (uint32_t i = 0; i < vectors; ++i)
      codes[i] =
          QuantizeKv8K<kClamps>(elements.Load(at + 2 * i * kFloats), channels[i], sums.square, sums.error[i]);
    StoreBytes(codes, head.high + size_t{row} * head.dim + channel);
  }
  errors.square = hn::Add(errors.square, sums.square);
  for (uint32_t i = 0; i < vectors; ++i) {
    const auto weight = kClamps ? hn::Set(FloatTag(), 1.0f) : hn::Mul(channels[i].scale, channels[i].scale);
    errors.error = hn::MulAdd(sums.error[i], weight, errors.error);
  }
}

template <class Source, bool kClamps>
inline Kv8RowErrors QuantizeKv8K(const Source& elements, const KHead& head, const QuantizeScratch& ranges) {
  Kv8ErrorVectors errors;
  uint32_t channel = 0;
  for (; channel + 4 * kFloats <= head.dim; channel += 4 * kFloats)
    QuantizeKv8Columns<Source, kClamps, 4>(elements, head, channel, ranges, errors);
  for (; channel < head.dim; channel += kFloats)
    QuantizeKv8Columns<Source, kClamps, 1>(elements, head, channel, ranges, errors);
  return errors.Sum();
}

}  // namespace kvtier::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // HWY_TARGET

#endif
