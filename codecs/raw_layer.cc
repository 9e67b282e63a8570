#include <algorithm>
#include <cstring>

#include "codecs/codec.h"
#include "kernels/fp8.h"
#include "kernels/numerics.h"
#include "kernels/simd/copy_simd.h"
#include "kernels/source_rows.h"
#include "kernels/tile.h"
#include "tiers/base/check.h"

namespace kvtier {
namespace {

/// K or V of a layer: a strided plane and its contiguous form [heads][tokens][dim] of `element_bytes`
/// elements.
struct Plane {
  uint32_t heads;
  uint32_t tokens;
  uint32_t dim;
  uint32_t element_bytes;
  std::byte* base;
  const KvLayerView& view;

  uint64_t RowBytes() const { return uint64_t{dim} * element_bytes; }
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
        move(row + c * plane.view.channel_stride, offset + uint64_t{c} * plane.element_bytes);
    }
  }
}

/// copy(to, from) of one element; both have the type of the source.
template <typename Copy>
void WithElementCopy(uint32_t element_bytes, const Copy& copy) {
  if (element_bytes == 1) {
    copy([](std::byte* to, const std::byte* from) { *to = *from; });
  } else {
    copy([](std::byte* to, const std::byte* from) { Store16(to, Load16(from)); });
  }
}

/// fp32 to the destination's type. fp16 and FP8 end at their limits; NaN stays NaN.
template <DType to>
void StoreAs(std::byte* at, float value, float scale) {
  if constexpr (to == DType::kFp16) {
    Store16(at, value == value ? Fp16Out(value) : Fp16FromFp32(value));
  } else if constexpr (to == DType::kBf16) {
    Store16(at, Bf16FromFp32(value));
  } else if constexpr (to == DType::kE4m3) {
    *at = static_cast<std::byte>(E4m3FromFp32(value / scale));
  } else if constexpr (to == DType::kE5m2) {
    *at = static_cast<std::byte>(E5m2FromFp32(value / scale));
  } else {
    memcpy(at, &value, sizeof value);
  }
}

/// What is done to a source element on its way to a destination of another type or form.
struct Conversion {
  DType from;
  float scale;
  VForm form;
};

template <DType to>
void ConvertPlane(const Plane& plane, const Conversion& conversion, const std::byte* raw) {
  float row[kMaxHeadDim];
  for (uint32_t head = 0; head < plane.heads; ++head) {
    for (uint32_t token = 0; token < plane.tokens; ++token) {
      LoadTile(raw + plane.RawOffset(head, token), conversion.from, conversion.scale, plane.dim, row);
      if (conversion.form == VForm::kRotated) RotateGroups(row, plane.dim);
      std::byte* target = plane.RowAt(head, token);
      for (uint32_t c = 0; c < plane.dim; ++c)
        StoreAs<to>(target + c * plane.view.channel_stride, row[c], conversion.scale);
    }
  }
}

void ConvertPlane(const Plane& plane, const Conversion& conversion, const std::byte* raw) {
  switch (plane.view.dtype) {
    case DType::kFp16:
      return ConvertPlane<DType::kFp16>(plane, conversion, raw);
    case DType::kBf16:
      return ConvertPlane<DType::kBf16>(plane, conversion, raw);
    case DType::kE4m3:
      return ConvertPlane<DType::kE4m3>(plane, conversion, raw);
    case DType::kE5m2:
      return ConvertPlane<DType::kE5m2>(plane, conversion, raw);
    case DType::kFp32:
      return ConvertPlane<DType::kFp32>(plane, conversion, raw);
  }
}

void CopyPlane(const Plane& plane, const Conversion& conversion, const std::byte* raw) {
  if (conversion.from != plane.view.dtype || conversion.form == VForm::kRotated) {
    ConvertPlane(plane, conversion, raw);
  } else if (plane.view.channel_stride == plane.element_bytes) {
    ForEachPiece(plane, [&](std::byte* at, uint64_t offset, uint64_t bytes) {
      CopySimd(at, raw + offset, bytes, plane.view.stores);
    });
  } else {
    WithElementCopy(plane.element_bytes, [&](const auto& copy) {
      ForEachElement(plane, [&](std::byte* at, uint64_t offset) { copy(at, raw + offset); });
    });
  }
}

