// The plane family's decoder row by row, in Highway's operations alone. Compiled once per target.

#if defined(KVTIER_KERNELS_SIMD_DECODE_ROWS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KVTIER_KERNELS_SIMD_DECODE_ROWS_INL_H_
#undef KVTIER_KERNELS_SIMD_DECODE_ROWS_INL_H_
#else
#define KVTIER_KERNELS_SIMD_DECODE_ROWS_INL_H_
#endif

#include <hwy/highway.h>

#include "kernels/dequantize.h"
#include "kernels/simd/decode_layer.h"
#include "kernels/team.h"

#if HWY_TARGET != HWY_SCALAR && HWY_TARGET != HWY_AVX3_DL  // that has avx512_decode-inl.h

HWY_BEFORE_NAMESPACE();
namespace kvtier::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

using FloatsTag = hn::ScalableTag<float>;
using FloatsOfRow = hn::Vec<FloatsTag>;
/// Butterflies of 16-bit integers: sums of 64 codes fit.
using WordsTag = hn::CappedTag<int16_t, 16>;
using Words = hn::Vec<WordsTag>;
inline constexpr uint32_t kWordLanes = hn::MaxLanes(WordsTag());
inline constexpr uint32_t kWordVectors = kTileCodes / kWordLanes;

/// ClampToFp16 of every lane, NaN included.
HWY_INLINE FloatsOfRow ClampRow(FloatsOfRow values) {
  const FloatsTag tag;
  const FloatsOfRow most = hn::Set(tag, kFp16Max), least = hn::Set(tag, -kFp16Max);
  values = hn::IfThenElse(hn::Lt(values, most), values, most);
  return hn::IfThenElse(hn::Gt(values, least), values, least);
}

/// Lanes(FloatsTag()) values, clamped and rounded as StoreTile does.
template <DType dtype>
HWY_INLINE void StoreRow(FloatsOfRow values, std::byte* target) {
  const FloatsTag tag;
  values = ClampRow(values);
  if constexpr (dtype == DType::kFp32) {
    hn::StoreU(values, tag, reinterpret_cast<float*>(target));
  } else if constexpr (dtype == DType::kFp16) {
    const hn::Rebind<hwy::float16_t, FloatsTag> halves;
    hn::StoreU(hn::DemoteTo(halves, values), halves, reinterpret_cast<hwy::float16_t*>(target));
  } else {
    const hn::RebindToUnsigned<FloatsTag> bits_tag;
    const hn::RebindToSigned<FloatsTag> signed_tag;
    const hn::Rebind<uint16_t, FloatsTag> narrow;
    const auto bits = hn::BitCast(bits_tag, values);
    const auto is_odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(bits_tag, 1));
    const auto rounded = hn::ShiftRight<16>(hn::Add(hn::Add(bits, hn::Set(bits_tag, 0x7fff)), is_odd));
    hn::StoreU(hn::DemoteTo(narrow, hn::BitCast(signed_tag, rounded)), narrow,
               reinterpret_cast<uint16_t*>(target));
  }
}

/// codes[n] |= plane, whole tiles by vectors.
template <uint32_t shift>
HWY_INLINE void UnpackRow(const uint8_t* plane, uint32_t n, uint8_t* codes) {
  const hn::FixedTag<uint8_t, 16> tag;
  const auto field = hn::Set(tag, 3 << shift);
  uint32_t first = 0;
  for (; first + kTileCodes <= n; first += kTileCodes) {
    const auto packed = hn::LoadU(tag, plane + first / 4);
    const auto merge = [&](auto fields, uint32_t k) HWY_ATTR {
      uint8_t* target = codes + first + k * kTileBytes;
      hn::StoreU(hn::Or(hn::LoadU(tag, target), hn::And(fields, field)), tag, target);
    };
    if constexpr (shift == kHighShift) {
      merge(hn::ShiftLeft<2>(packed), 0);
      merge(packed, 1);
      merge(hn::ShiftRight<2>(packed), 2);
      merge(hn::ShiftRight<4>(packed), 3);
    } else {
      merge(packed, 0);
      merge(hn::ShiftRight<2>(packed), 1);
      merge(hn::ShiftRight<4>(packed), 2);
      merge(hn::ShiftRight<6>(packed), 3);
    }
  }
  if (first < n) UnpackTile<shift>(plane + first / 4, n - first, codes + first);
}

