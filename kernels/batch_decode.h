#pragma once

#include <cstdint>

#include "kernels/batch.h"
#include "kernels/batch_decode_kv8.h"
#include "kernels/batch_encode_v.h"
#include "kernels/batch_planes.h"
#include "kernels/batch_rows.h"
#include "kernels/batch_sections.h"
#include "kernels/host_device.h"
#include "kernels/team.h"

namespace kvtier {

namespace internal {

struct DecodeBatchScratch {
  int64_t rows[kMaxTokens];
  uint16_t boost[kMaxHeadDim];
};

/// A destination's rows, for one head.
template <bool dense_halves>
struct RowTarget {
  std::byte* k;
  std::byte* v;
  Elements k_elements, v_elements;
  const KvLayerView& view;
  const int64_t* rows;

  KVTIER_HD void StoreK(uint32_t token, uint32_t channel, const Four& four) const {
    Store(four, k_elements, k + rows[token] + channel * k_elements.stride);
  }
  KVTIER_HD void StoreV(uint32_t token, uint32_t channel, const Four& four) const {
    Store(four, v_elements, v + rows[token] + channel * v_elements.stride);
  }
  KVTIER_HD static void Store(const Four& four, const Elements& elements, std::byte* at) {
    if constexpr (dense_halves) {
      StoreDenseHalves(four, elements.dtype, at);
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
template <bool dense_halves, Team T>
KVTIER_HD RowTarget<dense_halves> ViewTarget(const T& team, const KvLayerView& view, uint32_t head,
                                             uint32_t tokens, int64_t* rows) {
  FindRows(team, view, head, tokens, rows);
  return {.k = view.k,
          .v = view.v,
          .k_elements = ElementsOf(view, view.k, view.scales.k),
          .v_elements = ElementsOf(view, view.v, view.scales.v),
          .view = view,
          .rows = rows};
}

/// K of a head. The boost's places are known.
template <bool dense_halves, Team T>
KVTIER_HD void DecodeKPlanes(const T& team, const BlockShape& shape, const PlaneSections<const uint8_t>& in,
                             uint32_t head, const uint16_t* boost, const RowTarget<dense_halves>& target) {
  const ColumnTasks tasks(team, shape.k_dim / kColumn, kMaxTokens);
  for (uint32_t task = team.rank(); task < tasks.count(); task += team.size()) {
    const Column column(tasks.ColumnOf(task), shape.k_dim);
    KChannelRange ranges[kColumn];
    KVTIER_HD_UNROLLED
    for (uint32_t i = 0; i < kColumn; ++i)
      ranges[i] = LoadKRange(shape, in, head, column.Run(i / kRun) + i % kRun, boost);
    KVTIER_HD_ROLLED
    for (uint32_t token = tasks.SliceOf(task); token < shape.tokens; token += tasks.slices) {
      if (token < shape.nraw) {
        const uint8_t* raw = in.k_raw + 2 * (uint64_t{head} * shape.nraw + token) * shape.k_dim;
        KVTIER_HD_UNROLLED
        for (uint32_t r = 0; r < 4; ++r)
          target.StoreK(token, column.Run(r), LoadHalves(raw + 2 * column.Run(r)));
        continue;
      }
      const KCodes codes = LoadKCodes(shape, in, PlaneRow(shape, head, token), column, boost);
      KVTIER_HD_UNROLLED
      for (uint32_t r = 0; r < 4; ++r) {
        Four four = codes.Run(r);
        KVTIER_HD_UNROLLED
        for (uint32_t i = 0; i < kRun; ++i)
          four.value[i] = four.value[i] * ranges[r * kRun + i].scale + ranges[r * kRun + i].minimum;
        target.StoreK(token, column.Run(r), four);
      }
    }
  }
}

/// V of a head by lanes of warps. H64 of small integers is exact in fp32, so it is that of the specification.
template <bool dense_halves, Team T>
KVTIER_HD void DecodeVByColumns(const T& team, const BlockShape& shape,
                                const PlaneSections<const uint8_t>& in, uint32_t head,
                                const RowTarget<dense_halves>& target) {
  const uint32_t dim = shape.v_dim, groups = VGroups(shape);
  const ColumnTasks tasks(team, groups * kColumnsPerTile, kMaxTokens);
  const uint32_t rounds = (shape.tokens + tasks.slices - 1) / tasks.slices;
  const bool is_plain = target.view.v_form == VForm::kPlain;
  for (uint32_t first = 0; first < tasks.count(); first += team.size()) {
    const uint32_t task = first + team.rank();
    const Column column(tasks.ColumnOf(task), dim);
    KVTIER_HD_ROLLED
    for (uint32_t round = 0; round < rounds; ++round) {
      const uint32_t token = tasks.SliceOf(task) + round * tasks.slices;
      const bool is_raw = token < shape.nraw;
      // Codes are of rotated values and raw rows of plain ones.
      const bool turns = column.quarter == kTileBytes && is_raw != is_plain;
      const bool works = task < tasks.count() && token < shape.tokens && kRun * column.part < column.quarter;
      float z[kColumn] = {};
      float scale = 1;
      if (works && is_raw) {
        const uint8_t* raw = in.v_raw + 2 * (uint64_t{head} * shape.nraw + token) * dim;
        KVTIER_HD_UNROLLED
        for (uint32_t r = 0; r < 4; ++r) {
          const Four four = LoadHalves(raw + 2 * column.Run(r));
          KVTIER_HD_UNROLLED
          for (uint32_t i = 0; i < kRun; ++i) z[r * kRun + i] = four.value[i];
        }
        scale = turns ? 0.125f : 1.0f;
      } else if (works) {
        const uint64_t row = PlaneRow(shape, head, token);
        const uint8_t scale_byte = in.v_scale[row * groups + tasks.ColumnOf(task) / kColumnsPerTile];
        LoadVCodes(in, row * (dim / 4) + column.PlaneByte(), z);
        scale = VScale(scale_byte) * (turns ? 0.0625f : 0.5f);
        KVTIER_HD_UNROLLED
        for (uint32_t i = 0; i < kColumn; ++i) z[i] = scale_byte != 0 ? z[i] : 0.0f;  // decodes to +0
      }
      if (is_plain || shape.nraw > 0) {
        float turned[kColumn];
        KVTIER_HD_UNROLLED
        for (uint32_t i = 0; i < kColumn; ++i) turned[i] = z[i];
        HadamardOfColumns(team, column.part, turned);
        KVTIER_HD_UNROLLED
        for (uint32_t i = 0; i < kColumn; ++i) z[i] = turns ? turned[i] : z[i];
      }
      if (!works) continue;
      KVTIER_HD_UNROLLED
      for (uint32_t i = 0; i < kColumn; ++i) z[i] *= scale;
      KVTIER_HD_UNROLLED
      for (uint32_t r = 0; r < 4; ++r) target.StoreV(token, column.Run(r), FourOf(z + r * kRun));
    }
  }
}

/// The same by lanes that stand alone.
template <bool dense_halves, Team T>
KVTIER_HD void DecodeVByGroups(const T& team, const BlockShape& shape, const PlaneSections<const uint8_t>& in,
                               uint32_t head, const RowTarget<dense_halves>& target) {
  const uint32_t dim = shape.v_dim, groups = VGroups(shape);
  const int32_t offset = in.v_low != nullptr ? kVOffsetInt4 : kVOffsetInt2;
  for (uint32_t at = team.rank(); at < groups * shape.tokens; at += team.size()) {
    const uint32_t token = at / groups, group = at % groups, first = group * kTileCodes;
    if (token < shape.nraw) {
      const uint8_t* raw = in.v_raw + 2 * (uint64_t{head} * shape.nraw + token) * dim;
      if (group == 0) StoreRawVRow(raw, dim, target.view, target.v + target.rows[token]);
      continue;
    }
    const uint32_t n = TileCodes(dim, first);
    const uint64_t row = PlaneRow(shape, head, token), plane_byte = row * (dim / 4) + first / 4;
    uint8_t codes[kTileCodes] = {};
    UnpackTile<kHighShift>(in.v_high + plane_byte, n, codes);
    if (in.v_low != nullptr) UnpackTile<kLowShift>(in.v_low + plane_byte, n, codes);
    float values[kTileCodes];
    DequantizeVGroup(codes, n, offset, in.v_scale[row * groups + group], target.view.v_form, values);
    for (uint32_t i = 0; i < n; i += kRun) target.StoreV(token, first + i, FourOf(values + i));
  }
}

/// Raw rows, as the plane family and kv8 have them.
template <Team T>
KVTIER_HD void DecodeRawRows(const T& team, const BlockShape& shape, const uint8_t* k_raw,
                             const uint8_t* v_raw, uint32_t head, const KvLayerView& view) {
  const uint32_t rows = shape.nraw < shape.tokens ? shape.nraw : shape.tokens;
  for (uint32_t token = team.rank(); token < rows; token += team.size()) {
    const uint64_t raw_row = uint64_t{head} * shape.nraw + token;
    const int64_t at = RowOf(view, head, token);
    StoreRawChannels(k_raw + 2 * raw_row * shape.k_dim, shape.k_dim, view, view.scales.k, view.k + at);
    StoreRawVRow(v_raw + 2 * raw_row * shape.v_dim, shape.v_dim, view, view.v + at);
  }
}

inline constexpr uint32_t kDecodeScratchBytes =
    (sizeof(DecodeBatchScratch) + kScratchAlign - 1) / kScratchAlign * kScratchAlign;

/// What a block of lanes has to do: a head of an item, or nothing.
struct DecodedHead {
  const DecodeItem* item;
  uint32_t head;
  DecodeBatchScratch* scratch;
};
template <Team T>
KVTIER_HD DecodedHead DecodedHeadOf(const T& team, const DecodeBatchArgs& args, LayerCoding coding) {
  const uint32_t head = team.block() % args.heads_max;
  const DecodeItem* item = args.items + team.block() / args.heads_max;
  const bool works = head < item->source.shape.kv_heads && item->source.coding == coding;
  return {.item = works ? item : nullptr,
          .head = head,
          .scratch = reinterpret_cast<DecodeBatchScratch*>(team.scratch())};
}

}  // namespace internal

/// Every body of a batch: one block of lanes per head of every item.
inline LaunchShape DecodeBatchLaunch(const DecodeBatchArgs& args) {
  return {.blocks = args.count * args.heads_max, .scratch_bytes = internal::kDecodeScratchBytes};
}

// Bodies. Each does the items of its coding and leaves the others alone. Total and memory-safe on arbitrary,
// also changing, bytes. Bit-exact between host and GPU.

/// As Dequantize, into 16-bit elements that lie side by side (dense_halves), or into what is not that; of
/// damaged raw rows infinities end at fp16's limits.
template <bool dense_halves, Team T>
KVTIER_HD void DecodePlanesBatch(const T& team, const DecodeBatchArgs& args) {
  using namespace internal;
  const auto [item, head, scratch] = DecodedHeadOf(team, args, LayerCoding::kPlanes);
  if (item == nullptr || IsDenseHalves(item->target) != dense_halves) return;
  const BlockShape& shape = item->source.shape;
  const auto target = ViewTarget<dense_halves>(team, item->target, head, shape.tokens, scratch->rows);
  const PlaneSections<const uint8_t> in = PlaneSectionsOf(item->source);
  FindBoost(team, shape, in.boost_ids == nullptr ? nullptr : in.boost_ids + uint64_t{head} * shape.nb,
            scratch->boost);
  DecodeKPlanes(team, shape, in, head, scratch->boost, target);
  if constexpr (StandsAlone<T>) {
    DecodeVByGroups(team, shape, in, head, target);
  } else {
    DecodeVByColumns(team, shape, in, head, target);
  }
}

/// As DequantizeKv8.
template <Team T>
KVTIER_HD void DecodeKv8Batch(const T& team, const DecodeBatchArgs& args) {
  using namespace internal;
  const auto [item, head, scratch] = DecodedHeadOf(team, args, LayerCoding::kKv8);
  if (item == nullptr) return;
  const BlockShape& shape = item->source.shape;
  const auto target = ViewTarget<false>(team, item->target, head, shape.tokens, scratch->rows);
  team.sync();
  const Kv8Sections<const uint8_t> in = Kv8SectionsOf(item->source);
  DecodeRawRows(team, shape, in.k_raw, in.v_raw, head, item->target);
  DecodeKv8Head(team, shape, in, head, item->target, target);
}

/// Moved where types agree, else as ConvertRow.
template <Team T>
KVTIER_HD void DecodeRawBatch(const T& team, const DecodeBatchArgs& args) {
  using namespace internal;
  const auto [item, head, scratch] = DecodedHeadOf(team, args, LayerCoding::kRaw);
  if (item == nullptr) return;
  ViewTarget<false>(team, item->target, head, item->source.shape.tokens, scratch->rows);
  team.sync();
  DecodeRawHead(team, item->source, head, item->target, scratch->rows);
}

/// Runs a whole batch: launch(shape, body) for every body that it needs.
template <typename Launch>
void RunDecode(const DecodeBatchArgs& args, const Launch& launch) {
  const LaunchShape shape = DecodeBatchLaunch(args);
  if (args.codings & CodingBit(LayerCoding::kPlanes)) {
    launch(shape, [args](const auto& team) { DecodePlanesBatch<true>(team, args); });
    launch(shape, [args](const auto& team) { DecodePlanesBatch<false>(team, args); });
  }
  if (args.codings & CodingBit(LayerCoding::kKv8))
    launch(shape, [args](const auto& team) { DecodeKv8Batch(team, args); });
  if (args.codings & CodingBit(LayerCoding::kRaw))
    launch(shape, [args](const auto& team) { DecodeRawBatch(team, args); });
}

}  // namespace kvtier
