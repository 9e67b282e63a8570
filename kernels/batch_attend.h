#pragma once

#include <cmath>
#include <cstdint>

#include "kernels/attend.h"
#include "kernels/attention.h"
#include "kernels/batch.h"
#include "kernels/batch_attend_rows.h"
#include "kernels/batch_rows.h"
#include "kernels/host_device.h"
#include "kernels/team.h"

namespace kvtier {

namespace internal {

/// Query heads that a block of lanes takes at once: what is read of a layer serves all of them.
inline constexpr uint32_t kQueries = 4;
/// Rows of a lane between two meetings of all lanes.
inline constexpr uint32_t kRowsAtOnce = 4;

struct AttendBatchScratch {
  float q[kQueries][kMaxHeadDim];  ///< times the scale of the dot products
  float probability[kQueries][kMaxTokens];
  float m[kQueries], l[kQueries];  ///< of the layers so far
  float factor[kQueries];          ///< what their sums are multiplied by for the next layer's maximum
  /// Sums of lanes, to be put together: [rows at once][lanes][queries], or [slices][v_dim].
  float parts[kRowsAtOnce * kBatchLanes * kQueries];
  uint16_t boost[kMaxHeadDim];
  PlaneSections<const uint8_t> sections;
};
static_assert(sizeof(AttendBatchScratch) <= kScratchBytesMax);
static_assert(sizeof(AttendBatchScratch::parts) >= sizeof(float) * kBatchLanes * kColumn);
inline constexpr uint32_t kAttendScratchBytes =
    (sizeof(AttendBatchScratch) + kScratchAlign - 1) / kScratchAlign * kScratchAlign;

/// What a block of lanes works on.
struct AttendPlace {
  AttendSplit split;
  uint32_t kv_head;
  uint32_t first_query;  ///< query head
  uint32_t queries;      ///< 1..kQueries
};
KVTIER_HD inline uint32_t QueryChunks(const AttendBatchArgs& args) {
  return (args.query_heads / args.kv_heads + kQueries - 1) / kQueries;
}
KVTIER_HD inline AttendPlace PlaceOf(const AttendBatchArgs& args, uint32_t block) {
  const uint32_t chunks = QueryChunks(args), per_kv_head = args.query_heads / args.kv_heads;
  const uint32_t chunk = block % chunks, kv_head = block / chunks % args.kv_heads;
  const uint32_t left = per_kv_head - chunk * kQueries;
  return {.split = args.splits[block / chunks / args.kv_heads],
          .kv_head = kv_head,
          .first_query = kv_head * per_kv_head + chunk * kQueries,
          .queries = left < kQueries ? left : kQueries};
}

/// Columns of V that a lane has sums of: all of them where it stands alone, else one.
template <Team T>
inline constexpr uint32_t kVColumnsOfLane = StandsAlone<T> ? kMaxHeadDim / kColumn : 1;

template <Team T>
struct VSums {
  float of[kVColumnsOfLane<T>][kQueries][kColumn] = {};
};

/// Scores of all tokens of a layer, into scratch.probability. Starts and ends synchronized.
template <Team T, typename Rows>
KVTIER_HD void ScoreLayer(const T& team, const Rows& rows, AttendBatchScratch& scratch) {
  const uint32_t dim = rows.shape.k_dim, tokens = rows.shape.tokens;
  const ColumnTasks tasks(team, dim / kColumn, kMaxTokens);
  const uint32_t step = kRowsAtOnce * tasks.slices;
  KVTIER_HD_ROLLED
  for (uint32_t base = 0; base < tokens; base += step) {
    for (uint32_t task = team.rank(); task < tasks.count(); task += team.size()) {
      const Column column(tasks.ColumnOf(task), dim);
      float scaled[kQueries][kColumn], bias[kQueries] = {};
      KVTIER_HD_UNROLLED
      for (uint32_t i = 0; i < kColumn; ++i) {
        const uint32_t channel = column.Run(i / kRun) + i % kRun;
        const KChannelRange range = rows.KRangeOf(channel);
        KVTIER_HD_UNROLLED
        for (uint32_t g = 0; g < kQueries; ++g) {
          const float q = scratch.q[g][channel];
          scaled[g][i] = q * range.scale;
          bias[g] = fmaf(q, range.minimum, bias[g]);
        }
      }
      const auto places = rows.PlacesOf(column);
      KVTIER_HD_ROLLED
      for (uint32_t k = 0; k < kRowsAtOnce; ++k) {
        const uint32_t token = base + k * tasks.slices + tasks.SliceOf(task);
        if (token >= tokens) break;
        const ColumnRow row = rows.LoadK(token, column, places);
        float* const parts = scratch.parts + (k * tasks.count() + task) * kQueries;
        if (row.is_plain) {
          KVTIER_HD_ROLLED
          for (uint32_t g = 0; g < kQueries; ++g) {
            float sum = 0;
            KVTIER_HD_UNROLLED
            for (uint32_t i = 0; i < kColumn; ++i)
              sum = fmaf(scratch.q[g][column.Run(i / kRun) + i % kRun], row.value[i], sum);
            parts[g] = sum;
          }
          continue;
        }
        KVTIER_HD_UNROLLED
        for (uint32_t g = 0; g < kQueries; ++g) {
          float sum = bias[g];
          KVTIER_HD_UNROLLED
          for (uint32_t i = 0; i < kColumn; ++i) sum = fmaf(scaled[g][i], row.value[i], sum);
          parts[g] = sum;
        }
      }
    }
    team.sync();
    for (uint32_t at = team.rank(); at < step * kQueries; at += team.size()) {
      const uint32_t g = at % kQueries, row = at / kQueries, token = base + row;
      if (token >= tokens) break;
      float sum = 0;
      for (uint32_t c = 0; c < tasks.columns; ++c)
        sum += scratch.parts[(row * tasks.columns + c) * kQueries + g];
      scratch.probability[g][token] = sum;
    }
    team.sync();
  }
}

/// From scores to exp(score - m), with m the maximum of all layers so far; brings m and l up to date. Writes
/// the layer's own log-sum-exp. A warp takes one query. Ends synchronized.
template <Team T>
KVTIER_HD void SoftmaxLayer(const T& team, const AttendPlace& place, uint32_t tokens, float* lse,
                            AttendBatchScratch& scratch) {
  const uint32_t lanes = team.warp_size(), lane = team.rank() % lanes;
  for (uint32_t g = team.rank() / lanes; g < kQueries; g += team.size() / lanes) {
    float own_m = -INFINITY;
    for (uint32_t t = lane; t < tokens; t += lanes)
      own_m = scratch.probability[g][t] > own_m ? scratch.probability[g][t] : own_m;
    for (uint32_t mask = 1; mask < lanes; mask *= 2) {
      const float other = team.shfl_xor(own_m, mask);
      own_m = other > own_m ? other : own_m;
    }
    const float before = scratch.m[g];
    const float m = own_m > before ? own_m : before;
    float sum = 0;
    for (uint32_t t = lane; t < tokens; t += lanes) {
      const float weight = WeightOf(scratch.probability[g][t], m);
      scratch.probability[g][t] = weight;
      sum += weight;
    }
    for (uint32_t mask = 1; mask < lanes; mask *= 2) sum += team.shfl_xor(sum, mask);
    if (lane != 0) continue;
    scratch.factor[g] = MergeFactor(before, m);
    scratch.l[g] = scratch.l[g] * scratch.factor[g] + sum;
    scratch.m[g] = m;
    if (lse != nullptr && g < place.queries) lse[place.first_query + g] = LogSumExp(m, sum);
  }
  team.sync();
}

template <Team T>
KVTIER_HD void AddV(const ColumnRow& row, uint32_t token, const AttendBatchScratch& scratch,
                    float (&sums)[kQueries][kColumn]) {
  KVTIER_HD_UNROLLED
  for (uint32_t g = 0; g < kQueries; ++g) {
    const float weight = scratch.probability[g][token] * row.scale;
    KVTIER_HD_UNROLLED
    for (uint32_t i = 0; i < kColumn; ++i) sums[g][i] = fmaf(weight, row.value[i], sums[g][i]);
  }
}

/// Adds the layer's V to the sums of the lane.
template <Team T, typename Rows>
KVTIER_HD void SumLayer(const T& team, const Rows& rows, uint32_t nraw, const AttendBatchScratch& scratch,
                        VSums<T>& sums) {
  const uint32_t dim = rows.shape.v_dim, tokens = rows.shape.tokens;
  const ColumnTasks tasks(team, VGroups(rows.shape) * kColumnsPerTile, kMaxTokens);
  for (uint32_t k = 0; k < kVColumnsOfLane<T>; ++k) {
    const uint32_t task = team.rank() + k * team.size();
    const Column column(tasks.ColumnOf(task), dim);
    const bool works = task < tasks.count() && kRun * column.part < column.quarter;
    KVTIER_HD_UNROLLED
    for (uint32_t g = 0; g < kQueries; ++g) KVTIER_HD_UNROLLED
    for (uint32_t i = 0; i < kColumn; ++i) sums.of[k][g][i] *= scratch.factor[g];
    KVTIER_HD_ROLLED
    for (uint32_t token = 0; token < nraw; ++token) {  // by all lanes of a warp together
      ColumnRow row = {};
      const uint8_t* raw = rows.RawV(token);
      KVTIER_HD_UNROLLED
      for (uint32_t r = 0; works && r < 4; ++r) row.Set(r, LoadHalves(raw + 2 * column.Run(r)));
      row.scale = 1;
      if constexpr (std::is_same_v<Rows, PlanesRows>) TurnRawV(team, raw, dim, column, row);
      if (works && tasks.SliceOf(task) == token % tasks.slices) AddV<T>(row, token, scratch, sums.of[k]);
    }
    if (!works) continue;
    uint32_t first = tasks.SliceOf(task);
    while (first < nraw) first += tasks.slices;
    KVTIER_HD_ROLLED
    for (uint32_t token = first; token < tokens; token += tasks.slices)
      AddV<T>(rows.LoadV(token, column), token, scratch, sums.of[k]);
  }
}

/// Sums of all lanes, o of the split. Starts synchronized.
template <Team T>
KVTIER_HD void StoreSums(const T& team, const AttendBatchArgs& args, const AttendPlace& place,
                         uint64_t first_head, const VSums<T>& sums, AttendBatchScratch& scratch) {
  const uint32_t dim = args.v_dim, columns = (dim + kTileCodes - 1) / kTileCodes * kColumnsPerTile;
  const ColumnTasks tasks(team, columns, kMaxTokens);
  KVTIER_HD_UNROLLED
  for (uint32_t g = 0; g < kQueries; ++g) {
    for (uint32_t k = 0; k < kVColumnsOfLane<T>; ++k) {
      const uint32_t task = team.rank() + k * team.size();
      const Column column(tasks.ColumnOf(task), dim);
      if (task >= tasks.count() || kRun * column.part >= column.quarter) continue;
      KVTIER_HD_UNROLLED
      for (uint32_t i = 0; i < kColumn; ++i)
        scratch.parts[tasks.SliceOf(task) * dim + column.Run(i / kRun) + i % kRun] = sums.of[k][g][i];
    }
    team.sync();
    for (uint32_t c = team.rank(); g < place.queries && c < dim; c += team.size()) {
      float sum = 0;
      for (uint32_t slice = 0; slice < tasks.slices; ++slice) sum += scratch.parts[slice * dim + c];
      args.o[(first_head + g) * dim + c] = sum;
    }
    team.sync();
  }
}

/// with(rows, raw rows of V) for a head of a layer. Ends synchronized before it calls.
template <LayerCoding coding, Team T, typename With>
KVTIER_HD void WithRows(const T& team, const CodedLayer<const uint8_t>& layer, uint32_t head,
                        AttendBatchScratch& scratch, const With& with) {
  const BlockShape& shape = layer.shape;
  const uint32_t nraw = shape.nraw < shape.tokens ? shape.nraw : shape.tokens;
  if constexpr (coding == LayerCoding::kPlanes) {
    const PlaneSections<const uint8_t> in = PlaneSectionsOf(layer);
    if (team.rank() == 0) scratch.sections = in;  // FindBoost ends synchronized
    FindBoost(team, shape, in.boost_ids == nullptr ? nullptr : in.boost_ids + uint64_t{head} * shape.nb,
              scratch.boost);
    with(PlanesRows{.shape = shape, .in = scratch.sections, .head = head, .boost = scratch.boost}, nraw);
  } else if constexpr (coding == LayerCoding::kKv8) {
    with(Kv8Rows{.shape = shape, .in = Kv8SectionsOf(layer), .head = head}, nraw);
  } else {
    with(RawRows{.shape = shape, .source = RawSource(layer, head)}, 0u);
  }
}

/// One split of one coding.
template <LayerCoding coding, Team T>
KVTIER_HD void AttendSplitOf(const T& team, const AttendBatchArgs& args) {
  const AttendPlace place = PlaceOf(args, team.block());
  if (place.split.coding != coding) return;
  auto& scratch = *reinterpret_cast<AttendBatchScratch*>(team.scratch());
  const float* q = args.q + (uint64_t{place.split.query} * args.query_heads + place.first_query) * args.k_dim;
  for (uint32_t at = team.rank(); at < kQueries * args.k_dim; at += team.size()) {
    const uint32_t g = at / args.k_dim, c = at % args.k_dim;
    scratch.q[g][c] = g < place.queries ? q[uint64_t{g} * args.k_dim + c] * args.scale : 0;
  }
  for (uint32_t g = team.rank(); g < kQueries; g += team.size()) {
    scratch.m[g] = -INFINITY;
    scratch.l[g] = 0;
  }
  team.sync();
  VSums<T> sums;
  KVTIER_HD_ROLLED
  for (uint32_t i = 0; i < place.split.items; ++i) {
    const uint64_t item = uint64_t{place.split.first_item} + i;
    float* lse = args.lse == nullptr ? nullptr : args.lse + item * args.query_heads;
    WithRows<coding>(team, args.items[item], place.kv_head, scratch, [&](const auto& rows, uint32_t nraw) {
      ScoreLayer(team, rows, scratch);
      SoftmaxLayer(team, place, rows.shape.tokens, lse, scratch);
      SumLayer(team, rows, nraw, scratch, sums);
    });
    team.sync();
  }
  const uint64_t split = team.block() / QueryChunks(args) / args.kv_heads;
  const uint64_t first_head = split * args.query_heads + place.first_query;
  for (uint32_t g = team.rank(); g < place.queries; g += team.size()) {
    args.m[first_head + g] = scratch.m[g];
    args.l[first_head + g] = scratch.l[g];
  }
  StoreSums(team, args, place, first_head, sums, scratch);
}

}  // namespace internal

/// One block of at most kBatchLanes lanes for every split, KV head, and four of its query heads.
inline LaunchShape AttendBatchLaunch(const AttendBatchArgs& args) {
  if (args.split_count == 0) return {};
  return {.blocks = args.split_count * args.kv_heads * internal::QueryChunks(args),
          .scratch_bytes = internal::kAttendScratchBytes};
}

// Bodies, each for the splits of its coding. fp32, without the last rounding of the decoder. Total and
// memory-safe on arbitrary, also changing, bytes. Equal between teams within the bounds of codecs/FORMAT.md.

template <Team T>
KVTIER_HD void AttendPlanesBatch(const T& team, const AttendBatchArgs& args) {
  internal::AttendSplitOf<LayerCoding::kPlanes>(team, args);
}
template <Team T>
KVTIER_HD void AttendKv8Batch(const T& team, const AttendBatchArgs& args) {
  internal::AttendSplitOf<LayerCoding::kKv8>(team, args);
}
template <Team T>
KVTIER_HD void AttendRawBatch(const T& team, const AttendBatchArgs& args) {
  internal::AttendSplitOf<LayerCoding::kRaw>(team, args);
}

/// Runs a whole batch: launch(shape, body) for every body that it needs.
template <typename Launch>
void RunAttend(const AttendBatchArgs& args, const Launch& launch) {
  const LaunchShape shape = AttendBatchLaunch(args);
  if (args.codings & CodingBit(LayerCoding::kPlanes))
    launch(shape, [args](const auto& team) { AttendPlanesBatch(team, args); });
  if (args.codings & CodingBit(LayerCoding::kKv8))
    launch(shape, [args](const auto& team) { AttendKv8Batch(team, args); });
  if (args.codings & CodingBit(LayerCoding::kRaw))
    launch(shape, [args](const auto& team) { AttendRawBatch(team, args); });
}

}  // namespace kvtier
