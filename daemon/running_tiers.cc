#include "daemon/running_tiers.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <utility>

#include "daemon/cold_tiers.h"
#include "tiers/base/units.h"

namespace kvtier {

void LeaveAbsentTiersOut(std::vector<TierConfig>& tiers) {
  std::erase_if(tiers, [](const TierConfig& tier) {
    if (tier.kind != MediumKind::kCxl) return false;
    const Status found = FindCxl(tier);
    if (found.code() != Code::kNotFound) return false;
    spdlog::warn("tier {} is left out: {}", tier.name, found.message());
    return true;
  });
}

void AddLandingTier(std::vector<TierConfig>& tiers, uint64_t landing_bytes) {
  const auto is_on_gpu = [](const TierConfig& tier) { return tier.kind == MediumKind::kGpu; };
  if (std::ranges::any_of(tiers, [](const TierConfig& tier) { return tier.kind == MediumKind::kHost; }))
    return;
  TierConfig landing;
  landing.name = "landing";
  landing.capacity_bytes = landing_bytes;
  const auto below_gpus = std::ranges::find_if_not(tiers, is_on_gpu);
  // What leaves a GPU is encoded there, so that less of it crosses the bus.
  if (below_gpus != tiers.begin()) {
    landing.codec = std::min(tiers.front().codec, CodecId::kKv4p, [](CodecId a, CodecId b) {
      return FindCodec(a)->precision < FindCodec(b)->precision;
    });
  }
  tiers.insert(below_gpus, std::move(landing));
}

Status CheckMemory(const std::vector<TierConfig>& tiers, uint64_t memory_bytes) {
  uint64_t host_bytes = 0;
  for (const TierConfig& tier : tiers) {
    if (tier.kind == MediumKind::kHost) host_bytes += tier.capacity_bytes;
  }
  if (host_bytes <= memory_bytes) return Status::Ok();
  return Status(Code::kInvalidArgument, "host tiers of " + FormatBytes(host_bytes) + " do not fit into " +
                                            FormatBytes(memory_bytes >> 20 << 20) + " of memory");
}

}  // namespace kvtier
