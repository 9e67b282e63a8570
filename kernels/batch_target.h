#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/batch_rows.h"
#include "kernels/host_device.h"
#include "kernels/layout.h"
#include "kernels/team.h"

// Where decoders of batches leave the rows of one head.

namespace kvtier::internal {

/// How a destination's elements are stored: 16 bits that lie side by side, or anything else.
enum class Stored : uint8_t { kHalves, kBrains, kAny };

/// A destination's rows, for one head.
template <Stored stored>
struct RowTarget {
  std::byte* k;
  std::byte* v;
  Elements k_elements, v_elements;
  const KvLayerView& view;
  const int64_t* rows;

  KVTIER_HD std::byte* KRow(uint32_t token) const { return k + rows[token]; }
  KVTIER_HD std::byte* VRow(uint32_t token) const { return v + rows[token]; }

  /// Values in the range of fp16.
  KVTIER_HD void StoreK(std::byte* row, uint32_t channel, const Four& four) const {
    Store(four, k_elements, row + channel * Stride(k_elements));
  }
  KVTIER_HD void StoreV(std::byte* row, uint32_t channel, const Four& four) const {
    Store(four, v_elements, row + channel * Stride(v_elements));
  }
  /// Two pairs of fp16, kHalves alone.
  KVTIER_HD static void StoreHalves(std::byte* row, uint32_t channel, uint32_t first, uint32_t second) {
    StoreWord(row + channel * 2, first | uint64_t{second} << 32);
  }

 private:
  KVTIER_HD static int64_t Stride(const Elements& elements) {
    return stored == Stored::kAny ? elements.stride : 2;
  }
  KVTIER_HD static void Store(const Four& four, const Elements& elements, std::byte* at) {
    const float* v = four.value;
    if constexpr (stored == Stored::kHalves) {
      StoreWord(at, ToHalves(v[0], v[1]) | uint64_t{ToHalves(v[2], v[3])} << 32);
    } else if constexpr (stored == Stored::kBrains) {
      StoreWord(at, ToBrains(v[0], v[1]) | uint64_t{ToBrains(v[2], v[3])} << 32);
    } else {
      StoreRun(four, elements, at);
    }
  }
};

KVTIER_HD inline bool IsDenseHalves(const KvLayerView& view) {
  return DTypeBytes(view.dtype) == 2 && ElementsOf(view, view.k, 1).is_dense &&
         ElementsOf(view, view.v, 1).is_dense;
}

/// Lanes must meet before they use the target.
template <Stored stored, Team T>
KVTIER_HD RowTarget<stored> ViewTarget(const T& team, const KvLayerView& view, uint32_t head, uint32_t tokens,
                                       int64_t* rows) {
  FindRows(team, view, head, tokens, rows);
  return {.k = view.k,
          .v = view.v,
          .k_elements = ElementsOf(view, view.k, view.scales.k),
          .v_elements = ElementsOf(view, view.v, view.scales.v),
          .view = view,
          .rows = rows};
}

KVTIER_HD inline Four ClampRun(const Four& four) {
  Four clamped;
  KVTIER_HD_UNROLLED
  for (uint32_t i = 0; i < kRun; ++i) clamped.value[i] = ClampToFp16(four.value[i]);
  return clamped;
}

}  // namespace kvtier::internal
