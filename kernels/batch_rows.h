#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>

#include "kernels/batch_numbers.h"
#include "kernels/fp8.h"
#include "kernels/host_device.h"
#include "kernels/layout.h"
#include "kernels/numerics.h"
#include "kernels/target_rows.h"
#include "kernels/team.h"
#include "kernels/tile.h"

// How lanes share the rows of one head: a lane takes the 16 channels whose codes make one word of a plane
// (four runs of four neighbours, a quarter of a tile apart), and strides over tokens. What it needs of a
// channel then stays in registers, and neighbouring lanes read and write neighbouring bytes.

/// Before a loop that a GPU's compiler shall not unroll (over tokens, whose bodies are long), or shall, so
/// that the arrays it walks are registers.
#ifdef __CUDA_ARCH__
#define KVTIER_HD_ROLLED _Pragma("unroll 1")
#define KVTIER_HD_UNROLLED _Pragma("unroll")
#else
#define KVTIER_HD_ROLLED
#define KVTIER_HD_UNROLLED
#endif

namespace kvtier::internal {

/// A team of one lane: it has nobody to exchange values with.
template <Team T>
inline constexpr bool StandsAlone = std::is_same_v<T, SerialTeam>;

inline constexpr uint32_t kRun = 4;            ///< neighbouring channels
inline constexpr uint32_t kColumn = 4 * kRun;  ///< channels of a lane
inline constexpr uint32_t kColumnsPerTile = kTileCodes / kColumn;

/// Where the channels of a column lie: run r begins at channel Run(r).
struct Column {
  uint32_t tile;     ///< first channel of its tile
  uint32_t quarter;  ///< of that tile, in channels
  uint32_t part;     ///< which word of the tile's plane

  KVTIER_HD Column(uint32_t index, uint32_t dim)
      : tile(index / kColumnsPerTile * kTileCodes),
        quarter(TileCodes(dim, tile) / 4),
        part(index % kColumnsPerTile) {}
  KVTIER_HD uint32_t Run(uint32_t r) const { return tile + r * quarter + kRun * part; }
  /// Byte of the column's word in a row of a plane.
  KVTIER_HD uint32_t PlaneByte() const { return tile / 4 + kRun * part; }
};

/// Rows that lanes share by columns: `slices` lanes have the same column, each takes every slices-th token.
struct ColumnTasks {
  uint32_t columns;
  uint32_t slices;