/// Codes to values: code * scale + minimum, per channel.
template <DType dtype>
HWY_INLINE void StoreKCodes(const uint8_t* codes, uint32_t n, const DequantizeScratch& ranges,
                            std::byte* target) {
  const FloatsTag tag;
  const hn::Rebind<uint8_t, FloatsTag> bytes;
  const hn::RebindToSigned<FloatsTag> integers;
  for (uint32_t c = 0; c < n; c += static_cast<uint32_t>(hn::Lanes(tag))) {
    const auto code = hn::ConvertTo(tag, hn::PromoteTo(integers, hn::LoadU(bytes, codes + c)));
    // The product is exact: fused or not, one rounding.
    const auto value = hn::MulAdd(code, hn::LoadU(tag, ranges.scale + c), hn::LoadU(tag, ranges.minimum + c));
    StoreRow<dtype>(value, target + c * DTypeBytes(dtype));
  }
}

/// (a + b, a - b) between the lanes of a view of wider elements that are neighbours in pairs.
template <class Tag, class V>
HWY_INLINE Words ButterflyNeighbours(Tag wider, V values, V swapped) {
  const WordsTag tag;
  const auto sums = hn::BitCast(wider, hn::Add(values, swapped));
  const auto differences = hn::BitCast(wider, hn::Sub(swapped, values));
  return hn::BitCast(tag, hn::OddEven(differences, sums));
}

/// Distances 1, 2 and 4, and 8 where a vector has 16 words.
HWY_INLINE Words ButterfliesInVector(Words v) {
  const WordsTag tag;
  const hn::Repartition<int32_t, WordsTag> dwords;
  const hn::Repartition<int64_t, WordsTag> qwords;
  v = ButterflyNeighbours(tag, v, hn::Reverse2(tag, v));
  v = ButterflyNeighbours(dwords, v, hn::BitCast(tag, hn::Shuffle2301(hn::BitCast(dwords, v))));
  v = ButterflyNeighbours(qwords, v, hn::BitCast(tag, hn::Shuffle01(hn::BitCast(qwords, v))));
  if constexpr (kWordLanes == 16) {
    const Words swapped = hn::SwapAdjacentBlocks(v);
    v = hn::OddEvenBlocks(hn::Sub(swapped, v), hn::Add(v, swapped));
  }
  return v;
}

/// z[64] = H64 z.
HWY_INLINE void RotateWords(int16_t* z) {
  const WordsTag tag;
  Words v[kWordVectors];
  for (uint32_t i = 0; i < kWordVectors; ++i) v[i] = ButterfliesInVector(hn::Load(tag, z + i * kWordLanes));
  for (uint32_t distance = 1; distance < kWordVectors; distance *= 2) {
    for (uint32_t i = 0; i < kWordVectors; ++i) {
      if ((i & distance) != 0) continue;
      const Words a = v[i], b = v[i + distance];
      v[i] = hn::Add(a, b);
      v[i + distance] = hn::Sub(a, b);
    }
  }
  for (uint32_t i = 0; i < kWordVectors; ++i) hn::Store(v[i], tag, z + i * kWordLanes);
}

