#include "daemon/hot_tier.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <string>

#include "daemon/process.h"
#include "tiers/base/units.h"

namespace kvtier {
namespace {

std::unique_ptr<GpuTier> Opened(TierConfig& hot, std::unique_ptr<GpuTier> gpu) {
  hot.kind = MediumKind::kGpu;
  const GpuTier::Facts& facts = gpu->facts();
  spdlog::info("hot tier on {}: {} for blocks", facts.description,
               FormatBytes(facts.arena_bytes >> 20 << 20));
  if (facts.free_bytes < hot.capacity_bytes) {
    spdlog::warn("{} has {} free: the hot tier grows as far as there is memory", facts.description,
                 FormatBytes(facts.free_bytes >> 20 << 20));
  }
  return gpu;
}

uint64_t HostTierBytes(const std::vector<TierConfig>& tiers) {
  uint64_t bytes = 0;
  for (const TierConfig& tier : tiers) {
    if (tier.kind == MediumKind::kHost && !tier.gpu) bytes += tier.capacity_bytes;
  }
  return bytes;
}

}  // namespace

std::unique_ptr<GpuTier> PlaceHotTier(std::vector<TierConfig>& tiers, uint64_t memory_bytes, uint32_t workers,
                                      uint32_t layer_helpers, const Clock& clock) {
  if (tiers.empty() || tiers.front().name != "hot") return nullptr;
  TierConfig& hot = tiers.front();
  if (!hot.gpu) {
    spdlog::info("{}: hot tier in host memory", GpuVisible() ? "as configured" : "no GPU");
    return nullptr;
  }
  const auto cold =
      std::ranges::count_if(tiers, [](const TierConfig& tier) { return !HasArenas(tier.kind); });
  Result<std::unique_ptr<GpuTier>> gpu =
      GpuTier::Open({.ordinal = *hot.gpu,
                     .capacity_bytes = hot.capacity_bytes,
                     .other_threads = static_cast<uint32_t>(cold) * workers,
                     .layer_helpers = layer_helpers},
                    clock);
  if (gpu.ok()) return Opened(hot, std::move(gpu).value());
  const uint64_t others_bytes = HostTierBytes(tiers);
  const uint64_t room = memory_bytes > others_bytes ? (memory_bytes - others_bytes) / 2 : 0;
  hot.gpu.reset();
  hot.capacity_bytes = std::min(hot.capacity_bytes, std::max(room >> 20 << 20, kMinTierBytes));
  spdlog::warn("{}: hot tier in host memory, {} of it", gpu.status().message(),
               FormatBytes(hot.capacity_bytes));
  return nullptr;
}

}  // namespace kvtier
