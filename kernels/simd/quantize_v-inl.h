// V of one head: full groups of 64 channels, rotated. Compiled once per target.

#if defined(KVTIER_KERNELS_SIMD_QUANTIZE_V_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KVTIER_KERNELS_SIMD_QUANTIZE_V_INL_H_
#undef KVTIER_KERNELS_SIMD_QUANTIZE_V_INL_H_
#else
#define KVTIER_KERNELS_SIMD_QUANTIZE_V_INL_H_
#endif

#include <hwy/highway.h>

#include <bit>
#include <cstddef>
#include <cstdint>

#include "kernels/quantize.h"
#include "kernels/simd/pack_tiles-inl.h"
#include "kernels/simd/quantize_k-inl.h"
#include "kernels/simd/rotate-inl.h"
#include "kernels/simd/source_vectors-inl.h"

#if HWY_TARGET != HWY_SCALAR

HWY_BEFORE_NAMESPACE();
namespace kvtier::HWY_NAMESPACE {

inline constexpr uint32_t kVBatch = TileBatch::kTiles;
inline constexpr size_t kVRowShare = 2 * kTileCodes;
inline constexpr int kVGridBits = std::countr_zero(uint32_t{kVGridParts});

/// One group of a head's V, from the first row that is not raw on.
struct VGroup {
  const std::byte* source;  ///< rows `source_stride` bytes apart
  size_t source_stride;
  uint32_t rows;
  uint8_t* scale;  ///< rows `scale_stride` apart
  size_t scale_stride;
  uint8_t* high;  ///< rows `plane_stride` apart
  uint8_t* low;   ///< the same, or null
  size_t plane_stride;
  /// What the caller reads afterwards, kVRowShare bytes a row. It is fetched on the way, in order and evenly:
  /// of every batch half with the first pass, half with the second.
  const std::byte* next;
  bool fetches_planes;  ///< with the first pass, those of all groups of the head

