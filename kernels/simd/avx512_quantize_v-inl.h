// Full V groups on AVX-512, four rows at a time. Compiled once per target.

#if defined(KVTIER_KERNELS_SIMD_AVX512_QUANTIZE_V_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KVTIER_KERNELS_SIMD_AVX512_QUANTIZE_V_INL_H_
#undef KVTIER_KERNELS_SIMD_AVX512_QUANTIZE_V_INL_H_
#else
#define KVTIER_KERNELS_SIMD_AVX512_QUANTIZE_V_INL_H_
#endif

#include <hwy/highway.h>

#include <cstddef>
#include <cstdint>

#include "kernels/simd/avx512_pack-inl.h"
#include "kernels/simd/quantize_v-inl.h"

#if HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX3_DL

HWY_BEFORE_NAMESPACE();
namespace kvtier::HWY_NAMESPACE {

// A vector of four rows has four neighbouring channels of one row in each of its 128-bit blocks: two of the
// six stages of the rotation stay inside blocks, the others and the packing go between vectors.
inline constexpr uint32_t kRowVectors = kTileCodes / 4;

/// Sixteen groups between the two passes.
struct VBatch {
  static constexpr uint32_t kGroups = kVBatch / 4;
  alignas(64) float rotated[kGroups][kRowVectors][16];
  alignas(64) float largest[kGroups][16] = {};  ///< four times each row's

