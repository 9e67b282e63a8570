#include <algorithm>
#include <cstring>

#include "codecs/codec.h"
#include "kernels/simd/convert_simd.h"
#include "kernels/simd/copy_simd.h"
#include "tiers/base/check.h"

namespace kvtier {
namespace {

/// K or V of a layer: a strided plane and its contiguous form [heads][tokens][dim], in its own type.
struct Plane {
  uint32_t heads;
  uint32_t tokens;
  uint32_t dim;
  DType raw_dtype;
  std::byte* base;
  const KvLayerView& view;

  /// In elements.
  uint64_t RawOffset(uint32_t head, uint32_t token) const { return (uint64_t{head} * tokens + token) * dim; }
  std::byte* RowAt(uint32_t head, uint32_t token) const { return base + view.Row(head, token); }
  bool ChannelsAdjoin() const { return view.channel_stride == DTypeBytes(view.dtype); }
  /// Tokens from `token` on that lie token_stride apart: to the end of the page.
  uint32_t RunTokens(uint32_t token) const {
    if (view.page_table == nullptr) return tokens - token;
    const uint32_t slot = (view.first_token + token) % view.page_tokens;
    return std::min(tokens - token, view.page_tokens - slot);
  }
};

/// Calls move(address in the view, first element of the raw form, elements) for pieces as long as the strides
/// allow. Needs adjoining channels.
template <typename Move>
void ForEachPiece(const Plane& plane, const Move& move) {
  const uint64_t row_bytes = uint64_t{plane.dim} * DTypeBytes(plane.view.dtype);
  const bool rows_adjoin = plane.view.token_stride == static_cast<int64_t>(row_bytes);
  for (uint32_t token = 0; token < plane.tokens;) {
    const uint32_t run = plane.RunTokens(token);
    const bool heads_adjoin = rows_adjoin && run == plane.tokens &&
                              plane.view.head_stride == static_cast<int64_t>(plane.tokens * row_bytes);
    if (heads_adjoin) {
      move(plane.RowAt(0, 0), uint64_t{0}, uint64_t{plane.heads} * plane.tokens * plane.dim);
    } else if (rows_adjoin) {
      for (uint32_t head = 0; head < plane.heads; ++head)
        move(plane.RowAt(head, token), plane.RawOffset(head, token), uint64_t{run} * plane.dim);
    } else {
      // Tokens outside: with heads side by side the view is walked in address order.
      std::byte* const first = plane.RowAt(0, token);
      for (uint32_t i = 0; i < run; ++i) {
        for (uint32_t head = 0; head < plane.heads; ++head) {
          move(first + i * plane.view.token_stride + head * plane.view.head_stride,
               plane.RawOffset(head, token + i), uint64_t{plane.dim});
        }
      }
    }
    token += run;
  }
}

/// Calls move(address in the view, first element of the raw form) for every row.
template <typename Move>
void ForEachRow(const Plane& plane, const Move& move) {
  for (uint32_t head = 0; head < plane.heads; ++head)
    for (uint32_t token = 0; token < plane.tokens; ++token)
      move(plane.RowAt(head, token), plane.RawOffset(head, token));
}

/// memcpy, without a call for one row of the usual heads: a block has tens of thousands of them.
void CopyPiece(std::byte* to, const std::byte* from, uint64_t bytes) {
  switch (bytes) {
    case 128:
      memcpy(to, from, 128);
      return;
    case 256:
      memcpy(to, from, 256);
      return;
    default:
      memcpy(to, from, bytes);
  }
}

/// n elements of `bytes` each, between places with different strides.
template <uint32_t bytes>
void CopyElements(std::byte* to, int64_t to_stride, const std::byte* from, int64_t from_stride, uint32_t n) {
  for (uint32_t i = 0; i < n; ++i) memcpy(to + i * to_stride, from + i * from_stride, bytes);
}
void CopyElements(uint32_t bytes, std::byte* to, int64_t to_stride, const std::byte* from,
                  int64_t from_stride, uint32_t n) {
  if (bytes == 1) return CopyElements<1>(to, to_stride, from, from_stride, n);
  if (bytes == 2) return CopyElements<2>(to, to_stride, from, from_stride, n);
  CopyElements<4>(to, to_stride, from, from_stride, n);
}

void CopyPlane(const Plane& plane, const RowConversion& conversion, const std::byte* raw) {
  const uint32_t raw_bytes = DTypeBytes(plane.raw_dtype), bytes = DTypeBytes(plane.view.dtype);
  if (!plane.ChannelsAdjoin()) {
    ForEachRow(plane, [&](std::byte* at, uint64_t first) {
      alignas(64) std::byte row[kMaxHeadDim * sizeof(float)];
      ConvertSimd(conversion, raw + first * raw_bytes, plane.dim, row, Stores::kCached);
      CopyElements(bytes, at, plane.view.channel_stride, row, bytes, plane.dim);
    });
  } else if (conversion.form == VForm::kRotated) {
    ForEachRow(plane, [&](std::byte* at, uint64_t first) {
      ConvertSimd(conversion, raw + first * raw_bytes, plane.dim, at, plane.view.stores);
    });
  } else if (conversion.from == conversion.to && plane.view.stores == Stores::kCached) {
    ForEachPiece(plane, [&](std::byte* at, uint64_t first, uint64_t n) {
      CopyPiece(at, raw + first * bytes, n * bytes);
    });
  } else {
    ForEachPiece(plane, [&](std::byte* at, uint64_t first, uint64_t n) {
      ConvertSimd(conversion, raw + first * raw_bytes, n, at, plane.view.stores);
    });
  }
}

void GatherPlane(const Plane& plane, std::byte* raw) {
  const uint32_t bytes = DTypeBytes(plane.raw_dtype);
  if (plane.ChannelsAdjoin()) {
    ForEachPiece(plane, [&](const std::byte* at, uint64_t first, uint64_t n) {
      CopyPiece(raw + first * bytes, at, n * bytes);
    });
  } else {
    ForEachRow(plane, [&](const std::byte* at, uint64_t first) {
      CopyElements(bytes, raw + first * bytes, bytes, at, plane.view.channel_stride, plane.dim);
    });
  }
}

Plane KPlane(const BlockShape& s, const KvLayerView& view) {
  return {.heads = s.kv_heads,
          .tokens = s.tokens,
          .dim = s.k_dim,
          .raw_dtype = s.dtype,
          .base = view.k,
          .view = view};
}
Plane VPlane(const BlockShape& s, const KvLayerView& view) {
  return {.heads = s.kv_heads,
          .tokens = s.tokens,
          .dim = s.v_dim,
          .raw_dtype = s.dtype,
          .base = view.v,
          .view = view};
}
uint64_t RawKBytes(const BlockShape& s) {
  return uint64_t{s.kv_heads} * s.tokens * s.k_dim * DTypeBytes(s.dtype);
}

}  // namespace

bool LayerIsFinite(const BlockShape& shape, const LayerSource& source) {
  KVTIER_CHECK(source.raw.size() >= RawLayerBytes(shape));
  const uint64_t k = RawKBytes(shape) / DTypeBytes(shape.dtype),
                 all = RawLayerBytes(shape) / DTypeBytes(shape.dtype);
  return FitsFp16Simd(shape.dtype, source.scales.k, source.raw.data(), k) &&
         FitsFp16Simd(shape.dtype, source.scales.v, source.raw.data() + RawKBytes(shape), all - k);
}

void CopyRawLayer(const BlockShape& shape, std::span<const std::byte> raw, const KvLayerView& out) {
  KVTIER_CHECK(raw.size() >= RawLayerBytes(shape));
  const RowConversion k = {.from = shape.dtype, .to = out.dtype, .scale = out.scales.k};
  const RowConversion v = {.from = shape.dtype, .to = out.dtype, .scale = out.scales.v, .form = out.v_form};
  CopyPlane(KPlane(shape, out), k, raw.data());
  CopyPlane(VPlane(shape, out), v, raw.data() + RawKBytes(shape));
  FinishStores(out.stores);
}

void GatherRawLayer(const BlockShape& shape, const KvLayerView& in, std::span<std::byte> raw) {
  KVTIER_CHECK(in.dtype == shape.dtype && raw.size() >= RawLayerBytes(shape));
  GatherPlane(KPlane(shape, in), raw.data());
  GatherPlane(VPlane(shape, in), raw.data() + RawKBytes(shape));
}

}  // namespace kvtier
