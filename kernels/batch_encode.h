#pragma once

#include <cstdint>
#include <type_traits>

#include "kernels/batch.h"
#include "kernels/batch_encode_k.h"
#include "kernels/batch_encode_kv8.h"
#include "kernels/batch_encode_v.h"
#include "kernels/batch_raw.h"
#include "kernels/batch_sections.h"
#include "kernels/batch_source.h"
#include "kernels/host_device.h"
#include "kernels/team.h"

namespace kvtier {

/// Every body of a batch: one block of lanes per head of every item.
inline LaunchShape EncodeBatchLaunch(const EncodeBatchArgs& args) {
  return {.blocks = args.count * args.heads_max, .scratch_bytes = internal::kEncodeScratchBytes};
}
inline LaunchShape RequantizeBatchLaunch(const RequantizeBatchArgs& args) {
  return {.blocks = args.count * args.heads_max, .scratch_bytes = internal::kEncodeScratchBytes};
}

namespace internal {

/// Bits of EncodedHead::inexact.
inline constexpr uint32_t kInexactK = 1, kInexactV = 2;

/// One head into the plane family, as Quantize. Starts synchronized.
template <Team T, typename Source>
KVTIER_HD EncodedHead EncodePlanesHead(const T& team, const Source& source, const CodedLayer<uint8_t>& target,
                                       uint32_t head, EncodeBatchScratch& scratch) {
  const BlockShape& shape = target.shape;
  const PlaneSections<uint8_t> out = PlaneSectionsOf(target);
  if (head == 0) ZeroPlanePadding(team, target);
  LaneErrors k, v;
  k.misfits = KExtremes(team, source, shape, scratch.partials);
  const uint32_t coarse = StoreKRanges(team, shape, out, head, scratch);
  EncodeKPlanes(team, source, shape, out, head, scratch, k);
  team.sync();
  if (out.boost_low != nullptr) {
    PackBoost(team, shape, scratch.LowPlane(), scratch.boost.ids,
              out.boost_low + PlaneRow(shape, head, 0) * (shape.nb / 4));
  }
  bool clamps;
  if constexpr (StandsAlone<T>) {
    clamps = EncodeVByGroups(team, source, shape, out, head, v);
  } else {
    clamps = EncodeVByColumns(team, source, shape, out, head, v);
  }
  double misfits = 0;
  EncodedHead found;
  found.k = HeadErrors(team, k, scratch.sums, misfits);
  found.v = HeadErrors(team, v, scratch.sums, misfits);
  found.fits = misfits == 0 && found.k.square < INFINITY ? 1 : 0;  // of K, NaN shows in the sum
  const LaneErrors off_grid = {.square = static_cast<double>(coarse), .int4 = clamps ? 1.0 : 0.0};
  const RowErrors lanes_off_grid = HeadErrors(team, off_grid, scratch.sums, misfits);
  if (lanes_off_grid.square != 0 || !TrustsGrid(found.k)) found.inexact |= kInexactK;
  if (lanes_off_grid.int4 != 0 || !TrustsGrid(found.v)) found.inexact |= kInexactV;
  return found;
}

/// The sums that EncodePlanesHead could not make well enough, from the ranges that it stored.
template <Team T, typename Source>
KVTIER_HD void MeasureHead(const T& team, const Source& source, const CodedLayer<uint8_t>& target,
                           uint32_t head, EncodeBatchScratch& scratch, EncodedHead* found) {
  const uint32_t inexact = found->inexact;
  double misfits = 0;
  team.sync();
  if (inexact & kInexactK) {
    LoadStoredKRanges(team, target, head, scratch);
    LaneErrors exact;
    MeasureKExactly(team, source, target.shape, scratch, exact);
    const RowErrors sums = HeadErrors(team, exact, scratch.sums, misfits);
    if (team.rank() == 0) found->k = sums;
  }
  if (inexact & kInexactV) {
    LaneErrors exact;
    if constexpr (StandsAlone<T>) {
      MeasureVByGroups(team, source, target.shape, exact);
    } else {
      MeasureVByColumns(team, source, target.shape, exact);
    }
    const RowErrors sums = HeadErrors(team, exact, scratch.sums, misfits);
    if (team.rank() == 0) found->v = sums;
  }
  if (team.rank() == 0) found->inexact = 0;
}

/// What a block of lanes has to do: a head of an item, or nothing.
template <typename Item>
struct HeadOfItem {
  const Item* item = nullptr;
  uint32_t head = 0;
  EncodedHead* found = nullptr;
};
template <Team T, typename Args>
KVTIER_HD auto HeadOf(const T& team, const Args& args, LayerCoding coding) {
  const uint32_t head = team.block() % args.heads_max;
  const auto* item = args.items + team.block() / args.heads_max;
  const bool works = head < item->target.shape.kv_heads && item->target.coding == coding;
  using Item = std::remove_cvref_t<decltype(*item)>;
  return HeadOfItem<Item>{.item = works ? item : nullptr, .head = head, .found = args.heads + team.block()};
}

template <Team T>
KVTIER_HD EncodeBatchScratch& EncodeScratchOf(const T& team) {
  return *reinterpret_cast<EncodeBatchScratch*>(team.scratch());
}
/// Ends synchronized.
template <Team T>
KVTIER_HD RowSource SourceOf(const T& team, const EncodeItem& item, uint32_t head) {
  const RowSource source =
      ViewSource(team, item.source, head, item.target.shape.tokens, EncodeScratchOf(team).rows);
  team.sync();
  return source;
}

/// with(source) for what a requantized item is read as: raw layers of 16-bit elements, or all others.
template <bool dense_halves, typename With>
KVTIER_HD void WithSource(const RequantizeItem& item, uint32_t head, const With& with) {
  if (item.source.coding != LayerCoding::kKv8) {
    WithRows<dense_halves>(RawSource(item.source, head), with);
  } else if constexpr (!dense_halves) {
    with(Kv8Source{.shape = item.source.shape, .in = Kv8SectionsOf(item.source), .head = head});
  }
}

}  // namespace internal

// Bodies over views. Each does the items of its coding and leaves the others alone. Total: values that do not
// fit are found, not trusted. Bytes are those of Quantize and QuantizeKv8, bit-exact between host and GPU;
// sums of errors differ from theirs, and between teams, in their last places.

/// 16-bit elements that lie side by side (dense_halves), or others.
template <bool dense_halves, Team T>
KVTIER_HD void EncodePlanesBatch(const T& team, const EncodeBatchArgs& args) {
  const auto found = internal::HeadOf(team, args, LayerCoding::kPlanes);
  if (found.item == nullptr) return;
  internal::WithRows<dense_halves>(
      internal::SourceOf(team, *found.item, found.head), [&](const auto& source) {
        const EncodedHead result = internal::EncodePlanesHead(team, source, found.item->target, found.head,
                                                              internal::EncodeScratchOf(team));
        if (team.rank() == 0) *found.found = result;
      });
}

/// After EncodePlanesBatch.
template <Team T>
KVTIER_HD void MeasurePlanesBatch(const T& team, const EncodeBatchArgs& args) {
  const auto [item, head, found] = internal::HeadOf(team, args, LayerCoding::kPlanes);
  if (item == nullptr || found->fits == 0 || found->inexact == 0) return;
  const internal::RowSource source = internal::SourceOf(team, *item, head);
  internal::MeasureHead(team, source, item->target, head, internal::EncodeScratchOf(team), found);
}

template <Team T>
KVTIER_HD void EncodeKv8Batch(const T& team, const EncodeBatchArgs& args) {
  const auto [item, head, found] = internal::HeadOf(team, args, LayerCoding::kKv8);
  if (item == nullptr) return;
  const internal::RowSource source = internal::SourceOf(team, *item, head);
  const EncodedHead result =
      internal::EncodeKv8Head(team, source, item->target, head, internal::EncodeScratchOf(team));
  if (team.rank() == 0) *found = result;
}

template <Team T>
KVTIER_HD void GatherRawBatch(const T& team, const EncodeBatchArgs& args) {
  const auto [item, head, found] = internal::HeadOf(team, args, LayerCoding::kRaw);
  if (item == nullptr) return;
  internal::GatherRawHead(team, internal::SourceOf(team, *item, head), item->target, head);
  if (team.rank() == 0) *found = {.k = {}, .v = {}, .fits = 1};
}

// The same over layers that are raw or kv8.

template <bool dense_halves, Team T>
KVTIER_HD void RequantizePlanesBatch(const T& team, const RequantizeBatchArgs& args) {
  const auto found = internal::HeadOf(team, args, LayerCoding::kPlanes);
  if (found.item == nullptr) return;
  internal::WithSource<dense_halves>(*found.item, found.head, [&](const auto& source) {
    const EncodedHead result = internal::EncodePlanesHead(team, source, found.item->target, found.head,
                                                          internal::EncodeScratchOf(team));
    if (team.rank() == 0) *found.found = result;
  });
}

template <Team T>
KVTIER_HD void MeasureRequantizedBatch(const T& team, const RequantizeBatchArgs& args) {
  const auto found = internal::HeadOf(team, args, LayerCoding::kPlanes);
  if (found.item == nullptr || found.found->fits == 0 || found.found->inexact == 0) return;
  const auto measure = [&](const auto& source) {
    internal::MeasureHead(team, source, found.item->target, found.head, internal::EncodeScratchOf(team),
                          found.found);
  };
  if (found.item->source.coding == LayerCoding::kKv8) {
    internal::WithSource<false>(*found.item, found.head, measure);
  } else {
    measure(internal::RawSource(found.item->source, found.head));
  }
}

/// From raw layers.
template <Team T>
KVTIER_HD void RequantizeKv8Batch(const T& team, const RequantizeBatchArgs& args) {
  const auto [item, head, found] = internal::HeadOf(team, args, LayerCoding::kKv8);
  if (item == nullptr) return;
  const EncodedHead result = internal::EncodeKv8Head(team, internal::RawSource(item->source, head),
                                                     item->target, head, internal::EncodeScratchOf(team));
  if (team.rank() == 0) *found = result;
}

/// Runs a whole batch: launch(shape, body) for every body that it needs, in this order.
template <typename Launch>
void RunEncode(const EncodeBatchArgs& args, const Launch& launch) {
  const LaunchShape shape = EncodeBatchLaunch(args);
  if (args.codings & CodingBit(LayerCoding::kPlanes)) {
    launch(shape, [args](const auto& team) { EncodePlanesBatch<true>(team, args); });
    launch(shape, [args](const auto& team) { EncodePlanesBatch<false>(team, args); });
    launch(shape, [args](const auto& team) { MeasurePlanesBatch(team, args); });
  }
  if (args.codings & CodingBit(LayerCoding::kKv8))
    launch(shape, [args](const auto& team) { EncodeKv8Batch(team, args); });
  if (args.codings & CodingBit(LayerCoding::kRaw))
    launch(shape, [args](const auto& team) { GatherRawBatch(team, args); });
}
template <typename Launch>
void RunRequantize(const RequantizeBatchArgs& args, const Launch& launch) {
  const LaunchShape shape = RequantizeBatchLaunch(args);
  if (args.codings & CodingBit(LayerCoding::kPlanes)) {
    launch(shape, [args](const auto& team) { RequantizePlanesBatch<true>(team, args); });
    launch(shape, [args](const auto& team) { RequantizePlanesBatch<false>(team, args); });
    launch(shape, [args](const auto& team) { MeasureRequantizedBatch(team, args); });
  }
  if (args.codings & CodingBit(LayerCoding::kKv8))
    launch(shape, [args](const auto& team) { RequantizeKv8Batch(team, args); });
}

}  // namespace kvtier
