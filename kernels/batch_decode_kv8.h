#pragma once

#include <cstdint>
#include <limits>

#include "kernels/batch.h"
#include "kernels/batch_raw.h"
#include "kernels/batch_rows.h"
#include "kernels/batch_source.h"
#include "kernels/convert.h"
#include "kernels/dequantize_kv8.h"
#include "kernels/host_device.h"
#include "kernels/team.h"

// One head of kv8 and of raw layers into an engine's memory.

namespace kvtier::internal {

/// A lane takes runs of K, and of V groups of 64, which may have to be rotated.
template <Team T, typename Target>
KVTIER_HD void DecodeKv8Head(const T& team, const BlockShape& shape, const Kv8Sections<const uint8_t>& in,
                             uint32_t head, const KvLayerView& view, const Target& target) {
  const uint32_t k_dim = shape.k_dim, v_dim = shape.v_dim, runs = k_dim / kRun;
  KVTIER_HD_ROLLED
  for (uint32_t at = team.rank(); at < runs * shape.tokens; at += team.size()) {
    const uint32_t token = at / runs, channel = at % runs * kRun;
    if (token < shape.nraw) continue;
    const auto codes =
        LoadWord<uint32_t>(in.k_codes + (uint64_t{head} * shape.tokens + token) * k_dim + channel);
    const uint64_t range = 2 * (uint64_t{head} * k_dim + channel);
    Four values;
    for (uint32_t i = 0; i < kRun; ++i) {
      values.value[i] =
          DequantizeK(static_cast<uint8_t>(codes >> 8 * i), FromHalf(Load16(in.k_scale + range + 2 * i)),
                      FromHalf(Load16(in.k_min + range + 2 * i)));
    }
    target.StoreK(target.KRow(token), channel, values);
  }
  const uint32_t step = view.v_form == VForm::kRotated ? kTileCodes : kRun;
  const uint32_t pieces = (v_dim + step - 1) / step;
  KVTIER_HD_ROLLED
  for (uint32_t at = team.rank(); at < pieces * shape.tokens; at += team.size()) {
    const uint32_t token = at / pieces, first = at % pieces * step;
    if (token < shape.nraw) continue;
    const uint64_t row = uint64_t{head} * shape.tokens + token;
    const float scale = FromHalf(Load16(in.v_scale + 2 * row));
    const uint32_t n = v_dim - first < step ? v_dim - first : step;
    float values[kTileCodes];
    for (uint32_t i = 0; i < n; ++i) values[i] = Fp32FromE4m3(in.v_codes[row * v_dim + first + i]) * scale;
    if (view.v_form == VForm::kRotated) RotateGroups(values, n);
    for (uint32_t i = 0; i < n; i += kRun) target.StoreV(target.VRow(token), first + i, FourOf(values + i));
  }
}

/// A raw row's piece of n elements to the destination, as ConvertRow.
KVTIER_HD inline void ConvertPiece(const RowConversion& conversion, const std::byte* source, uint32_t n,
                                   int64_t stride, std::byte* target) {
  float values[kTileCodes];
  const uint32_t bytes = DTypeBytes(conversion.from);
  KVTIER_HD_ROLLED
  for (uint32_t i = 0; i < n; ++i)
    LoadTile(source + i * bytes, conversion.from, conversion.scale, 1, &values[i]);
  if (conversion.form == VForm::kRotated && n == kTileCodes) {
    RotateGroups(values, n);
    KVTIER_HD_ROLLED
    for (uint32_t i = 0; i < n; ++i)
      values[i] = values[i] == values[i] ? values[i] : std::numeric_limits<float>::quiet_NaN();
  }
  KVTIER_HD_ROLLED
  for (uint32_t i = 0; i < n; ++i) StoreAs(conversion.to, values[i], conversion.scale, target + i * stride);
}

/// K or V of one head of a raw layer: moved where types agree, else converted.
struct RawPlane {
  const std::byte* from;
  uint32_t row_bytes, dim;
  RowConversion conversion;
  Elements target_elements;
  std::byte* to;
};
template <Team T>
KVTIER_HD void DecodeRawPlane(const T& team, const RawPlane& plane, uint32_t tokens, const int64_t* rows) {
  const RowConversion& conversion = plane.conversion;
  const bool moves =
      conversion.form == VForm::kPlain && conversion.from == conversion.to && plane.target_elements.is_dense;
  const uint32_t step = moves ? kRun : kTileCodes, pieces = (plane.dim + step - 1) / step;
  KVTIER_HD_ROLLED
  for (uint32_t at = team.rank(); at < pieces * tokens; at += team.size()) {
    const uint32_t token = at / pieces, first = at % pieces * step;
    const std::byte* from =
        plane.from + uint64_t{token} * plane.row_bytes + first * DTypeBytes(conversion.from);
    std::byte* to = plane.to + rows[token] + first * plane.target_elements.stride;
    if (moves) {
      CopyRun(from, plane.target_elements, to);
    } else {
      ConvertPiece(conversion, from, TileCodes(plane.dim, first), plane.target_elements.stride, to);
    }
  }
}

template <Team T>
KVTIER_HD void DecodeRawHead(const T& team, const CodedLayer<const uint8_t>& layer, uint32_t head,
                             const KvLayerView& view, const int64_t* rows) {
  const BlockShape& s = layer.shape;
  const RowSource source = RawSource(layer, head);
  const RawPlane k = {.from = source.k,
                      .row_bytes = source.k_row,
                      .dim = s.k_dim,
                      .conversion = {.from = s.dtype, .to = view.dtype, .scale = view.scales.k},
                      .target_elements = ElementsOf(view, view.k, view.scales.k),
                      .to = view.k};
  const RawPlane v = {
      .from = source.v,
      .row_bytes = source.v_row,
      .dim = s.v_dim,
      .conversion = {.from = s.dtype, .to = view.dtype, .scale = view.scales.v, .form = view.v_form},
      .target_elements = ElementsOf(view, view.v, view.scales.v),
      .to = view.v};
  DecodeRawPlane(team, k, s.tokens, rows);
  DecodeRawPlane(team, v, s.tokens, rows);
}

}  // namespace kvtier::internal