  HWY_INLINE void FetchInFirstPass(uint32_t batch, uint32_t row, uint32_t count) const {
    PrefetchNext(next + batch * kVRowShare + row * (kVRowShare / 2), count * (kVRowShare / 2));
    if (!fetches_planes) return;
    const size_t ahead = (batch + row + kPlaneRowsAhead) * plane_stride;
    PrefetchPlane(high + ahead, count * plane_stride);
    if (low != nullptr) PrefetchPlane(low + ahead, count * plane_stride);
  }
  HWY_INLINE void FetchInSecondPass(uint32_t batch, uint32_t row, uint32_t count) const {
    PrefetchNext(next + batch * kVRowShare + (kVBatch + row) * (kVRowShare / 2), count * (kVRowShare / 2));
  }
};

/// Of sixteen groups. In which order their rows come says VBatch.
struct VScales {
  alignas(64) float inverse[kVBatch];  ///< times the parts of a step and the 1/8 of the rotation
  alignas(64) float weight[kVBatch];   ///< of squared parts; 0 where errors are measured otherwise
  alignas(64) uint16_t scale_byte[kVBatch];
  bool clamps;  ///< whether any of the sixteen has such errors
};

HWY_INLINE Floats MaxMagnitude(Floats a, Floats b) {
#if HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX3_DL
  return Floats{_mm512_range_ps(a.raw, b.raw, 0b1011)};  // the larger magnitude, without a sign
#else
  return hn::Max(hn::Abs(a), hn::Abs(b));
#endif
}

/// Scales from the largest magnitudes of 8 y.
HWY_INLINE void FindVScales(const float* largest_rotated, VScales& scales) {
  const FloatTag df;
  const hn::RebindToUnsigned<FloatTag> d32;
  const hn::Rebind<uint16_t, FloatTag> d16;
  scales.clamps = false;
  for (uint32_t i = 0; i < kVBatch; i += kFloats) {
    const auto largest = hn::Mul(hn::Load(df, largest_rotated + i), hn::Set(df, 0.125f));
    const auto wanted = hn::Mul(largest, hn::Set(df, 0.125f));
    const auto nearest = Fp16Bits(wanted);
    const auto is_below = hn::BitCast(d32, hn::VecFromMask(df, hn::Lt(FromFp16Bits(nearest), wanted)));
    // up16: a mask is -1.
    const auto up = hn::Sub(hn::PromoteTo(d32, nearest), is_below);
    const auto byte = hn::Min(hn::ShiftRight<7>(hn::Add(up, hn::Set(d32, 127u))), hn::Set(d32, 247u));
    const auto byte16 =
        hn::BitCast(d16, hn::DemoteTo(hn::Rebind<int16_t, FloatTag>(), hn::BitCast(Int32Tag(), byte)));
    const auto scale = FromFp16Bits(hn::ShiftLeft<7>(byte16));
    const auto inverse = hn::IfThenZeroElse(hn::Eq(scale, hn::Zero(df)), hn::Div(hn::Set(df, 1.0f), scale));
    const auto part = hn::Mul(scale, hn::Set(df, 1.0f / kVGridParts));
    const auto clamps = hn::Ge(scale, hn::Set(df, 1024.0f));
    hn::Store(hn::Mul(inverse, hn::Set(df, kVGridParts * 0.125f)), df, scales.inverse + i);
    hn::Store(hn::IfThenZeroElse(clamps, hn::Mul(part, part)), df, scales.weight + i);
    hn::Store(byte16, d16, scales.scale_byte + i);
    scales.clamps |= !hn::AllFalse(df, clamps);
  }
}

HWY_INLINE Int32s FloorToInts(Floats v) {
#if HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX3_DL
  return Int32s{_mm512_cvt_roundps_epi32(v.raw, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC)};
#else
  return hn::ConvertTo(Int32Tag(), hn::Floor(v));
#endif
}

/// Distance of positions to the middle of their cell of 2^kBits parts.
template <int kBits>
HWY_INLINE Int16s ToMiddle(Int16s position) {
  const Int16Tag d16;
  return hn::Sub(hn::And(position, hn::Set(d16, int16_t{(1 << kBits) - 1})),
                 hn::Set(d16, int16_t{1 << (kBits - 1)}));
}

/// Codes of positions. Saturation cuts what is above 15 here, what is below 0 when bytes are packed.
HWY_INLINE Int16s VCodes(Int16s position) {
  const auto zero_code = hn::Set(Int16Tag(), int16_t{8 * kVGridParts});
  return hn::ShiftRight<kVGridBits>(hn::SaturatedAdd(position, zero_code));
}

/// Whether a row of one group is zeros, of either sign.
inline bool IsZeroRow(const std::byte* source) {
  constexpr uint64_t kMagnitudes = 0x7fff'7fff'7fff'7fff;
  uint64_t any = 0;
  for (uint32_t i = 0; i < kTileCodes; i += 4) {
    uint64_t four;
    memcpy(&four, source + 2 * i, sizeof four);
    any |= four;
  }
  return (any & kMagnitudes) == 0;
}

/// Errors of a row that the grid cannot tell, by the portable code.
template <class Source>
HWY_NOINLINE RowErrors MeasureDecodedRow(const Source& elements, const std::byte* source) {
  float x[kTileCodes], steps[kTileCodes];
  uint8_t codes[kTileCodes];
  LoadRow(elements, source, kTileCodes, x);
  const uint8_t scale_byte = internal::QuantizeVGroup(x, kTileCodes, steps, codes);
  RowErrorSum sum;
  internal::AddVGroupErrors(x, codes, kTileCodes, scale_byte, sum);
  return sum.Sum();
}

#if HWY_TARGET != HWY_AVX3 && HWY_TARGET != HWY_AVX3_DL

/// Sixteen groups between the two passes.
struct VBatch {
  alignas(64) float rotated[kVBatch][kTileCodes];
  alignas(64) float block_max[kVBatch / 4][kFloats];  ///< per 128 bits: the largest of four rows there
  alignas(64) float largest[kVBatch];
  TileBatch tiles;