void GatherPlane(const Plane& plane, std::byte* raw) {
  if (plane.view.channel_stride == plane.element_bytes) {
    ForEachPiece(plane, [&](const std::byte* at, uint64_t offset, uint64_t bytes) {
      memcpy(raw + offset, at, bytes);
    });
  } else {
    WithElementCopy(plane.element_bytes, [&](const auto& copy) {
      ForEachElement(plane, [&](const std::byte* at, uint64_t offset) { copy(raw + offset, at); });
    });
  }
}

Plane KPlane(const BlockShape& s, const KvLayerView& view) {
  return {.heads = s.kv_heads,
          .tokens = s.tokens,
          .dim = s.k_dim,
          .element_bytes = DTypeBytes(s.dtype),
          .base = view.k,
          .view = view};
}
Plane VPlane(const BlockShape& s, const KvLayerView& view) {
  return {.heads = s.kv_heads,
          .tokens = s.tokens,
          .dim = s.v_dim,
          .element_bytes = DTypeBytes(s.dtype),
          .base = view.v,
          .view = view};
}
uint64_t RawKBytes(const BlockShape& s) {
  return uint64_t{s.kv_heads} * s.tokens * s.k_dim * DTypeBytes(s.dtype);
}

/// Largest magnitude of the elements in `raw`, as bits: one maximum and no branch in the loop. Signed,
/// because that is what SSE2 can compare.
int16_t LargestOf16Bits(std::span<const std::byte> raw) {
  int16_t largest = 0;
  for (uint64_t at = 0; at < raw.size(); at += sizeof(uint16_t))
    largest = std::max(largest, static_cast<int16_t>(Load16(raw.data() + at) & 0x7fff));
  return largest;
}

bool Fp8IsFinite(DType dtype, float scale, std::span<const std::byte> raw) {
  uint8_t largest = 0;
  for (const std::byte element : raw)
    largest = std::max(largest, static_cast<uint8_t>(static_cast<uint8_t>(element) & 0x7f));
  if (largest >= (dtype == DType::kE4m3 ? kFp8Nan : kE5m2Infinity)) return false;
  return (dtype == DType::kE4m3 ? Fp32FromE4m3(largest) : Fp32FromE5m2(largest)) * scale <= kFp16Max;
}

}  // namespace

bool LayerIsFinite(const BlockShape& shape, const LayerSource& source) {
  KVTIER_CHECK(source.raw.size() >= RawLayerBytes(shape));
  const std::span<const std::byte> raw = source.raw.first(RawLayerBytes(shape));
  if (IsFp8(shape.dtype)) {
    return Fp8IsFinite(shape.dtype, source.scales.k, raw.first(RawKBytes(shape))) &&
           Fp8IsFinite(shape.dtype, source.scales.v, raw.subspan(RawKBytes(shape)));
  }
  return LargestOf16Bits(raw) < (shape.dtype == DType::kFp16 ? kFp16Infinity : kBf16AboveFp16);
}

void CopyRawLayer(const BlockShape& shape, std::span<const std::byte> raw, const KvLayerView& out) {
  KVTIER_CHECK(raw.size() >= RawLayerBytes(shape));
  CopyPlane(KPlane(shape, out), {.from = shape.dtype, .scale = out.scales.k, .form = VForm::kPlain},
            raw.data());
  CopyPlane(VPlane(shape, out), {.from = shape.dtype, .scale = out.scales.v, .form = out.v_form},
            raw.data() + RawKBytes(shape));
  FinishStores(out.stores);
}

void GatherRawLayer(const BlockShape& shape, const KvLayerView& in, std::span<std::byte> raw) {
  KVTIER_CHECK(in.dtype == shape.dtype && raw.size() >= RawLayerBytes(shape));
  GatherPlane(KPlane(shape, in), raw.data());
  GatherPlane(VPlane(shape, in), raw.data() + RawKBytes(shape));
}

}  // namespace kvtier
