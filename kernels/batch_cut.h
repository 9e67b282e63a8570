#pragma once

#include <cstdint>

#include "kernels/batch.h"
#include "kernels/batch_encode_k.h"
#include "kernels/batch_rows.h"
#include "kernels/batch_sections.h"
#include "kernels/boost.h"
#include "kernels/host_device.h"
#include "kernels/team.h"

namespace kvtier {

/// One block of lanes per head of every item.
inline LaunchShape CutBatchLaunch(const CutBatchArgs& args) {
  return {.blocks = args.count * args.heads_max, .scratch_bytes = sizeof(BoostScratch)};
}

namespace internal {

struct SixteenBytes {
  uint64_t low, high;
};

/// A head's share of a part, in pieces of 16 bytes.
template <Team T>
KVTIER_HD void CopyPartShare(const T& team, const uint8_t* from, uint8_t* to, uint64_t bytes, uint32_t head,
                             uint32_t heads) {
  const uint64_t pieces = bytes / sizeof(SixteenBytes);
  for (uint64_t at = uint64_t{head} * team.size() + team.rank(); at < pieces;
       at += uint64_t{heads} * team.size())
    StoreWord(to + at * sizeof(SixteenBytes), LoadWord<SixteenBytes>(from + at * sizeof(SixteenBytes)));
}

}  // namespace internal

/// One head's share of a cut: the parts that stay, and the boost, as GatherBoostBits. A part that is the same
/// on both sides, in one place, is left alone.
template <Team T>
KVTIER_HD void CutBatch(const T& team, const CutBatchArgs& args) {
  using namespace internal;
  const uint32_t head = team.block() % args.heads_max;
  const CutItem& item = args.items[team.block() / args.heads_max];
  const BlockShape& shape = item.target.shape;
  if (head >= shape.kv_heads) return;
  const SectionBytes bytes = SectionBytesOf(shape);
  const auto copy = [&](const uint8_t* from, uint8_t* to, uint64_t section) {
    if (to != nullptr && from != nullptr && to != from)
      CopyPartShare(team, from, to, AlignSection(section), head, shape.kv_heads);
  };
  copy(item.source.base, item.target.base, BaseBytes(bytes));
  copy(item.source.boost, item.target.boost, bytes.boost);
  copy(item.source.k_tail, item.target.k_tail, bytes.k_low);
  copy(item.source.v_tail, item.target.v_tail, bytes.v_low);
  if (item.target.boost == nullptr || item.source.boost != nullptr || shape.nb == 0) return;

  auto& scratch = *reinterpret_cast<BoostScratch*>(team.scratch());
  const PlaneSections<const uint8_t> in = PlaneSectionsOf(item.source);
  const PlaneSections<uint8_t> out = PlaneSectionsOf(item.target);
  if (head == 0) ZeroPadding(team, out.boost_ids, bytes.boost);
  for (uint32_t c = team.rank(); c < shape.k_dim; c += team.size())
    scratch.scale[c] = Load16(in.k_scale + 2 * (uint64_t{head} * shape.k_dim + c));
  team.sync();
  SelectBoost(team, shape, scratch);
  for (uint32_t i = team.rank(); i < shape.nb; i += team.size())
    out.boost_ids[uint64_t{head} * shape.nb + i] = scratch.ids[i];  // NOLINT(clang-analyzer-*)
  const uint64_t row = PlaneRow(shape, head, 0);
  PackBoost(team, shape, in.k_low + row * (shape.k_dim / 4), scratch.ids,
            out.boost_low + row * (shape.nb / 4));
}

}  // namespace kvtier