  /// Where VScales has a row.
  static constexpr uint32_t LaneOf(uint32_t row) { return row; }
};

/// 8 y of one row to `rotated`; returns the largest magnitudes, lane by lane. The 1/8 of the rotation comes
/// later, with the scale: a power of two changes no rounding.
template <class Source>
HWY_INLINE Floats RotateRow(const Source& elements, const std::byte* source, float* rotated) {
  const FloatTag df;
  Floats v[kTileVectors];
  for (uint32_t i = 0; i < kTileVectors; ++i) v[i] = elements.Load(source + 2 * i * kFloats);
  RotateVectors(v);
  auto largest = MaxMagnitude(v[0], v[1]);
  for (uint32_t i = 2; i < kTileVectors; ++i) largest = MaxMagnitude(largest, v[i]);
  for (uint32_t i = 0; i < kTileVectors; ++i) hn::Store(v[i], df, rotated + i * kFloats);
  return largest;
}

/// Within every 128 bits: lane r is the largest lane of row r.
HWY_INLINE Floats LargestOfFourRows(Floats a, Floats b, Floats c, Floats d) {
  const FloatTag df;
  const hn::ScalableTag<uint64_t> d64;
  const auto ab = hn::BitCast(d64, hn::Max(hn::InterleaveLower(df, a, b), hn::InterleaveUpper(df, a, b)));
  const auto cd = hn::BitCast(d64, hn::Max(hn::InterleaveLower(df, c, d), hn::InterleaveUpper(df, c, d)));
  return hn::Max(hn::BitCast(df, hn::InterleaveLower(d64, ab, cd)),
                 hn::BitCast(df, hn::InterleaveUpper(d64, ab, cd)));
}

/// First pass: rows to the batch, with the largest magnitude of each. Rows beyond the last repeat it.
template <class Source>
HWY_NOINLINE void RotateRows(const Source& elements, const VGroup& group, uint32_t first, uint32_t rows,
                             VBatch& batch) {
  const FloatTag df;
  const hn::Full128<float> d4;
  for (uint32_t row = 0; row < kVBatch; row += 4) {
    if (row >= rows) break;
    Floats largest[4];
    for (uint32_t r = 0; r < 4; ++r) {
      const uint32_t clamped = row + r < rows ? row + r : rows - 1;
      const std::byte* source = group.source + (first + clamped) * group.source_stride;
      largest[r] = RotateRow(elements, source, batch.rotated[row + r]);
    }
    group.FetchInFirstPass(first, row, 4);
    hn::Store(LargestOfFourRows(largest[0], largest[1], largest[2], largest[3]), df,
              batch.block_max[row / 4]);
    auto overall = hn::Load(d4, batch.block_max[row / 4]);
    for (uint32_t block = 4; block < kFloats; block += 4)
      overall = hn::Max(overall, hn::Load(d4, batch.block_max[row / 4] + block));
    hn::Store(overall, d4, batch.largest + row);
  }
}

HWY_INLINE void FindVScales(const VBatch& batch, uint32_t /*rows*/, VScales& scales) {
  FindVScales(batch.largest, scales);
}

/// Adds weight * (sum of squares of a and b), which hold at most four products a lane within int32.
HWY_INLINE Floats AddSquares(Int16s a, Int16s b, Floats weight, Floats sum) {
  const Int32Tag d32;
  Int32s odd = hn::Zero(d32);
  Int32s squares = hn::ReorderWidenMulAccumulate(d32, a, a, hn::Zero(d32), odd);
  squares = hn::Add(hn::ReorderWidenMulAccumulate(d32, b, b, squares, odd), odd);
  return hn::MulAdd(hn::ConvertTo(FloatTag(), squares), weight, sum);
}

/// Second pass, one row: positions on the grid, in parts of a step; from them codes, in block order, and
/// errors.
HWY_INLINE void QuantizeVRow(const VBatch& batch, const VScales& scales, uint32_t row, uint8_t* codes,
                             ErrorVectors& errors) {
  constexpr uint32_t kQuarterVectors = kTileBytes / kFloats;
  const FloatTag df;
  const Int16Tag d16;
  const auto inverse = hn::Set(df, scales.inverse[row]), weight = hn::Set(df, scales.weight[row]);
  for (uint32_t i = 0; i < kQuarterVectors; ++i) {
    Int32s position[4];
    for (uint32_t k = 0; k < 4; ++k)
      position[k] =
          FloorToInts(hn::Mul(hn::Load(df, batch.rotated[row] + k * kTileBytes + i * kFloats), inverse));
    const auto a = hn::ReorderDemote2To(d16, position[0], position[1]);
    const auto b = hn::ReorderDemote2To(d16, position[2], position[3]);
    errors.square = AddSquares(a, b, weight, errors.square);
    errors.int4 = AddSquares(ToMiddle<kVGridBits>(a), ToMiddle<kVGridBits>(b), weight, errors.int4);
    errors.int2 = AddSquares(ToMiddle<kVGridBits + 2>(a), ToMiddle<kVGridBits + 2>(b), weight, errors.int2);
    hn::Store(PackToBytes(VCodes(a), VCodes(b)), ByteTag(), codes + i * 4 * kFloats);
  }
}

/// Second pass: `rows` rows to the planes from row `first` on.
HWY_NOINLINE void QuantizeRows(VBatch& batch, const VGroup& group, uint32_t first, uint32_t rows,
                               const VScales& scales, ErrorVectors& errors) {
  ErrorVectors sums = errors;
  for (uint32_t row = 0; row < rows; ++row) {
    group.FetchInSecondPass(first, row, 1);
    QuantizeVRow(batch, scales, row, batch.tiles.codes[row], sums);
  }
  errors = sums;
  const size_t target = first * group.plane_stride;
  PackTiles(batch.tiles, rows, group.high + target, group.low != nullptr ? group.low + target : nullptr,
            group.plane_stride);
}

#endif  // HWY_TARGET

}  // namespace kvtier::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // HWY_TARGET

#endif
