// From four-bit codes to the two planes, four tiles at a time. Compiled once per target.

#if defined(KVTIER_KERNELS_SIMD_PACK_TILES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KVTIER_KERNELS_SIMD_PACK_TILES_INL_H_
#undef KVTIER_KERNELS_SIMD_PACK_TILES_INL_H_
#else
#define KVTIER_KERNELS_SIMD_PACK_TILES_INL_H_
#endif

#include <hwy/highway.h>

#include <cstddef>
#include <cstdint>

#include "kernels/simd/source_vectors-inl.h"
#include "kernels/tile.h"

#if HWY_TARGET != HWY_SCALAR

HWY_BEFORE_NAMESPACE();
namespace kvtier::HWY_NAMESPACE {

/// Codes of up to sixteen tiles in block order: byte 16 g + 4 k + i of a tile is its code 16 k + 4 g + i (g,
/// k, i below 4). Four such bytes lie in one plane byte, and they lie in the same 128 bits of a vector.
struct TileBatch {
  static constexpr uint32_t kTiles = 16;
  alignas(64) uint8_t codes[kTiles][kTileCodes];
};

/// Signed 16 bit to bytes, limited to 0..255, block by block: a's half, then b's.
HWY_INLINE hn::Vec<ByteTag> PackToBytes(Int16s a, Int16s b) {
#if HWY_TARGET == HWY_AVX2
  return hn::Vec<ByteTag>{_mm256_packus_epi16(a.raw, b.raw)};
#elif HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX3_DL
  return hn::Vec<ByteTag>{_mm512_packus_epi16(a.raw, b.raw)};
#else
  const hn::Half<ByteTag> half;
  return hn::Combine(ByteTag(), hn::DemoteTo(half, b), hn::DemoteTo(half, a));
#endif
}

/// Rows [4][4 bytes] of every plane byte group, group outside, to the 16 bytes of each tile, tile outside.
template <typename Vector>
HWY_INLINE void StoreTiles(const Vector (&planes)[kTileCodes / (4 * kFloats)], uint32_t tiles,
                           uint8_t* target, size_t stride) {
  const hn::ScalableTag<uint32_t> d32;
  const hn::Full128<uint8_t> d128;
  alignas(64) uint8_t bytes[kTileCodes];
#if HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX3_DL
  alignas(64) static constexpr int32_t kTileOutside[16] = {0, 4, 8,  12, 1, 5, 9,  13,
                                                           2, 6, 10, 14, 3, 7, 11, 15};
  const auto by_tile = hn::TableLookupLanes(planes[0], hn::SetTableIndices(d32, kTileOutside));
  if (stride == kTileBytes && tiles == 4) {
    hn::StoreU(hn::BitCast(ByteTag(), by_tile), ByteTag(), target);
    return;
  }
  hn::Store(hn::BitCast(ByteTag(), by_tile), ByteTag(), bytes);
  for (uint32_t tile = 0; tile < tiles; ++tile)
    hn::StoreU(hn::Load(d128, bytes + tile * kTileBytes), d128, target + tile * stride);
#else
  for (uint32_t part = 0; part < kTileCodes / (4 * kFloats); ++part)
    hn::Store(hn::BitCast(ByteTag(), planes[part]), ByteTag(), bytes + part * 4 * kFloats);
  const hn::Full128<uint32_t> block;
  const hn::Repartition<uint64_t, decltype(block)> pair;
  const auto group = [&](uint32_t g) { return hn::BitCast(block, hn::Load(d128, bytes + g * kTileBytes)); };
  const auto low01 = hn::BitCast(pair, hn::InterleaveLower(block, group(0), group(1)));
  const auto high01 = hn::BitCast(pair, hn::InterleaveUpper(block, group(0), group(1)));
  const auto low23 = hn::BitCast(pair, hn::InterleaveLower(block, group(2), group(3)));
  const auto high23 = hn::BitCast(pair, hn::InterleaveUpper(block, group(2), group(3)));
  hn::Store(hn::BitCast(d128, hn::InterleaveLower(pair, low01, low23)), d128, bytes);
  hn::Store(hn::BitCast(d128, hn::InterleaveUpper(pair, low01, low23)), d128, bytes + 16);
  hn::Store(hn::BitCast(d128, hn::InterleaveLower(pair, high01, high23)), d128, bytes + 32);
  hn::Store(hn::BitCast(d128, hn::InterleaveUpper(pair, high01, high23)), d128, bytes + 48);
  for (uint32_t tile = 0; tile < tiles; ++tile)
    hn::StoreU(hn::Load(d128, bytes + tile * kTileBytes), d128, target + tile * stride);
  (void)d32;
#endif
}

/// The planes of four tiles, of which the first `tiles` count, `stride` bytes apart. A null plane is left
/// out.
HWY_INLINE void PackFourTiles(const uint8_t (*codes)[kTileCodes], uint32_t tiles, uint8_t* high, uint8_t* low,
                              size_t stride) {
  constexpr uint32_t kParts = kTileCodes / (4 * kFloats);
  const ByteTag d8;
  const hn::ScalableTag<uint32_t> d32;
  const hn::ScalableTag<uint64_t> d64;
  hn::Vec<decltype(d32)> highs[kParts], lows[kParts];
  for (uint32_t part = 0; part < kParts; ++part) {
    const auto tile = [&](uint32_t t) {
      return hn::BitCast(d32, hn::Load(d8, codes[t] + part * 4 * kFloats));
    };
    // Within 128 bits, a 4 x 4 transpose of what belongs to one k: quarters[k] has four codes of each tile.
    const auto a = hn::BitCast(d64, hn::InterleaveLower(d32, tile(0), tile(1)));
    const auto b = hn::BitCast(d64, hn::InterleaveUpper(d32, tile(0), tile(1)));
    const auto c = hn::BitCast(d64, hn::InterleaveLower(d32, tile(2), tile(3)));
    const auto d = hn::BitCast(d64, hn::InterleaveUpper(d32, tile(2), tile(3)));
    const auto quarter0 = hn::BitCast(d32, hn::InterleaveLower(d64, a, c));
    const auto quarter1 = hn::BitCast(d32, hn::InterleaveUpper(d64, a, c));
    const auto quarter2 = hn::BitCast(d32, hn::InterleaveLower(d64, b, d));
    const auto quarter3 = hn::BitCast(d32, hn::InterleaveUpper(d64, b, d));
    // Codes are below 16, so that shifted 32 bits at a time they stay in their bytes.
    const auto even = hn::Or(quarter0, hn::ShiftLeft<4>(quarter2));
    const auto odd = hn::Or(quarter1, hn::ShiftLeft<4>(quarter3));
    const auto mask = hn::Set(d32, 0x33333333u);
    highs[part] = hn::Or(hn::And(hn::ShiftRight<2>(even), mask), hn::AndNot(mask, odd));
    lows[part] = hn::Or(hn::And(even, mask), hn::AndNot(mask, hn::ShiftLeft<2>(odd)));
  }
  StoreTiles(highs, tiles, high, stride);
  if (low != nullptr) StoreTiles(lows, tiles, low, stride);
}

/// The planes of the first `tiles` of a batch.
inline void PackTiles(const TileBatch& batch, uint32_t tiles, uint8_t* high, uint8_t* low, size_t stride) {
  for (uint32_t tile = 0; tile < tiles; tile += 4) {
    const size_t target = tile * stride;
    PackFourTiles(batch.codes + tile, tiles - tile < 4 ? tiles - tile : 4, high + target,
                  low != nullptr ? low + target : nullptr, stride);
  }
}

}  // namespace kvtier::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // HWY_TARGET

#endif