  /// Where VScales has a row.
  static constexpr uint32_t LaneOf(uint32_t row) { return row % 4 * 4 + row / 4; }
};

/// 32 channels of four rows, transposed in pieces of four channels.
HWY_INLINE void TransposeHalf(const std::byte* const (&source)[4], size_t offset, uint16_t (*half)[16]) {
  const auto load = [&](uint32_t row) { return _mm512_loadu_si512(source[row] + offset); };
  const __m512i r0 = load(0), r1 = load(1), r2 = load(2), r3 = load(3);
  const __m512i low01 = _mm512_unpacklo_epi64(r0, r1), high01 = _mm512_unpackhi_epi64(r0, r1);
  const __m512i low23 = _mm512_unpacklo_epi64(r2, r3), high23 = _mm512_unpackhi_epi64(r2, r3);
  const __m512i first = _mm512_setr_epi64(0, 1, 8, 9, 2, 3, 10, 11);
  const __m512i second = _mm512_setr_epi64(4, 5, 12, 13, 6, 7, 14, 15);
  _mm512_store_si512(half[0], _mm512_permutex2var_epi64(low01, first, low23));
  _mm512_store_si512(half[2], _mm512_permutex2var_epi64(high01, first, high23));
  _mm512_store_si512(half[4], _mm512_permutex2var_epi64(low01, second, low23));
  _mm512_store_si512(half[6], _mm512_permutex2var_epi64(high01, second, high23));
}

template <uint32_t distance>
HWY_INLINE void ButterflyRows(Floats (&v)[kRowVectors]) {
  for (uint32_t start = 0; start < kRowVectors; start += 2 * distance) {
    for (uint32_t i = start; i < start + distance; ++i) {
      const Floats a = v[i], b = v[i + distance];
      v[i] = hn::Add(a, b);
      v[i + distance] = hn::Sub(a, b);
    }
  }
}

/// 8 y of four rows, and the largest magnitude of each.
template <class Source>
HWY_INLINE void RotateFourRows(const Source& elements, const std::byte* const (&source)[4],
                               float (&rotated)[kRowVectors][16], float* largest) {
  // Pieces of four channels lie as TransposeHalf leaves them.
  static constexpr uint32_t kPiece[8] = {0, 2, 1, 3, 4, 6, 5, 7};
  const FloatTag df;
  alignas(64) uint16_t pieces[kRowVectors][16];
  TransposeHalf(source, 0, pieces);
  TransposeHalf(source, 64, pieces + 8);
  // Out of memory halves are widened in one operation; compilers would rather cut them out of registers.
  asm("" : "+m"(pieces));
  Floats v[kRowVectors];
  for (uint32_t i = 0; i < kRowVectors; ++i) {
    v[i] = elements.Load(pieces[i / 8 * 8 + kPiece[i % 8]]);
    v[i] = ButterflyLanes<2>(ButterflyLanes<1>(v[i]));
  }
  ButterflyRows<1>(v);
  ButterflyRows<2>(v);
  ButterflyRows<4>(v);
  ButterflyRows<8>(v);
  Floats top[4];
  for (uint32_t i = 0; i < 4; ++i) top[i] = MaxMagnitude(v[i], v[i + 4]);
  for (uint32_t i = 0; i < 4; ++i) top[i] = MaxMagnitude(MaxMagnitude(v[i + 8], v[i + 12]), top[i]);
  for (uint32_t i = 0; i < kRowVectors; ++i) hn::Store(v[i], df, rotated[i]);
  auto overall = MaxMagnitude(MaxMagnitude(top[0], top[1]), MaxMagnitude(top[2], top[3]));
  overall = hn::Max(overall, hn::Shuffle2301(overall));
  overall = hn::Max(overall, hn::Shuffle1032(overall));
  hn::Store(overall, df, largest);
}

/// First pass. Rows beyond the last repeat it.
template <class Source>
HWY_NOINLINE void RotateRows(const Source& elements, const VGroup& group, uint32_t first, uint32_t rows,
                             VBatch& batch) {
  for (uint32_t row = 0; row < rows; row += 4) {
    const std::byte* source[4];
    for (uint32_t r = 0; r < 4; ++r) {
      const uint32_t at = first + (row + r < rows ? row + r : rows - 1);
      source[r] = group.source + at * group.source_stride;
    }
    group.FetchInFirstPass(first, row, 4);
    RotateFourRows(elements, source, batch.rotated[row / 4], batch.largest[row / 4]);
  }
}

/// Scales of the first `rows` rows; the others weigh nothing.
HWY_INLINE void FindVScales(const VBatch& batch, uint32_t rows, VScales& scales) {
  const FloatTag df;
  Floats largest = hn::Load(df, batch.largest[0]);
  for (uint32_t g = 1; g < VBatch::kGroups; ++g)
    largest.raw = _mm512_mask_mov_ps(largest.raw, static_cast<__mmask16>(0x1111 << g),
                                     hn::Load(df, batch.largest[g]).raw);
  alignas(64) float by_lane[kVBatch];
  hn::Store(largest, df, by_lane);
  FindVScales(by_lane, scales);
  for (uint32_t row = rows; row < kVBatch; ++row) scales.weight[VBatch::LaneOf(row)] = 0;
}

/// Lane g of every block to all of it.
HWY_INLINE Floats BroadcastInBlocks(Floats v, uint32_t g) {
  switch (g) {
    case 0:
      return Floats{_mm512_permute_ps(v.raw, 0x00)};
    case 1:
      return Floats{_mm512_permute_ps(v.raw, 0x55)};
    case 2:
      return Floats{_mm512_permute_ps(v.raw, 0xaa)};
    default:
      return Floats{_mm512_permute_ps(v.raw, 0xff)};
  }
}

/// Adds the squares of positions' distances to the middle of their cell of 2^kBits parts.
template <int kBits>
HWY_INLINE void AddOffMiddle(__m512i positions, __m512i& sum) {
  const __m512i off = ToMiddle<kBits>(Int16s{positions}).raw;
#if HWY_TARGET == HWY_AVX3_DL
  // By name: Highway 1.0.3 looks for AVX512_VNNI when it chooses this target, but does not tell the compiler.
  asm("vpdpwssd %1, %1, %0" : "+v"(sum) : "v"(off));
#else
  sum = _mm512_add_epi32(sum, _mm512_madd_epi16(off, off));
#endif
}

/// Second pass, four rows: positions on the grid; from them codes and errors.
HWY_INLINE FourTiles QuantizeFourVRows(const float (&rotated)[kRowVectors][16], Floats inverse, Floats weight,
                                       ErrorVectors& errors) {
  const FloatTag df;
  FourTiles quarters;
  Floats square = hn::Zero(df);
  __m512i int4 = _mm512_setzero_si512(), int2 = int4;
  for (uint32_t k = 0; k < 4; ++k) {
    __m512i position[4];
    for (uint32_t i = 0; i < 4; ++i) {
      const auto parts = hn::Mul(hn::Load(df, rotated[4 * k + i]), inverse);
      square = hn::MulAdd(parts, parts, square);
      position[i] = FloorToInts(parts).raw;
    }
    const __m512i a = _mm512_packs_epi32(position[0], position[1]);
    const __m512i b = _mm512_packs_epi32(position[2], position[3]);
    AddOffMiddle<kVGridBits>(a, int4);
    AddOffMiddle<kVGridBits>(b, int4);
    AddOffMiddle<kVGridBits + 2>(a, int2);
    AddOffMiddle<kVGridBits + 2>(b, int2);
    quarters.codes[k] = PackToBytes(VCodes(Int16s{a}), VCodes(Int16s{b})).raw;
  }
  const auto add = [&](__m512i sum, Floats& errors_sum) {
    errors_sum = hn::MulAdd(Floats{_mm512_cvtepi32_ps(sum)}, weight, errors_sum);
  };
  errors.square = hn::MulAdd(square, weight, errors.square);
  add(int4, errors.int4);
  add(int2, errors.int2);
  return quarters;
}

/// Second pass: `rows` rows to the planes from row `first` on.
HWY_NOINLINE void QuantizeRows(const VBatch& batch, const VGroup& group, uint32_t first, uint32_t rows,
                               const VScales& scales, ErrorVectors& errors) {
  const FloatTag df;
  const auto inverse = hn::Load(df, scales.inverse), weight = hn::Load(df, scales.weight);
  ErrorVectors sums = errors;
  for (uint32_t row = 0; row < rows; row += 4) {
    const uint32_t here = rows - row < 4 ? rows - row : 4;
    const size_t target = (first + row) * group.plane_stride;
    group.FetchInSecondPass(first, row, 4);
    const FourTiles quarters = QuantizeFourVRows(batch.rotated[row / 4], BroadcastInBlocks(inverse, row / 4),
                                                 BroadcastInBlocks(weight, row / 4), sums);
    StoreFourRows(quarters.High(), here, group.high + target, group.plane_stride);
    if (group.low != nullptr) StoreFourRows(quarters.Low(), here, group.low + target, group.plane_stride);
  }
  errors = sums;
}

}  // namespace kvtier::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // HWY_TARGET

#endif
