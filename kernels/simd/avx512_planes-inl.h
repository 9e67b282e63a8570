// Four tiles of a two-bit plane in one vector. AVX-512 with VBMI and VNNI only.
#include <hwy/highway.h>

#if HWY_TARGET == HWY_AVX3_DL && !defined(KVTIER_KERNELS_SIMD_AVX512_PLANES_INL_H_)
#define KVTIER_KERNELS_SIMD_AVX512_PLANES_INL_H_

#include <immintrin.h>

#include "kernels/layout.h"
#include "kernels/simd/avx512_store-inl.h"
#include "kernels/tile.h"

HWY_PUSH_ATTRIBUTES(HWY_TARGET_STR ",avx512vnni")
namespace kvtier::HWY_NAMESPACE {

inline constexpr uint32_t kSlots = 4;

/// How the rows of one plane fill vectors: a step takes as many whole rows as fit into four slots of 64
/// codes. Slot i * tiles + t holds tile t of row i; a tile of fewer codes is spread over a whole slot.
struct RowSteps {
  uint32_t dim;
  uint32_t tiles;  ///< per row
  uint32_t rows;   ///< per step: 1, 2 or 4, so steps never leave the padded tokens

  explicit RowSteps(uint32_t channels)
      : dim(channels),
        tiles((channels + kTileCodes - 1) / kTileCodes),
        rows(tiles == 1   ? 4
             : tiles == 2 ? 2
                          : 1) {}
  /// Whether a step is 64 bytes of plane, four whole tiles.
  bool IsEven() const { return dim % kTileCodes == 0 && tiles != 3; }
};
/// Tiles per row as a constant of the loops: 1, 2 or 4 for even rows, this for all others.
inline constexpr uint32_t kRagged = 0;

/// Where the two bits of a row's i-th code are, in a row of n codes.
struct PlaneField {
  uint32_t byte, field;
};
HWY_INLINE PlaneField FieldOf(uint32_t n, uint32_t i) {
  const uint32_t first = i / kTileCodes * kTileCodes, quarter = TileCodes(n, first) / 4;
  return {first / 4 + (i - first) % quarter, (i - first) / quarter};
}

/// Masks the first n bytes of a vector, n <= 64.
HWY_INLINE __mmask64 FirstBytes(uint32_t n) {
  return _bzhi_u64(~uint64_t{0}, n);
}

/// Collects two-bit fields from anywhere in a vector into the order of whole tiles: field k of target byte p
/// comes from byte source[k][p], moved so that it lands on bits 2k and 2k + 1, where wanted[k][p] has them.
struct FieldGather {
  alignas(64) uint8_t source[4][64];
  alignas(64) uint8_t bit_offset[4][64];
  alignas(64) uint8_t wanted[4][64];

  void Want(uint32_t byte, uint32_t field, uint32_t source_byte, uint32_t source_field) {
    source[field][byte] = static_cast<uint8_t>(source_byte);
    bit_offset[field][byte] = static_cast<uint8_t>((8 * (byte % 8) + 2 * source_field - 2 * field) % 64);
    wanted[field][byte] = static_cast<uint8_t>(3 << 2 * field);
  }

  HWY_INLINE __m512i operator()(__m512i bytes) const {
    __m512i gathered = _mm512_setzero_si512();
    for (int k = 0; k < 4; ++k) {
      const __m512i picked = _mm512_permutexvar_epi8(_mm512_load_si512(source[k]), bytes);
      const __m512i moved = _mm512_multishift_epi64_epi8(_mm512_load_si512(bit_offset[k]), picked);
      // gathered | (moved & wanted)
      gathered = _mm512_ternarylogic_epi64(gathered, moved, _mm512_load_si512(wanted[k]), 0xf8);
    }
    return gathered;
  }
};

/// How far ahead planes are asked for: far enough for memory to answer.
inline constexpr uint32_t kAheadBytes = 1024;

/// Beyond the end of what is mapped it does nothing.
HWY_INLINE void Prefetch(const uint8_t* bytes) {
  _mm_prefetch(reinterpret_cast<const char*>(bytes), _MM_HINT_T0);
}
/// A plane goes on in the next head, where the hardware would have to find its pace again.
HWY_INLINE void PrefetchAhead(const uint8_t* plane) {
  Prefetch(plane + kAheadBytes);
}
/// Of a section that will be read soon, what PrefetchAhead does not reach. Null is no section.
inline void PrefetchStart(const uint8_t* section, uint64_t bytes) {
  if (section == nullptr) return;
  for (uint64_t at = 0; at < bytes && at < kAheadBytes; at += 64) Prefetch(section + at);
}

/// Reads one plane a step at a time.
class PlaneReader {
 public:
  explicit PlaneReader(const RowSteps& steps) {
    if (steps.IsEven()) return;
    const uint32_t row_bytes = steps.dim / 4;
    bytes_ = FirstBytes(steps.rows * row_bytes);
    gather_ = {};
    for (uint32_t row = 0; row < steps.rows; ++row) {
      for (uint32_t channel = 0; channel < steps.dim; ++channel) {
        const uint32_t slot = row * steps.tiles + channel / kTileCodes, element = channel % kTileCodes;
        const PlaneField from = FieldOf(steps.dim, channel);
        gather_.Want(slot * kTileBytes + element % kTileBytes, element / kTileBytes,
                     row * row_bytes + from.byte, from.field);
      }
    }
  }

