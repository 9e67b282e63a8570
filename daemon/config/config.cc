#include "daemon/config/config.h"

#include <cerrno>
#include <fstream>

#include "daemon/config/config_check.h"
#include "daemon/config/config_section.h"
#include "daemon/config/config_tenants.h"

namespace kvtier {
namespace {

constexpr uint64_t kMiB = uint64_t{1} << 20;
constexpr uint64_t kTiB = uint64_t{1} << 40;
/// A reclaim has to give more than it takes.
constexpr double kMaxRewriteShare = 0.75;

Status ReadServer(Section section, ServerConfig& server) {
  section.Text("socket", server.socket);
  section.Check("socket", CheckSocketPath(server.socket));
  std::string mode = "0600";
  section.Text("socket_mode", mode);
  const Result<uint32_t> socket_mode = ParseSocketMode(mode);
  section.Check("socket_mode", socket_mode.status());
  if (socket_mode.ok()) server.socket_mode = *socket_mode;
  std::string strangers = "tenants";
  section.Text("strangers", strangers);
  const Result<bool> serves_strangers = ParseStrangers(strangers);
  section.Check("strangers", serves_strangers.status());
  if (serves_strangers.ok()) server.strangers = *serves_strangers;
  section.Number("workers", server.workers, 0, 64);
  section.Bytes("staging", server.staging_bytes, kMiB, kTiB);
  section.Bytes("staging_total", server.staging_total_bytes, kMiB, kTiB);
  section.Check(section.Has("staging_total") ? "staging_total" : "staging",
                CheckStaging(server.staging_bytes, server.staging_total_bytes));
  section.Number("default_deadline_ms", server.default_deadline_ms, 1, 60'000);
  section.Text("log_level", server.log_level);
  section.Check("log_level", CheckLogLevel(server.log_level));
  section.Bytes("landing", server.landing_bytes, 16 * kMiB, kTiB);
  std::string io = "auto";
  section.Text("io", io);
  Result<BlockIoKind> kind = ParseIoKind(io);
  section.Check("io", kind.status());
  if (kind.ok()) server.io = *kind;
  return section.Finish();
}

Status ReadLimits(Section section, LimitsConfig& limits) {
  section.Number("sessions", limits.sessions, 1, 65'536);
  section.Number("models_per_session", limits.models_per_session, 1, 4096);
  section.Number("leases_per_session", limits.leases_per_session, 1, 1'000'000);
  section.Share("lease_share", limits.lease_share);
  section.Number("lease_ttl_ms", limits.lease_ttl_ms, 1, 3'600'000);
  section.Number("max_lease_ttl_ms", limits.max_lease_ttl_ms, 1, 3'600'000);
  section.Check(section.Has("max_lease_ttl_ms") ? "max_lease_ttl_ms" : "lease_ttl_ms",
                CheckLeaseTtl(limits.lease_ttl_ms, limits.max_lease_ttl_ms));
  section.Number("keys_per_call", limits.keys_per_call, 1, kMaxKeysPerCall);
  section.Bytes("block", limits.block_bytes, 4096, 1024 * kMiB);
  section.Number("command_queue", limits.command_queue, 16, 65'536);
  section.Number("jobs_in_flight", limits.jobs_in_flight, 1, 65'536);
  section.Number("max_blocks", limits.max_blocks, 1, 1'000'000'000);
  return section.Finish();
}

Status ReadMetrics(Section section, MetricsConfig& metrics) {
  std::string listen = "127.0.0.1:9464";
  section.Text("listen", listen);
  metrics.enabled = listen != "off";
  if (metrics.enabled) {
    Result<HostPort> address = ParseHostPort(listen);
    section.Check("listen", address.status());
    if (address.ok()) {
      metrics.host = address->host;
      metrics.port = address->port;
    }
  }
  return section.Finish();
}

void ReadCommonTierKeys(Section& section, TierConfig& tier, std::string codec) {
  section.Text("codec", codec);
  Result<CodecId> id = ParseCodec(codec);
  section.Check("codec", id.status());
  if (id.ok()) tier.codec = *id;
  section.Check("capacity",
                section.Has("capacity") ? Status::Ok() : Status(Code::kInvalidArgument, "is required"));
  section.Share("high_watermark", tier.high_watermark);
  section.Share("low_watermark", tier.low_watermark);
  section.Check(section.Has("low_watermark") ? "low_watermark" : "high_watermark",
                CheckWatermarks(tier.low_watermark, tier.high_watermark));
}

Status ReadHostTier(Section section, std::string_view name, std::string_view codec,
                    std::vector<TierConfig>& tiers) {
  TierConfig tier;
  tier.name = name;
  std::string medium = "host";
  section.Text("medium", medium);
  if (name == "hot") {
    const Result<std::optional<uint32_t>> gpu = ParseHotMedium(medium);
    section.Check("medium", gpu.status());
    if (gpu.ok()) tier.gpu = *gpu;
  } else {
    section.Check("medium", CheckHostMedium(medium));
  }
  section.Bytes("capacity", tier.capacity_bytes, kMinTierBytes, 64 * kTiB);
  ReadCommonTierKeys(section, tier, std::string(codec));
  KVTIER_TRY(section.Finish());
  tiers.push_back(std::move(tier));
  return Status::Ok();
}

void ReadNvmeKeys(Section& section, TierConfig& tier) {
  std::string tails = "while_room";
  tier.name = "cold";
  section.Text("path", tier.path);
  section.Check("path", tier.path.empty() ? Status(Code::kInvalidArgument, "is required") : Status::Ok());
  section.Flag("direct_io", tier.direct_io);
  section.Text("tails", tails);
  section.Check("tails", CheckTails(tails));
  tier.keep_tails = tails == "while_room";
}

void ReadCxlKeys(Section& section, const std::vector<TenantConfig>& tenants, TierConfig& tier) {
  std::string source = "auto";
  tier.name = "cxl";
  section.Text("source", source);
  Result<CxlKind> kind = ParseCxlSource(source);
  section.Check("source", kind.status());
  if (kind.ok()) tier.cxl_source = *kind;
  section.Text("path", tier.path);
  if (tier.path == "auto") tier.path.clear();
  if (section.Has("numa_node")) {
    section.Number("numa_node", tier.numa_node.emplace(), 0, 1023);
  } else {
    section.Known("numa_node");
  }
  const char* key = section.Has("numa_node") ? "numa_node" : section.Has("source") ? "source" : "path";
  section.Check(key, CheckCxlPlace(tier));
  section.Text("mapped_by", tier.mapped_by);
  if (!tier.mapped_by.empty()) section.Check("mapped_by", CheckTenant(tier.mapped_by, tenants));
}

Status ReadColdTier(Section section, const std::vector<TenantConfig>& tenants,
                    std::vector<TierConfig>& tiers) {
  TierConfig tier;
  tier.kind = MediumKind::kNvme;
  std::string medium = "nvme";
  section.Text("medium", medium);
  Result<MediumKind> kind = ParseColdMedium(medium);
  section.Check("medium", kind.status());
  if (kind.ok()) tier.kind = *kind;
  if (tier.kind == MediumKind::kCxl) {
    ReadCxlKeys(section, tenants, tier);
  } else {
    ReadNvmeKeys(section, tier);
  }
  section.Bytes("segment", tier.segment_bytes, kMiB, 1024 * kMiB);
  section.Bytes("capacity", tier.capacity_bytes, kMinTierBytes, 1024 * kTiB);
  section.Bytes("scrub_rate", tier.scrub_bytes_per_second, 0, kTiB);
  section.Part("rewrite_share", tier.rewrite_share, kMaxRewriteShare);
  std::string admission = "all";
  section.Text("admission", admission);
  section.Check("admission", CheckAdmission(admission));
  tier.admission.by_frequency = admission == "frequency";
  section.Bytes("write_budget", tier.admission.write_bytes_per_day, 0, 1024 * kTiB);
  ReadCommonTierKeys(section, tier, "kv2p");
  section.Check("segment", CheckSegment(tier.segment_bytes, tier.capacity_bytes));
  KVTIER_TRY(section.Finish());
  tiers.push_back(std::move(tier));
  return Status::Ok();
}

Status ReadTiers(const toml::table& table, std::string_view file, const std::vector<TenantConfig>& tenants,
                 std::vector<TierConfig>& tiers) {
  for (const auto& [key, node] : table) {
    const bool cold = key.str() == "cold";
    if (!cold && key.str() != "hot" && key.str() != "warm") {
      return ErrorAt(file, node,
                     "unknown tier [tier." + std::string(key.str()) + "] (known: hot, warm, cold)");
    }
    if (!cold && !node.is_table())
      return ErrorAt(file, node, "[tier." + std::string(key.str()) + "] must be one table");
    if (cold && !node.is_array_of_tables())
      return ErrorAt(file, node, "cold tiers are written [[tier.cold]]");
  }
  if (const auto* hot = table["hot"].as_table()) {
    KVTIER_TRY(ReadHostTier(Section(*hot, "tier.hot", file), "hot", "raw16", tiers));
  }
  if (const auto* warm = table["warm"].as_table()) {
    KVTIER_TRY(ReadHostTier(Section(*warm, "tier.warm", file), "warm", "kv4p", tiers));
  }
  if (const auto* cold = table["cold"].as_array()) {
    for (const toml::node& one : *cold)
      KVTIER_TRY(ReadColdTier(Section(*one.as_table(), "tier.cold", file), tenants, tiers));
  }
  return Status::Ok();
}

Status ReadAll(const toml::table& root, std::string_view file, Config& config) {
  for (const auto& [key, node] : root) {
    const std::string_view name = key.str();
    if (name == "tenant") continue;  // ReadTenants
    if (name != "server" && name != "tier" && name != "limits" && name != "metrics" && name != "admin") {
      std::ostringstream line;
      line << file << ':' << key.source().begin.line << ": unknown section or key \"" << name
           << "\" (known sections: server, tier.hot, tier.warm, tier.cold, tenant, admin, limits, metrics)";
      return Status(Code::kInvalidArgument, line.str());
    }
    if (!node.is_table()) return ErrorAt(file, node, "[" + std::string(name) + "] must be a table");
  }
  if (const auto* server = root["server"].as_table()) {
    KVTIER_TRY(ReadServer(Section(*server, "server", file), config.server));
  }
  KVTIER_TRY(ReadTenants(root, file, config));
  if (const auto* limits = root["limits"].as_table()) {
    KVTIER_TRY(ReadLimits(Section(*limits, "limits", file), config.limits));
  }
  if (const auto* metrics = root["metrics"].as_table()) {
    KVTIER_TRY(ReadMetrics(Section(*metrics, "metrics", file), config.metrics));
  }
  if (const auto* tier = root["tier"].as_table())
    KVTIER_TRY(ReadTiers(*tier, file, config.tenants, config.tiers));
  if (const toml::node* block = root["limits"]["block"].node()) {
    // Only where it is written: it is the largest that may come, not what comes.
    const Status fits = CheckBlockFits(config.limits.block_bytes, config.tiers);
    if (!fits.ok()) return ErrorAt(file, *block, "[limits] block: " + fits.message());
  }
  return CheckLadder(config.tiers).WithContext(file);
}

}  // namespace

Result<Config> ParseConfig(std::string_view text, std::string_view name) {
  try {
    const toml::table root = toml::parse(text, name);
    Config config;
    KVTIER_TRY(ReadAll(root, name, config));
    return config;
  } catch (const toml::parse_error& error) {
    std::ostringstream line;
    line << name << ':' << error.source().begin.line << ": " << error.description();
    return Status(Code::kInvalidArgument, line.str());
  }
}

Result<Config> LoadConfig(const std::string& path) {
  errno = 0;
  std::ifstream file(path, std::ios::binary);
  if (!file) return StatusFromErrno(errno, "config file " + path);
  std::string text(kMaxConfigFileBytes + 1, '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  if (file.bad() || (file.fail() && !file.eof())) return StatusFromErrno(errno, "config file " + path);
  if (!file.eof()) return Status(Code::kInvalidArgument, "config file " + path + ": larger than 1MiB");
  text.resize(static_cast<size_t>(file.gcount()));
  return ParseConfig(text, path);
}

}  // namespace kvtier
