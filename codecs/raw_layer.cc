#include <algorithm>
#include <cstring>

#include "codecs/codec.h"
#include "kernels/numerics.h"
#include "tiers/base/check.h"

namespace kvtier {
namespace {

constexpr uint32_t kElementBytes = 2;

/// K or V of a layer: a strided plane and its contiguous form [heads][tokens][dim].
struct Plane {
  uint32_t heads;
  uint32_t tokens;
  uint32_t dim;
  std::byte* base;
  const KvLayerView& view;

  uint64_t RowBytes() const { return uint64_t{dim} * kElementBytes; }
  uint64_t RawOffset(uint32_t head, uint32_t token) const {
    return (uint64_t{head} * tokens + token) * RowBytes();
  }
  std::byte* RowAt(uint32_t head, uint32_t token) const { return base + view.Row(head, token); }
  /// Tokens from `token` on that lie token_stride apart: to the end of the page.
  uint32_t RunTokens(uint32_t token) const {
    if (view.page_table == nullptr) return tokens - token;
    const uint32_t slot = (view.first_token + token) % view.page_tokens;
    return std::min(tokens - token, view.page_tokens - slot);
  }
};

/// Calls copy(address in the view, offset in the raw form, bytes) for pieces as long as the strides allow.
/// Needs adjoining channels.
template <typename Copy>
void ForEachPiece(const Plane& plane, const Copy& copy) {
  const uint64_t row_bytes = plane.RowBytes();
  const bool rows_adjoin = plane.view.token_stride == static_cast<int64_t>(row_bytes);
  for (uint32_t token = 0; token < plane.tokens;) {
    const uint32_t run = plane.RunTokens(token);
    const bool heads_adjoin = rows_adjoin && run == plane.tokens &&
                              plane.view.head_stride == static_cast<int64_t>(plane.tokens * row_bytes);
    if (heads_adjoin) {
      copy(plane.RowAt(0, 0), uint64_t{0}, plane.heads * plane.tokens * row_bytes);
    } else if (rows_adjoin) {
      for (uint32_t head = 0; head < plane.heads; ++head)
        copy(plane.RowAt(head, token), plane.RawOffset(head, token), run * row_bytes);
    } else {
      // Tokens outside: with heads side by side the view is walked in address order.
      for (uint32_t t = token; t < token + run; ++t)
        for (uint32_t head = 0; head < plane.heads; ++head)
          copy(plane.RowAt(head, t), plane.RawOffset(head, t), row_bytes);
    }
    token += run;
  }
}

/// Calls move(address in the view, offset in the raw form) for every element.
template <typename Move>
void ForEachElement(const Plane& plane, const Move& move) {
  for (uint32_t head = 0; head < plane.heads; ++head) {
    for (uint32_t token = 0; token < plane.tokens; ++token) {
      std::byte* row = plane.RowAt(head, token);
      const uint64_t offset = plane.RawOffset(head, token);
      for (uint32_t c = 0; c < plane.dim; ++c)
        move(row + c * plane.view.channel_stride, offset + uint64_t{c} * kElementBytes);
    }
  }
}

/// BF16 beyond the FP16 range ends at its limits; NaN stays NaN.
uint16_t Convert(uint16_t value, DType from) {
  if (from == DType::kFp16) return Bf16FromFp32(Fp32FromFp16(value));
  const float wide = Fp32FromBf16(value);
  return wide == wide ? Fp16Out(wide) : Fp16FromFp32(wide);
}

void CopyPlane(const Plane& plane, DType dtype, const std::byte* raw) {
  if (dtype != plane.view.dtype) {
    ForEachElement(
        plane, [&](std::byte* at, uint64_t offset) { Store16(at, Convert(Load16(raw + offset), dtype)); });
  } else if (plane.view.channel_stride == kElementBytes) {
    ForEachPiece(plane,
                 [&](std::byte* at, uint64_t offset, uint64_t bytes) { memcpy(at, raw + offset, bytes); });
  } else {
    ForEachElement(plane, [&](std::byte* at, uint64_t offset) { Store16(at, Load16(raw + offset)); });
  }
}

void GatherPlane(const Plane& plane, std::byte* raw) {
  if (plane.view.channel_stride == kElementBytes) {
    ForEachPiece(plane, [&](const std::byte* at, uint64_t offset, uint64_t bytes) {
      memcpy(raw + offset, at, bytes);
    });
  } else {
    ForEachElement(plane, [&](const std::byte* at, uint64_t offset) { Store16(raw + offset, Load16(at)); });
  }
}

bool Is16Bit(DType dtype) {
  return dtype == DType::kFp16 || dtype == DType::kBf16;
}

Plane KPlane(const BlockShape& s, const KvLayerView& view) {
  return {.heads = s.kv_heads, .tokens = s.tokens, .dim = s.k_dim, .base = view.k, .view = view};
}
Plane VPlane(const BlockShape& s, const KvLayerView& view) {
  return {.heads = s.kv_heads, .tokens = s.tokens, .dim = s.v_dim, .base = view.v, .view = view};
}
uint64_t RawKBytes(const BlockShape& s) {
  return uint64_t{s.kv_heads} * s.tokens * s.k_dim * kElementBytes;
}

}  // namespace

bool LayerIsFinite(const BlockShape& shape, std::span<const std::byte> raw) {
  const uint64_t bytes = RawLayerBytes(shape);
  KVTIER_CHECK(Is16Bit(shape.dtype) && raw.size() >= bytes);
  // One maximum over the magnitudes: no branch in the loop. Signed, because that is what SSE2 can compare.
  int16_t largest = 0;
  for (uint64_t at = 0; at < bytes; at += kElementBytes)
    largest = std::max(largest, static_cast<int16_t>(Load16(raw.data() + at) & 0x7fff));
  return largest < (shape.dtype == DType::kFp16 ? kFp16Infinity : kBf16AboveFp16);
}

void CopyRawLayer(const BlockShape& shape, std::span<const std::byte> raw, const KvLayerView& out) {
  KVTIER_CHECK(Is16Bit(shape.dtype) && Is16Bit(out.dtype) && raw.size() >= RawLayerBytes(shape));
  CopyPlane(KPlane(shape, out), shape.dtype, raw.data());
  CopyPlane(VPlane(shape, out), shape.dtype, raw.data() + RawKBytes(shape));
}

void GatherRawLayer(const BlockShape& shape, const KvLayerView& in, std::span<std::byte> raw) {
  KVTIER_CHECK(Is16Bit(shape.dtype) && in.dtype == shape.dtype && raw.size() >= RawLayerBytes(shape));
  GatherPlane(KPlane(shape, in), raw.data());
  GatherPlane(VPlane(shape, in), raw.data() + RawKBytes(shape));
}

}  // namespace kvtier
