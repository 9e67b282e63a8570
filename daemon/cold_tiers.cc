#include "daemon/cold_tiers.h"

#include <spdlog/spdlog.h>

#include "tiers/cxl_store.h"
#include "tiers/place.h"

namespace kvtier {
namespace {

/// One line for each kind of damage that a start found: an operator may want to act on it.
void TellAboutDamage(const TierConfig& tier, const ColdRecovery& recovery) {
  if (recovery.index_rebuilt) {
    spdlog::warn("tier {}: the index in {} was damaged: moved aside and rebuilt", tier.name, tier.path);
  }
  if (recovery.foreign_files > 0) {
    spdlog::warn("tier {}: {} segments of another store in {}: set aside", tier.name, recovery.foreign_files,
                 tier.path);
  }
  if (recovery.unopened_files > 0) {
    spdlog::warn("tier {}: {} segments in {} cannot be opened: left alone, what they hold is missing",
                 tier.name, recovery.unopened_files, tier.path);
  }
  if (recovery.disk_full) {
    spdlog::warn(
        "tier {}: the disk of {} is full: what it holds can be read, writes fail until there is room",
        tier.name, tier.path);
  }
  if (recovery.beyond_capacity_records > 0) {
    spdlog::info("tier {}: {} records in {} gave way to a smaller capacity", tier.name,
                 recovery.beyond_capacity_records, tier.path);
  }
  if (recovery.removed_models > 0) {
    spdlog::info("tier {}: {} models without a block removed from {}", tier.name, recovery.removed_models,
                 tier.path);
  }
  if (recovery.damaged_headers > 0) {
    spdlog::warn("tier {}: {} segments with a damaged header in {}", tier.name, recovery.damaged_headers,
                 tier.path);
  }
  if (recovery.unknown_model_blocks > 0) {
    spdlog::warn("tier {}: {} blocks in {} are of no use: their model's file is missing or damaged",
                 tier.name, recovery.unknown_model_blocks, tier.path);
  }
  const uint64_t others =
      recovery.dropped_records - recovery.unknown_model_blocks - recovery.beyond_capacity_records;
  if (others > 0) spdlog::warn("tier {}: {} damaged records in {} dropped", tier.name, others, tier.path);
}

CxlRequest RequestOf(const TierConfig& tier) {
  return {.kind = tier.cxl_source,
          .path = tier.path,
          .numa_node = tier.numa_node,
          .bytes = tier.capacity_bytes / kSlotAlign * kSlotAlign};
}

Result<ColdTier> OpenNvme(const TierConfig& tier, TierId id, Metrics& metrics) {
  ColdStoreOptions options;
  options.tier = id;
  options.path = tier.path;
  options.capacity_bytes = tier.capacity_bytes;
  options.segment_bytes = tier.segment_bytes;
  options.allow_direct_io = tier.direct_io;
  ColdTier opened;
  KVTIER_ASSIGN(opened.store, ColdStore::Make(std::move(options)));
  metrics.o_direct_active.Set(opened.store->direct_io() ? 1 : 0);
  metrics.fallocate_active.Set(opened.store->preallocates() ? 1 : 0);
  if (!opened.store->preallocates()) {
    spdlog::warn("tier {}: no fallocate in {}: a full disk shows when blocks are written", tier.name,
                 tier.path);
  }
  opened.description =
      "nvme " + tier.path + (opened.store->direct_io() ? ", O_DIRECT" : ", no O_DIRECT: buffered I/O");
  return opened;
}

/// Says where the pages are, and where they should be but are not.
std::string PlacementText(const TierConfig& tier, const CxlTarget& target, const NumaPlacement& placement) {
  if (placement.sampled == 0) return ", NUMA node unknown";
  const std::string text = ", NUMA node " + std::to_string(placement.node);
  const bool elsewhere =
      placement.on_node < placement.sampled ||
      (target.kind == CxlKind::kNuma && placement.node != static_cast<int32_t>(target.numa_node));
  if (elsewhere) {
    spdlog::warn("tier {}: of {} pages looked at, {} are on NUMA node {}", tier.name, placement.sampled,
                 placement.on_node, placement.node);
  }
  return text;
}

Result<ColdTier> OpenCxl(const TierConfig& tier, TierId id, Metrics& metrics) {
  const CxlRequest request = RequestOf(tier);
  KVTIER_ASSIGN(const CxlTarget target, ResolveCxl(request, CxlSystem{}));
  const CxlStoreOptions options{
      .tier = id, .capacity_bytes = request.bytes, .segment_bytes = tier.segment_bytes};
  KVTIER_ASSIGN(std::unique_ptr<CxlMapping> mapping, MapForCxlStore(options, target));
  const NumaPlacement placement = mapping->Placement();
  metrics.tier[id.value].numa_node.Set(placement.sampled > 0 ? placement.node : -1);
  ColdTier opened;
  opened.description = "cxl " + (target.path.empty() ? "" : target.path + ", ") + mapping->Describe() +
                       PlacementText(tier, target, placement);
  KVTIER_ASSIGN(opened.store, CxlStore::Make(options, std::move(mapping)));
  if (!opened.store->persistent()) {
    spdlog::warn("tier {}: its memory is not persistent: a power cut empties it, durable puts go below",
                 tier.name);
  }
  return opened;
}

}  // namespace

Status FindCxl(const TierConfig& tier) {
  return ResolveCxl(RequestOf(tier), CxlSystem{}).status();
}

Result<ColdTier> OpenColdTier(const TierConfig& tier, TierId id, Metrics& metrics) {
  const bool is_cxl = tier.kind == MediumKind::kCxl;
  Result<ColdTier> opened = is_cxl ? OpenCxl(tier, id, metrics) : OpenNvme(tier, id, metrics);
  if (!opened.ok()) return opened.status().WithContext("tier " + tier.name);
  KVTIER_ASSIGN(opened->recovery, opened->store->Recover());
  metrics.tier[id.value].persistent.Set(opened->store->persistent() ? 1 : 0);
  const ColdRecovery& recovery = opened->recovery;
  spdlog::info("tier {}: {} blocks of {} models found in {} ({} records dropped)", tier.name,
               recovery.blocks.size(), recovery.models.size(), opened->description, recovery.dropped_records);
  TellAboutDamage(tier, recovery);
  metrics.cold_recovery_dropped.Add(recovery.dropped_records);
  return opened;
}

}  // namespace kvtier
