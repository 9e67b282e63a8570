#include "daemon/config/config.h"

#include <toml++/toml.h>
#include <algorithm>
#include <cerrno>
#include <fstream>
#include <sstream>

#include "daemon/config/config_check.h"
#include "tiers/base/units.h"

namespace kvtier {
namespace {

/// Reads one table key by key, remembers which keys exist, and names whatever is left.
/// The first error is kept; later calls do nothing, so that a reader is a plain list of keys.
class Section {
 public:
  Section(const toml::table& table, std::string title, std::string_view file)
      : table_(table), title_(std::move(title)), file_(file) {}

  void Text(std::string_view key, std::string& out) {
    if (const toml::node* node = Take(key)) {
      if (const auto value = node->value_exact<std::string>()) {
        // A path with one would end there for the system, and name something else.
        if (value->find('\0') != std::string::npos) return Fail(*node, key, "must not contain a NUL byte");
        out = *value;
      } else {
        Fail(*node, key, "must be a string");
      }
    }
  }
  void Flag(std::string_view key, bool& out) {
    if (const toml::node* node = Take(key)) {
      if (const auto value = node->value_exact<bool>()) {
        out = *value;
      } else {
        Fail(*node, key, "must be true or false");
      }
    }
  }
  template <typename Int>
  void Number(std::string_view key, Int& out, uint64_t min, uint64_t max) {
    const toml::node* node = Take(key);
    if (node == nullptr) return;
    const auto value = node->value_exact<int64_t>();
    if (!value || *value < 0 || static_cast<uint64_t>(*value) < min || static_cast<uint64_t>(*value) > max) {
      return Fail(*node, key,
                  "must be a whole number from " + std::to_string(min) + " to " + std::to_string(max));
    }
    out = static_cast<Int>(*value);
  }
  void Share(std::string_view key, double& out) {
    const toml::node* node = Take(key);
    if (node == nullptr) return;
    const auto value = node->value<double>();
    if (!value || !(*value > 0.0 && *value <= 1.0))
      return Fail(*node, key, "must be a number above 0 and at most 1");
    out = *value;
  }
  /// A share that may be nothing.
  void Part(std::string_view key, double& out, double max) {
    const toml::node* node = Take(key);
    if (node == nullptr) return;
    const auto value = node->value<double>();
    if (!value || !(*value >= 0.0 && *value <= max)) {
      std::ostringstream what;
      what << "must be a number from 0 to " << max;
      return Fail(*node, key, what.str());
    }
    out = *value;
  }
  void Bytes(std::string_view key, uint64_t& out, uint64_t min, uint64_t max) {
    const toml::node* node = Take(key);
    if (node == nullptr) return;
    Result<uint64_t> bytes(Code::kInvalidArgument, "must be a size (examples: 512MiB, 4GiB, 1048576)");
    if (const auto text = node->value_exact<std::string>()) {
      bytes = ParseBytes(*text);
    } else if (const auto number = node->value_exact<int64_t>(); number && *number >= 0) {
      bytes = static_cast<uint64_t>(*number);
    }
    if (!bytes.ok()) return Fail(*node, key, bytes.status().message());
    if (*bytes < min || *bytes > max) {
      return Fail(*node, key, "must be from " + FormatBytes(min) + " to " + FormatBytes(max));
    }
    out = *bytes;
  }

  /// Another check of a key that was read: fails with its line.
  void Check(std::string_view key, const Status& status) {
    if (status.ok() || !status_.ok()) return;
    const toml::node* node = table_.get(key);
    Fail(node != nullptr ? *node : table_, key, status.message(), status.code());
  }
  bool Has(std::string_view key) const { return table_.contains(key); }
  /// A key that was not read this time.
  void Known(std::string_view key) { known_.emplace_back(key); }

  /// After all keys: the first error, or one for a key that nobody asked for.
  Status Finish() {
    for (const auto& [key, node] : table_) {
      if (!status_.ok()) break;
      if (std::find(known_.begin(), known_.end(), key.str()) != known_.end()) continue;
      std::string known;
      for (const std::string& name : known_) known += (known.empty() ? "" : ", ") + name;
      FailAt(key.source(), key.str(), "unknown key (known: " + known + ")", Code::kInvalidArgument);
    }
    return status_;
  }

