#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include "kernels/layout.h"

namespace kvtier {

/// How an engine may lay out one layer. Sizes for the wider of K and V, since one view has one set of
/// strides.
struct EngineLayout {
  std::string name;
  uint64_t bytes = 0;
  uint64_t k_offset = 0, v_offset = 0;
  KvLayerView strides = {};         ///< without base pointers and dtype
  std::vector<int32_t> pages = {};  ///< page table; empty where the layout has none

  KvLayerView View(std::byte* base, DType dtype) const {
    KvLayerView view = strides;
    view.k = base + k_offset;
    view.v = base + v_offset;
    view.dtype = dtype;
    view.page_table = pages.empty() ? nullptr : pages.data();
    return view;
  }
};

/// Pages of `page_tokens` in scattered order, the block beginning at token `first_token` of the table.
/// Engines keep [page][K, V][slot][head][channel], or [page][K, V][head][slot][channel].
inline EngineLayout PagedLayout(const std::string& name, const BlockShape& s, int64_t element_bytes,
                                uint32_t page_tokens, uint32_t first_token, bool heads_first = false) {
  const int64_t row = std::max(s.k_dim, s.v_dim) * element_bytes,
                plane = int64_t{page_tokens} * s.kv_heads * row;
  const uint32_t pages = (first_token + s.tokens + page_tokens - 1) / page_tokens;
  EngineLayout layout{.name = name, .bytes = 2 * static_cast<uint64_t>(plane) * (pages + 1)};
  for (uint32_t page = 0; page < pages; ++page)  // backwards, with a page of somebody else at the front
    layout.pages.push_back(static_cast<int32_t>(pages - page));
  layout.v_offset = static_cast<uint64_t>(plane);
  layout.strides = {.head_stride = heads_first ? page_tokens * row : row,
                    .token_stride = heads_first ? row : s.kv_heads * row,
                    .channel_stride = element_bytes,
                    .page_tokens = page_tokens,
                    .page_stride = 2 * plane,
                    .first_token = first_token};
  return layout;
}

inline std::vector<EngineLayout> EngineLayouts(const BlockShape& s, uint32_t element_bytes = 2) {
  const int64_t heads = s.kv_heads, tokens = s.tokens, e = element_bytes;
  const int64_t row = std::max(s.k_dim, s.v_dim) * e;
  const auto plane = static_cast<uint64_t>(heads * tokens * row);
  return {
      {"HeadsFirst",
       2 * plane,
       0,
       plane,
       {.head_stride = tokens * row, .token_stride = row, .channel_stride = e},
       {}},
      {"TokensFirst",
       2 * plane,
       0,
       plane,
       {.head_stride = row, .token_stride = heads * row, .channel_stride = e},
       {}},
      {"KAndVOfATokenTogether",
       2 * plane,
       0,
       static_cast<uint64_t>(heads * row),
       {.head_stride = row, .token_stride = 2 * heads * row, .channel_stride = e},
       {}},
      {"ChannelsFirst",
       2 * plane,
       0,
       plane,
       {.head_stride = tokens * row, .token_stride = e, .channel_stride = tokens * e},
       {}},
      {"SpacedOut",
       3 * plane + 2 * plane,
       0,
       element_bytes,
       {.head_stride = tokens * row * 2, .token_stride = row * 2, .channel_stride = 2 * e},
       {}},
      {"InTheMiddleOfALongSequence",
       2 * plane * 3,
       0,
       plane * 3,
       {.head_stride = 3 * tokens * row,
        .token_stride = row,
        .channel_stride = e,
        .first_token = static_cast<uint32_t>(tokens)},
       {}},
      PagedLayout("PagesOf16", s, e, 16, 16),
      PagedLayout("PagesOf16FromTheMiddle", s, e, 16, 5),
      PagedLayout("PagesOf1", s, e, 1, 2),
      PagedLayout("OnePage", s, e, 256, 0),
      PagedLayout("PagesOf16HeadsFirst", s, e, 16, 5, /*heads_first=*/true),
  };
}

}  // namespace kvtier
