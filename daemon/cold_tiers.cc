#include "daemon/cold_tiers.h"

#include <spdlog/spdlog.h>

#include <algorithm>

#include "daemon/policy/model_spec.h"
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

/// Memory that is cut, or whose disk fails, ends the process that reads it: no client may meet that by
/// accident. A plain file has to be asked for by name.
bool MayBeMapped(const TierConfig& tier, const CxlMapping& mapping) {
  return !tier.mapped_by.empty() && (mapping.kind() != CxlKind::kFile || tier.cxl_source == CxlKind::kFile);
}

/// Decides, once it is known what the store holds, whether clients map it.
void DecideSharing(const TierConfig& tier, ColdTier& opened) {
  const auto through_dram = [&](const std::string& why) {
    spdlog::warn("tier {}: clients do not map it but read through DRAM: {}", tier.name, why);
    opened.shared.reset();
  };
  if (tier.mapped_by.empty()) {
    if (!opened.tenant.empty())
      through_dram("mapped_by is not set; it takes blocks of " + opened.tenant + " alone");
    return;
  }
  if (!opened.shared)
    return through_dram("a file can be cut while it is read; source = \"file\" asks for it all the same");
  if (opened.tenant != tier.mapped_by) {
    return through_dram("it was made for " + (opened.tenant.empty() ? "everybody" : opened.tenant) +
                        "; to make it anew give it a new file, or zero its first 128 KiB");
  }
  const bool alone = std::ranges::all_of(opened.recovery.models, [&](const ModelRecord& record) {
    const Result<StoredModel> model = ParseModel(record.fields);
    return model.ok() && model->tenant == tier.mapped_by;
  });
  if (!alone) return through_dram("it holds models of others");
  opened.description += ", mapped by clients of " + tier.mapped_by;
}

Result<ColdTier> OpenCxl(const TierConfig& tier, TierId id, Metrics& metrics) {
  const CxlRequest request = RequestOf(tier);
  KVTIER_ASSIGN(const CxlTarget target, ResolveCxl(request, CxlSystem{}));
  CxlStoreOptions options{.tier = id, .capacity_bytes = request.bytes, .segment_bytes = tier.segment_bytes};
  KVTIER_ASSIGN(std::unique_ptr<CxlMapping> mapping, MapForCxlStore(options, target));
  const NumaPlacement placement = mapping->Placement();
  metrics.tier[id.value].numa_node.Set(placement.sampled > 0 ? placement.node : -1);
  ColdTier opened;
  opened.description = "cxl " + (target.path.empty() ? "" : target.path + ", ") + mapping->Describe() +
                       PlacementText(tier, target, placement);
  const bool may_be_mapped = MayBeMapped(tier, *mapping);
  if (may_be_mapped) {
    options.tenant = tier.mapped_by;
    SharedMemory& shared = opened.shared.emplace();
    shared.bytes = mapping->mapped_bytes();
    KVTIER_ASSIGN(shared.descriptor, mapping->OpenReadOnly());
  }
  KVTIER_ASSIGN(std::unique_ptr<CxlStore> store, CxlStore::Make(options, std::move(mapping)));
  opened.tenant = store->tenant();
  if (opened.shared) opened.shared->store = store.get();
  opened.store = std::move(store);
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
  if (is_cxl) DecideSharing(tier, *opened);
  metrics.tier[id.value].persistent.Set(opened->store->persistent() ? 1 : 0);
  const ColdRecovery& recovery = opened->recovery;
  spdlog::info("tier {}: {} blocks of {} models found in {} ({} records dropped)", tier.name,
               recovery.blocks.size(), recovery.models.size(), opened->description, recovery.dropped_records);
  TellAboutDamage(tier, recovery);
  metrics.cold_recovery_dropped.Add(recovery.dropped_records);
  return opened;
}

std::vector<SharedStore> SharedStores(const std::vector<TierConfig>& tiers,
                                      const std::vector<ColdTier>& opened) {
  std::vector<SharedStore> stores;
  for (size_t i = 0; i < opened.size(); ++i) {
    const ColdTier& tier = opened[i];
    if (!tier.shared) continue;
    stores.push_back({.tier = TierId{static_cast<uint8_t>(i)},
                      .tenant = tier.tenant,
                      .descriptor = tier.shared->descriptor.get(),
                      .bytes = tier.shared->bytes,
                      .segments = CxlSegmentLimit(tier.store->allocated_bytes(), tiers[i].segment_bytes),
                      .segment_bytes = tiers[i].segment_bytes,
                      .uuid = tier.shared->store->uuid()});
  }
  return stores;
}

}  // namespace kvtier
