#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/batch.h"
#include "kernels/batch_rows.h"
#include "kernels/batch_sections.h"
#include "kernels/fp8.h"
#include "kernels/host_device.h"
#include "kernels/layout.h"

// One head of what batches encode: LoadK and LoadV give four neighbouring channels of a token in fp32.

namespace kvtier::internal {

/// Rows in an engine's memory, or contiguous ones.
struct RowSource {
  static constexpr bool kFitsWhereFinite = false;
  const std::byte* k;
  const std::byte* v;
  Elements k_elements, v_elements;
  /// Bytes from k and v to each token's row; null: the rows are k_row and v_row bytes apart.
  const int64_t* rows = nullptr;
  uint32_t k_row = 0, v_row = 0;

  KVTIER_HD Four LoadK(uint32_t token, uint32_t channel) const {
    const int64_t row = rows != nullptr ? rows[token] : int64_t{token} * k_row;
    return LoadRun(k + row + channel * k_elements.stride, k_elements);
  }
  KVTIER_HD Four LoadV(uint32_t token, uint32_t channel) const {
    const int64_t row = rows != nullptr ? rows[token] : int64_t{token} * v_row;
    return LoadRun(v + row + channel * v_elements.stride, v_elements);
  }
};

/// The same of 16-bit elements that lie side by side. A lane reads eight bytes at a time; with its three
/// neighbours that is a whole sector of 32.
template <DType dtype>
struct HalfSource {
  static constexpr bool kFitsWhereFinite = dtype == DType::kFp16;

  const std::byte* k;
  const std::byte* v;
  const int64_t* rows;
  uint32_t k_row, v_row;

  KVTIER_HD explicit HalfSource(const RowSource& source)
      : k(source.k), v(source.v), rows(source.rows), k_row(source.k_row), v_row(source.v_row) {}
  KVTIER_HD Four LoadK(uint32_t token, uint32_t channel) const { return Load(k, k_row, token, channel); }
  KVTIER_HD Four LoadV(uint32_t token, uint32_t channel) const { return Load(v, v_row, token, channel); }

 private:
  KVTIER_HD Four Load(const std::byte* plane, uint32_t row_bytes, uint32_t token, uint32_t channel) const {
    const int64_t row = rows != nullptr ? rows[token] : int64_t{token} * row_bytes;
    const auto word = LoadWord<uint64_t>(plane + row + 2 * channel);
    Four four;
    KVTIER_HD_UNROLLED
    for (uint32_t i = 0; i < kRun; ++i) {
      const auto half = static_cast<uint16_t>(word >> 16 * i);
      four.value[i] = dtype == DType::kBf16 ? Fp32FromBf16(half) : FromHalf(half);
    }
    return four;
  }
};

KVTIER_HD inline bool IsDenseHalves(const RowSource& source) {
  return DTypeBytes(source.k_elements.dtype) == 2 && source.k_elements.is_dense && source.v_elements.is_dense;
}
/// with(source) for elements that are dense halves, or for those that are not. The others are left out.
template <bool dense_halves, typename With>
KVTIER_HD void WithRows(const RowSource& source, const With& with) {
  if (IsDenseHalves(source) != dense_halves) return;
  if constexpr (!dense_halves) {
    with(source);
  } else if (source.k_elements.dtype == DType::kBf16) {
    with(HalfSource<DType::kBf16>(source));
  } else {
    with(HalfSource<DType::kFp16>(source));
  }
}

/// `rows` [tokens] is scratch; lanes must meet before they use the source.
template <Team T>
KVTIER_HD RowSource ViewSource(const T& team, const KvLayerView& view, uint32_t head, uint32_t tokens,
                               int64_t* rows) {
  FindRows(team, view, head, tokens, rows);
  return {.k = view.k,
          .v = view.v,
          .k_elements = ElementsOf(view, view.k, view.scales.k),
          .v_elements = ElementsOf(view, view.v, view.scales.v),
          .rows = rows};
}

KVTIER_HD inline RowSource RawSource(const CodedLayer<const uint8_t>& layer, uint32_t head) {
  const BlockShape& s = layer.shape;
  const uint32_t bytes = DTypeBytes(s.dtype), k_row = s.k_dim * bytes, v_row = s.v_dim * bytes;
  const auto* base = reinterpret_cast<const std::byte*>(layer.base);
  return {.k = base + uint64_t{head} * s.tokens * k_row,
          .v = base + uint64_t{s.kv_heads} * s.tokens * k_row + uint64_t{head} * s.tokens * v_row,
          .k_elements = {.dtype = s.dtype, .scale = layer.scales.k, .stride = bytes, .is_dense = true},
          .v_elements = {.dtype = s.dtype, .scale = layer.scales.v, .stride = bytes, .is_dense = true},
          .k_row = k_row,
          .v_row = v_row};
}

/// The fp16 that the decoder of kv8 gives.
struct Kv8Source {
  static constexpr bool kFitsWhereFinite = true;

  BlockShape shape;
  Kv8Sections<const uint8_t> in;
  uint32_t head;

  KVTIER_HD static Four LoadRaw(const uint8_t* row) {
    Four four;
    for (uint32_t i = 0; i < kRun; ++i) four.value[i] = FromHalf(LoadWord<uint16_t>(row + 2 * i));
    return four;
  }
  KVTIER_HD static float Out(float value) { return FromHalf(ToHalf(ClampToFp16(value))); }

  KVTIER_HD Four LoadK(uint32_t token, uint32_t channel) const {
    const uint32_t k_dim = shape.k_dim;
    if (token < shape.nraw)
      return LoadRaw(in.k_raw + 2 * ((uint64_t{head} * shape.nraw + token) * k_dim + channel));
    const uint64_t range = 2 * (uint64_t{head} * k_dim + channel);
    const auto codes =
        LoadWord<uint32_t>(in.k_codes + (uint64_t{head} * shape.tokens + token) * k_dim + channel);
    Four four;
    for (uint32_t i = 0; i < kRun; ++i) {
      four.value[i] = Out(DequantizeK(static_cast<uint8_t>(codes >> 8 * i),
                                      FromHalf(LoadWord<uint16_t>(in.k_scale + range + 2 * i)),
                                      FromHalf(LoadWord<uint16_t>(in.k_min + range + 2 * i))));
    }
    return four;
  }
  KVTIER_HD Four LoadV(uint32_t token, uint32_t channel) const {
    const uint32_t v_dim = shape.v_dim;
    if (token < shape.nraw)
      return LoadRaw(in.v_raw + 2 * ((uint64_t{head} * shape.nraw + token) * v_dim + channel));
    const uint64_t row = uint64_t{head} * shape.tokens + token;
    const float scale = FromHalf(LoadWord<uint16_t>(in.v_scale + 2 * row));
    const auto codes = LoadWord<uint32_t>(in.v_codes + row * v_dim + channel);
    Four four;
    for (uint32_t i = 0; i < kRun; ++i)
      four.value[i] = Out(Fp32FromE4m3(static_cast<uint8_t>(codes >> 8 * i)) * scale);
    return four;
  }
};

}  // namespace kvtier::internal