  /// `plane` points at the first row of a step.
  template <uint32_t kTiles>
  HWY_INLINE __m512i Read(const uint8_t* plane) const {
    PrefetchAhead(plane);
    if constexpr (kTiles != kRagged) return _mm512_loadu_si512(plane);
    return gather_(_mm512_maskz_loadu_epi8(bytes_, plane));
  }

 private:
  __mmask64 bytes_ = 0;
  FieldGather gather_;
};

/// The codes of four tiles, two in a byte: byte 16 i + j has of tile i
///   even: element j below, element j + 32 above;  odd: element j + 16 below, element j + 48 above.
struct PackedCodes {
  __m512i even, odd;
};
HWY_INLINE PackedCodes PackCodes(__m512i high, __m512i low) {
  const __m512i high_fields = _mm512_set1_epi8(static_cast<char>(0xcc));
  // (a & fields) | (b & ~fields)
  const __m512i even = _mm512_ternarylogic_epi64(high_fields, _mm512_slli_epi16(high, 2), low, 0xca);
  const __m512i odd = _mm512_ternarylogic_epi64(high_fields, high, _mm512_srli_epi16(low, 2), 0xca);
  return {even, odd};
}

/// The slots of one step after the other: where each goes, and how much of it.
template <uint32_t kTiles, uint32_t kElementBytes>
class StepSlots {
 public:
  /// `rows` is where rows of this head begin, but for the token's offset.
  StepSlots(const BlockShape& shape, const RowSteps& steps, std::byte* rows, const int64_t* token_offset)
      : rows_(rows),
        token_offset_(token_offset),
        first_token_(shape.nraw),
        tokens_(shape.tokens),
        steps_(steps) {
    for (uint32_t slot = 0; slot < steps.rows * steps.tiles; ++slot)
      quarters_[slot] = TileCodes(steps.dim, slot % steps.tiles * kTileCodes) / kLanes;
  }

  uint32_t first_token() const { return first_token_ / steps_.rows * steps_.rows; }
  uint32_t tokens() const { return tokens_; }

  HWY_INLINE void MoveTo(uint32_t token) {
    const uint32_t tiles = kTiles != kRagged ? kTiles : steps_.tiles;
    const uint32_t rows = kTiles != kRagged ? kSlots / kTiles : steps_.rows;
    for (uint32_t i = 0; i < rows; ++i) {
      const uint32_t row_token = token + i;
      const bool is_wanted = row_token >= first_token_ && row_token < tokens_;
      std::byte* row = is_wanted ? rows_ + token_offset_[row_token] : nowhere_;
      for (uint32_t t = 0; t < tiles; ++t) target_[i * tiles + t] = row + t * kTileCodes * kElementBytes;
    }
  }
  HWY_INLINE std::byte* Target(uint32_t slot) const { return target_[slot]; }
  /// Of 16 elements: 4, less where a tile is shorter, 0 where there is none.
  HWY_INLINE uint32_t Quarters(uint32_t slot) const { return kTiles != kRagged ? 4 : quarters_[slot]; }
  /// Which tile of its row a slot is.
  HWY_INLINE uint32_t Tile(uint32_t slot) const { return slot % (kTiles != kRagged ? kTiles : steps_.tiles); }

 private:
  std::byte* const rows_;
  const int64_t* const token_offset_;
  const uint32_t first_token_, tokens_;
  const RowSteps steps_;
  uint32_t quarters_[kSlots] = {};
  std::byte* target_[kSlots] = {};
  alignas(64) std::byte nowhere_[kMaxHeadDim * kElementBytes];  ///< for rows that are raw or padding
};

/// For _mm512_permutexvar_epi8: byte j of tile `slot` to the low byte of dword j.
HWY_INLINE __m512i TileToDwords(uint32_t slot) {
  const __m512i lane = _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
  return _mm512_add_epi32(lane, _mm512_set1_epi32(static_cast<int>(slot * kTileBytes)));
}

/// For _mm512_permutexvar_epi8: byte j of tile `slot` to the third byte of dword j.
HWY_INLINE __m512i TileToThirdBytes(uint32_t slot) {
  return _mm512_slli_epi32(TileToDwords(slot), 16);
}

/// For _mm512_permutex2var_epi8(even, _, odd): the even bytes of tile `slot` to the low bytes of words 0..15,
/// its odd ones to words 16..31.
HWY_INLINE __m512i TileToWords(uint32_t slot) {
  const __m256i bytes = _mm256_set_epi8(79, 78, 77, 76, 75, 74, 73, 72, 71, 70, 69, 68, 67, 66, 65, 64,  //
                                        15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
  return _mm512_add_epi8(_mm512_cvtepu8_epi16(bytes), _mm512_set1_epi8(static_cast<char>(slot * kTileBytes)));
}

}  // namespace kvtier::HWY_NAMESPACE
HWY_POP_ATTRIBUTES

#endif
