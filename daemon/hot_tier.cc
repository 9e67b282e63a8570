#include "daemon/hot_tier.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <string>

#include "daemon/process.h"
#include "tiers/base/units.h"
#include "tiers/cuda/gpu.h"

namespace kvtier {
namespace {

std::string WhyNot(uint32_t gpu) {
  const Result<GpuInfo> found = FindGpu(gpu);
  if (!found.ok()) return found.status().message();
  return "GPU " + std::to_string(gpu) + " (compute " + std::to_string(found->compute_major) + "." +
         std::to_string(found->compute_minor) + ") is there, and this version has no tier on it";
}

uint64_t HostTierBytes(const std::vector<TierConfig>& tiers) {
  uint64_t bytes = 0;
  for (const TierConfig& tier : tiers) {
    if (tier.kind == MediumKind::kHost && !tier.gpu) bytes += tier.capacity_bytes;
  }
  return bytes;
}

}  // namespace

void PlaceHotTier(std::vector<TierConfig>& tiers, uint64_t memory_bytes) {
  TierConfig& hot = tiers.front();
  if (hot.name != "hot") return;
  if (!hot.gpu) {
    spdlog::info("{}: hot tier in host memory", GpuVisible() ? "as configured" : "no GPU");
    return;
  }
  const uint64_t others_bytes = HostTierBytes(tiers);
  const uint64_t room = memory_bytes > others_bytes ? (memory_bytes - others_bytes) / 2 : 0;
  const std::string why = WhyNot(*hot.gpu);
  hot.gpu.reset();
  hot.capacity_bytes = std::min(hot.capacity_bytes, std::max(room >> 20 << 20, kMinTierBytes));
  spdlog::warn("{}: hot tier in host memory, {} of it", why, FormatBytes(hot.capacity_bytes));
}

}  // namespace kvtier