 private:
  const toml::node* Take(std::string_view key) {
    known_.emplace_back(key);
    return status_.ok() ? table_.get(key) : nullptr;
  }
  void Fail(const toml::node& node, std::string_view key, std::string_view what,
            Code code = Code::kInvalidArgument) {
    FailAt(node.source(), key, what, code);
  }
  void FailAt(const toml::source_region& where, std::string_view key, std::string_view what, Code code) {
    std::ostringstream line;
    line << file_ << ':' << where.begin.line << ": [" << title_ << "] " << key << ": " << what;
    status_ = Status(code, line.str());
  }

  const toml::table& table_;
  const std::string title_;
  const std::string_view file_;
  std::vector<std::string> known_;
  Status status_;
};

constexpr uint64_t kMiB = uint64_t{1} << 20;
constexpr uint64_t kTiB = uint64_t{1} << 40;
/// A reclaim has to give more than it takes.
constexpr double kMaxRewriteShare = 0.75;

Status ReadServer(Section section, ServerConfig& server) {
  section.Text("socket", server.socket);
  section.Check("socket", CheckSocketPath(server.socket));
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

void ReadCxlKeys(Section& section, TierConfig& tier) {
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
  if (!tier.mapped_by.empty()) section.Check("mapped_by", CheckTenant(tier.mapped_by));
}

Status ReadColdTier(Section section, std::vector<TierConfig>& tiers) {
  TierConfig tier;
  tier.kind = MediumKind::kNvme;
  std::string medium = "nvme";
  section.Text("medium", medium);
  Result<MediumKind> kind = ParseColdMedium(medium);
  section.Check("medium", kind.status());
  if (kind.ok()) tier.kind = *kind;
  if (tier.kind == MediumKind::kCxl) {
    ReadCxlKeys(section, tier);
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

Status At(std::string_view file, const toml::node& node, std::string_view what) {
  std::ostringstream line;
  line << file << ':' << node.source().begin.line << ": " << what;
  return Status(Code::kInvalidArgument, line.str());
}

Status ReadTiers(const toml::table& table, std::string_view file, std::vector<TierConfig>& tiers) {
  for (const auto& [key, node] : table) {
    const bool cold = key.str() == "cold";
    if (!cold && key.str() != "hot" && key.str() != "warm") {
      return At(file, node, "unknown tier [tier." + std::string(key.str()) + "] (known: hot, warm, cold)");
    }
    if (!cold && !node.is_table())
      return At(file, node, "[tier." + std::string(key.str()) + "] must be one table");
    if (cold && !node.is_array_of_tables()) return At(file, node, "cold tiers are written [[tier.cold]]");
  }
  if (const auto* hot = table["hot"].as_table()) {
    KVTIER_TRY(ReadHostTier(Section(*hot, "tier.hot", file), "hot", "raw16", tiers));
  }
  if (const auto* warm = table["warm"].as_table()) {
    KVTIER_TRY(ReadHostTier(Section(*warm, "tier.warm", file), "warm", "kv4p", tiers));
  }
  if (const auto* cold = table["cold"].as_array()) {
    for (const toml::node& one : *cold)
      KVTIER_TRY(ReadColdTier(Section(*one.as_table(), "tier.cold", file), tiers));
  }
  return Status::Ok();
}

Status ReadAll(const toml::table& root, std::string_view file, Config& config) {
  for (const auto& [key, node] : root) {
    const std::string_view name = key.str();
    if (name != "server" && name != "tier" && name != "limits" && name != "metrics") {
      std::ostringstream line;
      line << file << ':' << key.source().begin.line << ": unknown section or key \"" << name
           << "\" (known sections: server, tier.hot, tier.warm, tier.cold, limits, metrics)";
      return Status(Code::kInvalidArgument, line.str());
    }
    if (!node.is_table()) return At(file, node, "[" + std::string(name) + "] must be a table");
  }
  if (const auto* server = root["server"].as_table()) {
    KVTIER_TRY(ReadServer(Section(*server, "server", file), config.server));
  }
  if (const auto* limits = root["limits"].as_table()) {
    KVTIER_TRY(ReadLimits(Section(*limits, "limits", file), config.limits));
  }
  if (const auto* metrics = root["metrics"].as_table()) {
    KVTIER_TRY(ReadMetrics(Section(*metrics, "metrics", file), config.metrics));
  }
  if (const auto* tier = root["tier"].as_table()) KVTIER_TRY(ReadTiers(*tier, file, config.tiers));
  if (const toml::node* block = root["limits"]["block"].node()) {
    // Only where it is written: it is the largest that may come, not what comes.
    const Status fits = CheckBlockFits(config.limits.block_bytes, config.tiers);
    if (!fits.ok()) return At(file, *block, "[limits] block: " + fits.message());
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