  template <Team T>
  KVTIER_HD ColumnTasks(const T& team, uint32_t columns, uint32_t slices_max)
      : columns(columns), slices(team.size() / columns) {
    slices = slices > slices_max ? slices_max : slices;
    slices = slices > 0 ? slices : 1;
  }
  KVTIER_HD uint32_t count() const { return columns * slices; }
  KVTIER_HD uint32_t ColumnOf(uint32_t task) const { return task % columns; }
  KVTIER_HD uint32_t SliceOf(uint32_t task) const { return task / columns; }
};

/// Elements of a row as they lie in memory.
struct Elements {
  DType dtype;
  float scale;     ///< FP8 only
  int64_t stride;  ///< bytes from one to the next
  bool is_dense;   ///< runs of four lie side by side, at a multiple of their bytes
};

/// KvLayerView::Row in 32-bit arithmetic, which is what a GPU divides in. Tokens of the view are below 2^32.
KVTIER_HD inline int64_t RowOf(const KvLayerView& view, uint32_t head, uint32_t token) {
  const uint32_t t = view.first_token + token;
  const int64_t in_head = head * view.head_stride;
  if (view.page_table == nullptr) return t * view.token_stride + in_head;
  const uint32_t page = t / view.page_tokens, slot = t % view.page_tokens;
  return view.page_table[page] * view.page_stride + slot * view.token_stride + in_head;
}

/// RowOf of all tokens of a block, from its K or V on. Lanes must meet before they use it.
template <Team T>
KVTIER_HD void FindRows(const T& team, const KvLayerView& view, uint32_t head, uint32_t tokens,
                        int64_t* rows) {
  for (uint32_t token = team.rank(); token < tokens; token += team.size())
    rows[token] = RowOf(view, head, token);
}

KVTIER_HD inline Elements ElementsOf(const KvLayerView& view, const std::byte* base, float scale) {
  const uint32_t bytes = DTypeBytes(view.dtype);
  const auto places = static_cast<uint64_t>(reinterpret_cast<uintptr_t>(base)) |
                      static_cast<uint64_t>(view.head_stride) | static_cast<uint64_t>(view.token_stride) |
                      static_cast<uint64_t>(view.page_table == nullptr ? 0 : view.page_stride);
  return {.dtype = view.dtype,
          .scale = scale,
          .stride = view.channel_stride,
          .is_dense = view.channel_stride == bytes && places % (kRun * bytes) == 0};
}

/// A run's values; by value, so that those of the common path stay in registers.
struct Four {
  float value[kRun];
};

KVTIER_HD inline Four FourOf(const float* values) {
  return {{values[0], values[1], values[2], values[3]}};
}

/// An FP8 number without its scale.
KVTIER_HD inline float Fp8Value(uint32_t code, DType dtype) {
  const bool is_e4m3 = dtype == DType::kE4m3;  // else the upper byte of an fp16
  const uint32_t half = is_e4m3 ? (code & 0x80) << 8 | (code & 0x7f) << 7 : code << 8;
  const float value = FromHalf(static_cast<uint16_t>(half)) * (is_e4m3 ? 256.0f : 1.0f);
  return is_e4m3 && (code & 0x7f) == kFp8Nan ? std::numeric_limits<float>::quiet_NaN() : value;
}

/// A run to fp32.
KVTIER_HD inline Four LoadRun(const std::byte* at, const Elements& elements) {
  Four four;
  if (DTypeBytes(elements.dtype) == 2) {
    uint64_t word = 0;
    if (elements.is_dense) {
      word = LoadWord<uint64_t>(at);
    } else {
      KVTIER_HD_UNROLLED
      for (uint32_t i = 0; i < kRun; ++i) word |= uint64_t{Load16(at + i * elements.stride)} << 16 * i;
    }
    KVTIER_HD_UNROLLED
    for (uint32_t i = 0; i < kRun; ++i) {
      const auto half = static_cast<uint16_t>(word >> 16 * i);
      four.value[i] = elements.dtype == DType::kBf16 ? Fp32FromBf16(half) : FromHalf(half);
    }
    return four;
  }
  KVTIER_HD_UNROLLED
  for (uint32_t i = 0; i < kRun; ++i) {
    const auto code = static_cast<uint32_t>(at[i * elements.stride]);
    four.value[i] = Fp8Value(code, elements.dtype) * elements.scale;
  }
  return four;
}

/// A run to 16-bit elements that lie side by side, as decoders end (StoreTile).
KVTIER_HD inline void StoreDenseHalves(const Four& four, DType dtype, std::byte* at) {
  uint64_t word = 0;
  KVTIER_HD_UNROLLED
  for (uint32_t i = 0; i < kRun; ++i) {
    const float clamped = ClampToFp16(four.value[i]);
    const uint16_t half = dtype == DType::kBf16 ? Bf16FromFinite(clamped) : ToHalf(clamped);
    word |= uint64_t{half} << 16 * i;
  }
  StoreWord(at, word);
}

/// A run to elements of any type and stride.
KVTIER_HD inline void StoreRun(const Four& four, const Elements& elements, std::byte* at) {
  KVTIER_HD_ROLLED
  for (uint32_t i = 0; i < kRun; ++i) {
    std::byte* const to = at + i * elements.stride;
    const float clamped = ClampToFp16(four.value[i]);
    if (DTypeBytes(elements.dtype) == 2) {
      Store16(to, elements.dtype == DType::kBf16 ? Bf16FromFinite(clamped) : ToHalf(clamped));
    } else if (elements.dtype == DType::kFp32) {
      memcpy(to, &clamped, sizeof clamped);
    } else {
      *to = static_cast<std::byte>(Fp8Out(clamped, elements.dtype, elements.scale));
    }
  }
}

/// Codes of a column's four runs out of its words of the two planes, a byte each: word r has run r. `low` is
/// 0 where there are no low bits.
struct RunCodes {
  uint32_t of[4];
};
KVTIER_HD inline RunCodes RunCodesOf(uint32_t high, uint32_t low) {
  constexpr uint32_t kUpper = 0xcccccccc, kNibble = 0x0f0f0f0f;
  // Nibbles of the even runs, and of the odd ones.
  const uint32_t even = (high << 2 & kUpper) | (low & ~kUpper);
  const uint32_t odd = (high & kUpper) | (low >> 2 & ~kUpper);
  return {{even & kNibble, odd & kNibble, even >> 4 & kNibble, odd >> 4 & kNibble}};
}

/// Which byte of a row of a 2-bit plane of n codes holds code i, and at which bit.
struct PlaneBits {
  uint32_t byte, shift;
};
KVTIER_HD inline PlaneBits PlaneBitsOf(uint32_t i, uint32_t n) {
  const uint32_t tile = i / kTileCodes * kTileCodes, quarter = TileCodes(n, tile) / 4, j = i - tile;
  return {.byte = tile / 4 + j % quarter, .shift = 2 * (j / quarter)};
}

/// Sum of `value` over the lanes of a warp, in all of them.
template <Team T>
KVTIER_HD double WarpSum(const T& team, double value) {
  for (uint32_t mask = 1; mask < team.warp_size(); mask *= 2) value += team.shfl_xor(value, mask);
  return value;
}
/// Sums of n numbers over all lanes, in all of them; every lane calls. scratch: n for each warp. Starts
/// unsynchronized with its readers: nobody may still read `scratch`. Ends synchronized.
template <uint32_t n, Team T>
KVTIER_HD void TeamSum(const T& team, double* scratch, double* values) {
  const uint32_t warps = (team.size() + team.warp_size() - 1) / team.warp_size();
  const uint32_t warp = team.rank() / team.warp_size();
  for (uint32_t i = 0; i < n; ++i) {
    const double sum = WarpSum(team, values[i]);
    if (team.rank() % team.warp_size() == 0) scratch[warp * n + i] = sum;
  }
  team.sync();
  for (uint32_t i = 0; i < n; ++i) {
    values[i] = 0;
    for (uint32_t w = 0; w < warps; ++w) values[i] += scratch[w * n + i];
  }
  team.sync();
}
inline constexpr uint32_t kWarpsMax = 8;  ///< of a team that runs a batch

}  // namespace kvtier::internal