/// One group of V, as DequantizeVGroup and StoreTile.
template <DType dtype>
HWY_INLINE void StoreVGroup(const uint8_t* codes, uint32_t n, int32_t offset, uint8_t scale_byte, VForm form,
                            std::byte* target) {
  const FloatsTag tag;
  const WordsTag words;
  const hn::Rebind<uint8_t, WordsTag> bytes;
  const hn::Rebind<int16_t, FloatsTag> narrow;
  const hn::RebindToSigned<FloatsTag> integers;
  HWY_ALIGN int16_t z[kTileCodes];
  for (uint32_t i = 0; i < n; i += kWordLanes) {
    const Words code = hn::PromoteTo(words, hn::LoadU(bytes, codes + i));
    hn::Store(hn::Add(hn::Add(code, code), hn::Set(words, static_cast<int16_t>(offset))), words, z + i);
  }
  const bool rotates_back = n == kTileCodes && form == VForm::kPlain;
  if (rotates_back) RotateWords(z);
  const float scale = Fp32FromFp16(static_cast<uint16_t>(scale_byte << 7));
  const auto factor = hn::Set(tag, rotates_back ? scale / 16 : scale / 2);
  for (uint32_t i = 0; i < n; i += static_cast<uint32_t>(hn::Lanes(tag))) {
    const auto value = hn::Mul(hn::ConvertTo(tag, hn::PromoteTo(integers, hn::LoadU(narrow, z + i))), factor);
    StoreRow<dtype>(scale_byte == 0 ? hn::Zero(tag) : value, target + i * DTypeBytes(dtype));
  }
}

template <DType dtype>
void DecodeKRow(const DequantizeArgs& args, uint64_t row, const DequantizeScratch& ranges,
                std::byte* target) {
  const uint32_t k_dim = args.shape.k_dim, nb = args.shape.nb;
  HWY_ALIGN uint8_t codes[kMaxHeadDim] = {};
  if (args.in.k_low != nullptr) {
    UnpackRow<kLowShift>(args.in.k_low + row * (k_dim / 4), k_dim, codes);
  } else if (args.in.boost_ids != nullptr) {
    UnpackBoostRow(args.in.boost_low + row * (nb / 4), ranges.boost_ids, nb, codes);
  }
  UnpackRow<kHighShift>(args.in.k_high + row * (k_dim / 4), k_dim, codes);
  StoreKCodes<dtype>(codes, k_dim, ranges, target);
}

template <DType dtype>
void DecodeVRow(const DequantizeArgs& args, uint64_t row, std::byte* target) {
  const uint32_t v_dim = args.shape.v_dim;
  const int32_t offset = args.in.v_low != nullptr ? kVOffsetInt4 : kVOffsetInt2;
  const uint8_t* scales = args.in.v_scale + row * VGroups(args.shape);
  HWY_ALIGN uint8_t codes[kMaxHeadDim] = {};
  UnpackRow<kHighShift>(args.in.v_high + row * (v_dim / 4), v_dim, codes);
  if (args.in.v_low != nullptr) UnpackRow<kLowShift>(args.in.v_low + row * (v_dim / 4), v_dim, codes);
  for (uint32_t first = 0; first < v_dim; first += kTileCodes)
    StoreVGroup<dtype>(codes + first, TileCodes(v_dim, first), offset, scales[first / kTileCodes],
                       args.out.v_form, target + first * DTypeBytes(dtype));
}

/// One layer into rows of neighbouring channels. Stores go through the cache, whatever the view advises.
template <DType dtype>
void DecodeLayerByRows(const DequantizeArgs& args) {
  const simd::RowTargets targets(args);
  DequantizeScratch ranges;
  for (uint32_t head = 0; head < args.shape.kv_heads; ++head) {
    internal::LoadKRanges(SerialTeam(head, nullptr), args, ranges);
    simd::DecodeRawRows(args, head, targets);
    for (uint32_t token = args.shape.nraw; token < args.shape.tokens; ++token) {
      const uint64_t row = PlaneRow(args.shape, head, token);
      DecodeKRow<dtype>(args, row, ranges, targets.K(head) + targets.token_offset[token]);
      DecodeVRow<dtype>(args, row, targets.V(head) + targets.token_offset[token]);
    }
  }
}

}  // namespace kvtier::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // HWY_TARGET

#endif  // per target
