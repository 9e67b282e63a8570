#pragma once

#include <cmath>
#include <cstdint>
#include <type_traits>

#include "kernels/batch.h"
#include "kernels/batch_decode_kv8.h"
#include "kernels/batch_decode_v.h"
#include "kernels/batch_planes.h"
#include "kernels/batch_rows.h"
#include "kernels/batch_sections.h"
#include "kernels/batch_target.h"
#include "kernels/host_device.h"
#include "kernels/team.h"

namespace kvtier {

namespace internal {

struct DecodeBatchScratch {
  int64_t rows[kMaxTokens];
  uint16_t boost[kMaxHeadDim];
};

/// K of a head. The boost's places are known. What limits it is how many instructions a byte takes, so that
/// what can be known of a column before its tokens is known before: among it whether any value leaves fp16.
template <Stored stored, Team T>
KVTIER_HD void DecodeKPlanes(const T& team, const BlockShape& shape, const PlaneSections<const uint8_t>& in,
                             uint32_t head, const uint16_t* boost, const RowTarget<stored>& target) {
  const ColumnTasks tasks(team, shape.k_dim / kColumn, kMaxTokens);
  const bool has_boost = in.k_low == nullptr && in.boost_ids != nullptr;
  for (uint32_t task = team.rank(); task < tasks.count(); task += team.size()) {
    const Column column(tasks.ColumnOf(task), shape.k_dim);
    KChannelRange ranges[kColumn];
    bool leaves_fp16 = false;
    KVTIER_HD_UNROLLED
    for (uint32_t i = 0; i < kColumn; ++i) {
      ranges[i] = LoadKRange(shape, in, head, column.Run(i / kRun) + i % kRun, boost);
      const float end = fabsf(ranges[i].minimum) + 15 * fabsf(ranges[i].scale);
      leaves_fp16 |= !(end <= kFp16Max);  // or is NaN
    }
    const BoostPlaces places = has_boost ? BoostPlacesOf(boost, column) : BoostPlaces{};
    uint32_t token = tasks.SliceOf(task);
    KVTIER_HD_ROLLED
    for (; token < shape.tokens && token < shape.nraw; token += tasks.slices) {
      const uint8_t* raw = in.k_raw + 2 * (uint64_t{head} * shape.nraw + token) * shape.k_dim;
      KVTIER_HD_UNROLLED
      for (uint32_t r = 0; r < 4; ++r)
        target.StoreK(target.KRow(token), column.Run(r), ClampRun(LoadHalves(raw + 2 * column.Run(r))));
    }
    if (token >= shape.tokens) continue;
    const uint64_t first_row = PlaneRow(shape, head, token);
    PlaneReader reader(in.k_high, in.k_low, first_row, shape.k_dim / 4, column, tasks.slices);
    const uint8_t* boost_row = has_boost ? in.boost_low + first_row * (shape.nb / 4) : nullptr;
    PlaneWords next = reader.Next();
    KVTIER_HD_ROLLED
    for (; token < shape.tokens; token += tasks.slices) {
      RunCodes codes = RunCodesOf(next.high, next.low);
      if (token + tasks.slices < shape.tokens) next = reader.Next();
      if (has_boost) {
        AddBoost(boost_row, places, codes);
        boost_row += tasks.slices * (shape.nb / 4);
      }
      Four run[4];
      KVTIER_HD_UNROLLED
      for (uint32_t r = 0; r < 4; ++r) {
        KVTIER_HD_UNROLLED
        for (uint32_t i = 0; i < kRun; ++i) {
          const KChannelRange& range = ranges[r * kRun + i];
          run[r].value[i] = ExactFma(FloatOfByte(codes.of[r], i), range.scale, range.minimum);
        }
      }
      if (leaves_fp16) {
        KVTIER_HD_UNROLLED
        for (uint32_t r = 0; r < 4; ++r) run[r] = ClampRun(run[r]);
      }
      std::byte* const to = target.KRow(token);
      KVTIER_HD_UNROLLED
      for (uint32_t r = 0; r < 4; ++r) target.StoreK(to, column.Run(r), run[r]);
    }
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

/// One head of the plane family; lanes have found its rows and its boost.
template <Stored stored, Team T>
KVTIER_HD void DecodePlanesHead(const T& team, const BlockShape& shape,
                                const PlaneSections<const uint8_t>& in, uint32_t head, const uint16_t* boost,
                                const RowTarget<stored>& target) {
  DecodeKPlanes(team, shape, in, head, boost, target);
  if constexpr (StandsAlone<T>) {
    DecodeVByGroups(team, shape, in, head, target);
  } else {
    DecodeVByColumns(team, shape, in, head, target);
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
  const PlaneSections<const uint8_t> in = PlaneSectionsOf(item->source);
  const uint8_t* ids = in.boost_ids == nullptr ? nullptr : in.boost_ids + uint64_t{head} * shape.nb;
  FindBoost(team, shape, ids, scratch->boost);
  const auto decode = [&]<Stored stored>(std::integral_constant<Stored, stored>) {
    const auto target = ViewTarget<stored>(team, item->target, head, shape.tokens, scratch->rows);
    team.sync();
    DecodePlanesHead(team, shape, in, head, scratch->boost, target);
  };
  if constexpr (!dense_halves) {
    decode(std::integral_constant<Stored, Stored::kAny>());
  } else if (item->target.dtype == DType::kBf16) {
    decode(std::integral_constant<Stored, Stored::kBrains>());
  } else {
    decode(std::integral_constant<Stored, Stored::kHalves>());
  }
}

/// As DequantizeKv8.
template <Team T>
KVTIER_HD void DecodeKv8Batch(const T& team, const DecodeBatchArgs& args) {
  using namespace internal;
  const auto [item, head, scratch] = DecodedHeadOf(team, args, LayerCoding::kKv8);
  if (item == nullptr) return;
  const BlockShape& shape = item->source.shape;
  const auto target = ViewTarget<Stored::kAny>(team, item->target, head, shape.tokens, scratch->rows);
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
  ViewTarget<Stored::kAny>(team, item->target, head, item->source.shape.tokens, scratch->rows);
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
