// Four tiles of a two-bit plane in one vector. AVX-512 with VBMI and VNNI only.
#include <hwy/highway.h>

#if HWY_TARGET == HWY_AVX3_DL && !defined(KVTIER_KERNELS_SIMD_AVX512_PLANES_INL_H_)
#define KVTIER_KERNELS_SIMD_AVX512_PLANES_INL_H_

#include <immintrin.h>

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
enum class RowShape : uint8_t { kEven, kRagged };

/// Masks the first n bytes of a vector, n <= 64.
HWY_INLINE __mmask64 FirstBytes(uint32_t n) {
  return _bzhi_u64(~uint64_t{0}, n);
}

/// Collects two-bit fields from anywhere in a vector into the order of whole tiles: field k of target byte p
/// comes from byte source[k][p], moved so that it lands on bits 2k and 2k + 1; zero where not wanted.
struct FieldGather {
  alignas(64) uint8_t source[4][64];
  alignas(64) uint8_t bit_offset[4][64];
  uint64_t wanted[4];

  /// Which field of which byte becomes element `element` of the tile in `slot`.
  void Want(uint32_t slot, uint32_t element, uint32_t source_byte, uint32_t source_field) {
    const uint32_t k = element / kTileBytes, byte = slot * kTileBytes + element % kTileBytes;
    source[k][byte] = static_cast<uint8_t>(source_byte);
    bit_offset[k][byte] = static_cast<uint8_t>((8 * (byte % 8) + 2 * source_field - 2 * k) % 64);
    wanted[k] |= uint64_t{1} << byte;
  }

  HWY_INLINE __m512i operator()(__m512i bytes) const {
    __m512i gathered = _mm512_setzero_si512();
    for (int k = 0; k < 4; ++k) {
      const __m512i picked = _mm512_maskz_permutexvar_epi8(wanted[k], _mm512_load_si512(source[k]), bytes);
      const __m512i moved = _mm512_multishift_epi64_epi8(_mm512_load_si512(bit_offset[k]), picked);
      // gathered | (moved & field k)
      gathered =
          _mm512_ternarylogic_epi64(gathered, moved, _mm512_set1_epi8(static_cast<char>(3 << 2 * k)), 0xf8);
    }
    return gathered;
  }
};

/// Reads one plane a step at a time.
class PlaneReader {
 public:
  explicit PlaneReader(const RowSteps& steps) : is_even_(steps.IsEven()) {
    if (is_even_) return;
    const uint32_t row_bytes = steps.dim / 4;
    bytes_ = FirstBytes(steps.rows * row_bytes);
    gather_ = {};
    for (uint32_t row = 0; row < steps.rows; ++row) {
      for (uint32_t channel = 0; channel < steps.dim; ++channel) {
        const uint32_t tile = channel / kTileCodes, element = channel % kTileCodes;
        const uint32_t quarter = TileCodes(steps.dim, tile * kTileCodes) / 4;
        gather_.Want(row * steps.tiles + tile, element,
                     row * row_bytes + tile * kTileBytes + element % quarter, element / quarter);
      }
    }
  }

  /// `plane` points at the first row of a step.
  HWY_INLINE __m512i Read(const uint8_t* plane) const {
    if (HWY_LIKELY(is_even_)) return _mm512_loadu_si512(plane);
    return gather_(_mm512_maskz_loadu_epi8(bytes_, plane));
  }

 private:
  bool is_even_;
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

/// What is behind each slot of a step.
struct StepSlots {
  uint32_t tile[kSlots] = {};      ///< of its row
  uint32_t quarters[kSlots] = {};  ///< of 16 elements: 4, less where a tile is shorter, 0 where there is none
  std::byte* target[kSlots] = {};

  explicit StepSlots(const RowSteps& steps) {
    for (uint32_t slot = 0; slot < steps.rows * steps.tiles; ++slot) {
      tile[slot] = slot % steps.tiles;
      quarters[slot] = TileCodes(steps.dim, tile[slot] * kTileCodes) / 16;
    }
  }
};

/// For _mm512_permutexvar_epi8: byte j of tile `slot` to the low byte of dword j.
HWY_INLINE __m512i TileToDwords(int slot) {
  const __m512i lane = _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
  return _mm512_add_epi32(lane, _mm512_set1_epi32(slot * static_cast<int>(kTileBytes)));
}

/// For _mm512_permutex2var_epi8(even, _, odd): the even bytes of tile `slot` to the low bytes of words 0..15,
/// its odd ones to words 16..31.
HWY_INLINE __m512i TileToWords(int slot) {
  const __m256i bytes = _mm256_set_epi8(79, 78, 77, 76, 75, 74, 73, 72, 71, 70, 69, 68, 67, 66, 65, 64,  //
                                        15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
  return _mm512_add_epi8(_mm512_cvtepu8_epi16(bytes), _mm512_set1_epi8(static_cast<char>(slot * 16)));
}

}  // namespace kvtier::HWY_NAMESPACE
HWY_POP_ATTRIBUTES

#endif
