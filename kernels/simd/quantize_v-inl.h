// V of one head: full groups of 64 channels, rotated. Compiled once per target.

#if defined(KVTIER_KERNELS_SIMD_QUANTIZE_V_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KVTIER_KERNELS_SIMD_QUANTIZE_V_INL_H_
#undef KVTIER_KERNELS_SIMD_QUANTIZE_V_INL_H_
#else
#define KVTIER_KERNELS_SIMD_QUANTIZE_V_INL_H_
#endif

#include <hwy/cache_control.h>
#include <hwy/highway.h>

#include <cstddef>
#include <cstdint>

#include "kernels/quantize.h"
#include "kernels/simd/pack_tiles-inl.h"
#include "kernels/simd/quantize_k-inl.h"
#include "kernels/simd/rotate-inl.h"
#include "kernels/simd/source_vectors-inl.h"

HWY_BEFORE_NAMESPACE();
namespace kvtier::HWY_NAMESPACE {

inline constexpr uint32_t kVBatch = TileBatch::kTiles;

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
  const std::byte* next;  ///< what the caller reads afterwards, in rows like these: is fetched on the way
};

/// Sixteen groups between the two passes.
struct VBatch {
  alignas(64) float rotated[kVBatch][kTileCodes];
  alignas(64) float block_max[kVBatch / 4][kFloats];  ///< per 128 bits: the largest of four rows there
  alignas(64) float largest[kVBatch];
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
HWY_NOINLINE void RotateBatch(const Source& elements, const VGroup& group, uint32_t first, uint32_t rows,
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
      const std::byte* next = group.next + (source - group.source);
      PrefetchNext(next);
      PrefetchNext(next + 64);
      hwy::Prefetch(group.high + (first + clamped) * group.plane_stride);
      if (group.low != nullptr) hwy::Prefetch(group.low + (first + clamped) * group.plane_stride);
    }
    hn::Store(LargestOfFourRows(largest[0], largest[1], largest[2], largest[3]), df,
              batch.block_max[row / 4]);
    auto overall = hn::Load(d4, batch.block_max[row / 4]);
    for (uint32_t block = 4; block < kFloats; block += 4)
      overall = hn::Max(overall, hn::Load(d4, batch.block_max[row / 4] + block));
    hn::Store(overall, d4, batch.largest + row);
  }
}

/// Scales of a batch from its largest magnitudes.
HWY_INLINE void FindVScales(VBatch& batch) {
  const FloatTag df;
  const hn::RebindToUnsigned<FloatTag> d32;
  const hn::Rebind<uint16_t, FloatTag> d16;
  batch.clamps = false;
  for (uint32_t i = 0; i < kVBatch; i += kFloats) {
    const auto largest = hn::Mul(hn::Load(df, batch.largest + i), hn::Set(df, 0.125f));
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
    hn::Store(hn::Mul(inverse, hn::Set(df, kVGridParts * 0.125f)), df, batch.inverse + i);
    hn::Store(hn::IfThenZeroElse(clamps, hn::Mul(part, part)), df, batch.weight + i);
    hn::Store(byte16, d16, batch.scale_byte + i);
    batch.clamps |= !hn::AllFalse(df, clamps);
  }
}

HWY_INLINE Int32s FloorToInts(Floats v) {
#if HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX3_DL
  return Int32s{_mm512_cvt_roundps_epi32(v.raw, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC)};
#else
  return hn::ConvertTo(Int32Tag(), hn::Floor(v));
#endif
}

/// Adds weight * (sum of squares of a and b), which hold at most four products a lane within int32.
HWY_INLINE Floats AddSquares(Int16s a, Int16s b, Floats weight, Floats sum) {
#if HWY_TARGET == HWY_AVX3_DL
  // By name: Highway 1.0.3 looks for AVX512_VNNI when it chooses this target, but does not tell the compiler.
  Int32s squares{_mm512_madd_epi16(a.raw, a.raw)};
  asm("vpdpwssd %1, %1, %0" : "+v"(squares.raw) : "v"(b.raw));
#else
  const Int32Tag d32;
  Int32s odd = hn::Zero(d32);
  Int32s squares = hn::ReorderWidenMulAccumulate(d32, a, a, hn::Zero(d32), odd);
  squares = hn::Add(hn::ReorderWidenMulAccumulate(d32, b, b, squares, odd), odd);
#endif
  return hn::MulAdd(hn::ConvertTo(FloatTag(), squares), weight, sum);
}

/// Distance of positions to the middle of their cell of 2^kBits parts.
template <int kBits>
HWY_INLINE Int16s ToMiddle(Int16s position) {
  const Int16Tag d16;
  return hn::Sub(hn::And(position, hn::Set(d16, int16_t{(1 << kBits) - 1})),
                 hn::Set(d16, int16_t{1 << (kBits - 1)}));
}

/// Second pass, one row: positions on the grid, in parts of a step; from them codes, in block order, and
/// errors.
HWY_INLINE void QuantizeVRow(const VBatch& batch, uint32_t row, uint8_t* codes, ErrorVectors& errors) {
  constexpr uint32_t kQuarterVectors = kTileBytes / kFloats;
  static_assert(kVGridParts == 1 << 11);
  const FloatTag df;
  const Int16Tag d16;
  const auto inverse = hn::Set(df, batch.inverse[row]), weight = hn::Set(df, batch.weight[row]);
  for (uint32_t i = 0; i < kQuarterVectors; ++i) {
    Int32s position[4];
    for (uint32_t k = 0; k < 4; ++k)
      position[k] =
          FloorToInts(hn::Mul(hn::Load(df, batch.rotated[row] + k * kTileBytes + i * kFloats), inverse));
    const auto a = hn::ReorderDemote2To(d16, position[0], position[1]);
    const auto b = hn::ReorderDemote2To(d16, position[2], position[3]);
    errors.square = AddSquares(a, b, weight, errors.square);
    errors.int4 = AddSquares(ToMiddle<11>(a), ToMiddle<11>(b), weight, errors.int4);
    errors.int2 = AddSquares(ToMiddle<13>(a), ToMiddle<13>(b), weight, errors.int2);
    // Code 8 is zero. Saturation cuts what is above 15 here, what is below 0 when bytes are packed.
    const auto eight = hn::Set(d16, int16_t{8 * kVGridParts});
    hn::Store(PackToBytes(hn::ShiftRight<11>(hn::SaturatedAdd(a, eight)),
                          hn::ShiftRight<11>(hn::SaturatedAdd(b, eight))),
              ByteTag(), codes + i * 4 * kFloats);
  }
}

/// Second pass: all rows of a batch.
HWY_NOINLINE void QuantizeVBatch(const VBatch& batch, uint32_t rows, TileBatch& tiles, ErrorVectors& errors) {
  ErrorVectors sums = errors;
  for (uint32_t row = 0; row < rows; ++row) QuantizeVRow(batch, row, tiles.codes[row], sums);
  errors = sums;
}

/// Errors of a row whose decoded values may be clamped, by the portable code.
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

}  // namespace kvtier::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
