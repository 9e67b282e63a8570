#include "daemon/options.h"

#include <unistd.h>

namespace kvtier {

EngineOptions EngineOptionsOf(const Config& config, const std::vector<TierConfig>& tiers,
                              const std::vector<ColdTier>& cold_tiers, Medium& host_memory, GpuTier* gpu) {
  EngineOptions options;
  for (size_t i = 0; i < tiers.size(); ++i) {
    const TierConfig& tier = tiers[i];
    TierOptions one;
    one.name = tier.name;
    one.kind = tier.kind;
    one.capacity_bytes = tier.capacity_bytes;
    one.codec = tier.codec;
    one.high_watermark = tier.high_watermark;
    one.low_watermark = tier.low_watermark;
    one.segment_bytes = tier.segment_bytes;
    if (tier.kind == MediumKind::kNvme) {
      one.segment_records = ColdSegmentRecords(tier.capacity_bytes, tier.segment_bytes);
    }
    one.scrub_bytes_per_second = tier.scrub_bytes_per_second;
    one.keep_tails = tier.kind == MediumKind::kNvme && tier.keep_tails;
    one.admission = tier.admission;
    one.rewrite_share = tier.rewrite_share;
    one.medium = &host_memory;
    if (tier.kind == MediumKind::kGpu) {
      one.medium = &gpu->medium();
      one.capacity_bytes = gpu->facts().arena_bytes;
      one.description = gpu->facts().description;
    }
    if (const ColdStore* store = cold_tiers[i].store.get()) {
      one.medium = cold_tiers[i].store.get();
      one.persistent = store->persistent();
      one.description = cold_tiers[i].description;
      one.tenant = cold_tiers[i].tenant;
    }
    options.tiers.push_back(std::move(one));
  }
  const LimitsConfig& limits = config.limits;
  options.limits.leases_per_session = limits.leases_per_session;
  options.limits.lease_share = limits.lease_share;
  options.limits.models_per_session = limits.models_per_session;
  options.limits.sessions = limits.sessions;
  options.limits.default_lease_ttl = std::chrono::milliseconds(limits.lease_ttl_ms);
  options.limits.max_lease_ttl = std::chrono::milliseconds(limits.max_lease_ttl_ms);
  options.limits.jobs_in_flight = limits.jobs_in_flight;
  options.limits.max_entries = limits.max_blocks;
  return options;
}

SessionLimits SessionLimitsOf(const Config& config) {
  const LimitsConfig& limits = config.limits;
  return {.keys_per_call = limits.keys_per_call,
          .block_bytes = limits.block_bytes,
          .leases = limits.leases_per_session,
          .models = limits.models_per_session,
          .lease_ttl_ms = limits.lease_ttl_ms,
          .max_lease_ttl_ms = limits.max_lease_ttl_ms};
}

SessionServerOptions SessionOptionsOf(const Config& config) {
  SessionServerOptions session;
  session.socket_path = config.server.socket + std::string(kSessionSocketSuffix);
  session.socket_mode = config.server.socket_mode;
  for (const TenantConfig& tenant : config.tenants)
    session.identity.tenants.push_back({.name = tenant.name, .uids = tenant.uids, .gids = tenant.gids});
  session.identity.admin_uids = config.admin.uids;
  session.identity.admin_gids = config.admin.gids;
  session.identity.strangers = config.server.strangers;
  session.identity.own_uid = ::geteuid();
  session.identity.unmapped_id = UnmappedIdHere();
  session.staging_bytes = config.server.staging_bytes;
  session.staging_total_bytes = config.server.staging_total_bytes;
  session.sessions = config.limits.sessions;
  session.limits = SessionLimitsOf(config);
  return session;
}

}  // namespace kvtier
