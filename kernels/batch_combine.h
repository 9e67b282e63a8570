#pragma once

#include <cmath>
#include <cstdint>

#include "kernels/attention.h"
#include "kernels/batch.h"
#include "kernels/batch_rows.h"
#include "kernels/host_device.h"
#include "kernels/team.h"

namespace kvtier {

namespace internal {

struct CombineScratch {
  float plain[kMaxHeadDim];
  float rotated[kMaxHeadDim];
};

}  // namespace internal

/// One block of lanes per query head of every query.
inline LaunchShape CombineBatchLaunch(const CombineBatchArgs& args) {
  return {.blocks = args.queries * args.query_heads, .scratch_bytes = sizeof(internal::CombineScratch)};
}

/// Puts the parts of one query head together. fp32; equal between teams up to the compiler's expf.
template <Team T>
KVTIER_HD void CombineBatch(const T& team, const CombineBatchArgs& args) {
  const uint32_t query = team.block() / args.query_heads, head = team.block() % args.query_heads;
  const uint32_t begin = args.first_split[query], end = args.first_split[query + 1];
  auto& scratch = *reinterpret_cast<internal::CombineScratch*>(team.scratch());
  const auto part = [&](uint32_t split) { return uint64_t{split} * args.query_heads + head; };
  // Every lane finds m and l for itself.
  float m = -INFINITY, l = 0;
  for (uint32_t split = begin; split < end; ++split)
    m = args.part_m[part(split)] > m ? args.part_m[part(split)] : m;
  for (uint32_t split = begin; split < end; ++split)
    l += args.part_l[part(split)] * MergeFactor(args.part_m[part(split)], m);
  for (uint32_t c = team.rank(); c < args.v_dim; c += team.size()) {
    float plain = 0, rotated = 0;
    for (uint32_t split = begin; split < end; ++split) {
      const float value =
          args.part_o[part(split) * args.v_dim + c] * MergeFactor(args.part_m[part(split)], m);
      (args.splits[split].coding == LayerCoding::kPlanes ? rotated : plain) += value;
    }
    scratch.plain[c] = plain;
    scratch.rotated[c] = rotated;
  }
  team.sync();
  // H64 / 8 is its own inverse; its row c has the sign of the bits that c and the channel have in common.
  float* o = args.o + uint64_t{team.block()} * args.v_dim;
  for (uint32_t c = team.rank(); c < args.v_dim; c += team.size()) {
    const uint32_t tile = c / kTileCodes * kTileCodes;
    float turned = scratch.rotated[c];
    if (TileCodes(args.v_dim, tile) == kTileCodes) {
      turned = 0;
      for (uint32_t i = 0; i < kTileCodes; ++i) {
        const float value = scratch.rotated[tile + i];
        turned += std::popcount(i & (c - tile)) % 2 == 0 ? value : -value;
      }
      turned *= 0.125f;
    }
    o[c] = scratch.plain[c] + turned;
  }
  if (team.rank() == 0) {
    args.m[team.block()] = m;
    args.l[team.block()] = l;
  }
  if (args.mass == nullptr || begin == end) return;
  const uint32_t first = args.splits[begin].first_item;
  const uint32_t last = args.splits[end - 1].first_item + args.splits[end - 1].items;
  for (uint32_t item = first + team.rank(); item < last; item += team.size()) {
    const uint64_t at = uint64_t{item} * args.query_heads + head;
    args.mass[at] = AttentionMass(args.part_lse[at], LogSumExp(m, l));
  }
}

}  // namespace kvtier
