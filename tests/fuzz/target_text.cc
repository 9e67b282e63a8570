// Text: kvtier.toml, and what kvtierctl reads off /metrics.
#include <cmath>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include "client/ctl/exposition.h"
#include "daemon/config/config.h"
#include "monitoring/metrics.h"
#include "tests/fuzz/input_reader.h"
#include "tests/fuzz/target.h"
#include "tests/support/paths.h"
#include "tiers/base/check.h"

namespace kvtier {
namespace {

FuzzTarget::Bytes BytesOf(std::string_view text) {
  return InputWriter().PutText(text).Take();
}

FuzzTarget::Bytes FileBytes(const std::string& path_in_tree) {
  std::ifstream file(TestDataFolder() + "/../../" + path_in_tree, std::ios::binary);
  KVTIER_CHECK(file.good());
  return BytesOf(std::string{std::istreambuf_iterator<char>(file), {}});
}

/// What every accepted configuration promises to the rest of the daemon.
void CheckBounds(const Config& config) {
  KVTIER_CHECK(!config.tiers.empty() && config.tiers.size() <= kMaxTiers);
  const std::string& socket = config.server.socket;
  KVTIER_CHECK(socket.size() + kSessionSocketSuffix.size() <= kMaxSocketPathBytes);
  KVTIER_CHECK(socket.find('\0') == std::string::npos);
  KVTIER_CHECK(config.server.staging_bytes <= config.server.staging_total_bytes);
  KVTIER_CHECK(config.tenants.size() <= kMaxNamedTenants);
  KVTIER_CHECK(config.limits.lease_ttl_ms <= config.limits.max_lease_ttl_ms);
  KVTIER_CHECK(config.limits.keys_per_call >= 1 && config.limits.keys_per_call <= kMaxKeysPerCall);
  bool was_cold = false;
  for (const TierConfig& tier : config.tiers) {
    KVTIER_CHECK(tier.capacity_bytes >= kMinTierBytes);
    KVTIER_CHECK(tier.low_watermark > 0 && tier.low_watermark <= tier.high_watermark);
    KVTIER_CHECK(tier.high_watermark <= 1 && tier.rewrite_share >= 0 && tier.rewrite_share < 1);
    KVTIER_CHECK(FindCodec(tier.codec) != nullptr);
    const bool cold = tier.kind == MediumKind::kNvme || tier.kind == MediumKind::kCxl;
    KVTIER_CHECK(cold || !was_cold);
    was_cold = cold;
    if (!cold) continue;
    KVTIER_CHECK(tier.segment_bytes % 4096 == 0 && tier.segment_bytes <= tier.capacity_bytes);
  }
}

}  // namespace

bool RunConfig(std::span<const std::byte> bytes) {
  constexpr std::string_view kName = "fuzz.toml";
  const Result<Config> config = ParseConfig(AsText(bytes), kName);
  if (config.ok()) {
    CheckBounds(*config);
    return true;
  }
  const std::string message(config.status().message());
  KVTIER_CHECK(message.starts_with(kName));
  return false;
}

std::vector<FuzzTarget::Bytes> ConfigSeeds() {
  return {FileBytes("deploy/kvtier.toml"), BytesOf("[tier.hot]\ncapacity = \"64MiB\"\n"),
          BytesOf("[server]\nsocket = \"/run/k.sock\"\nsocket_mode = \"0660\"\nstrangers = \"refuse\"\n"
                  "[[tenant]]\nname = \"team\"\nuids = [1000, 1001]\ngids = [100]\n"
                  "[admin]\nuids = [1]\ngids = []\n[tier.warm]\ncapacity = \"32MiB\"\n"
                  "high_watermark = 0.9\nlow_watermark = 0.5\n"),
          BytesOf("[tier.hot]\nmedium = \"gpu:0\"\ncapacity = \"16MiB\"\ncodec = \"kv8\"\n"
                  "[[tier.cold]]\nmedium = \"cxl\"\npath = \"/dev/dax0.0\"\ncapacity = \"64MiB\"\n"
                  "segment = \"4MiB\"\nmapped_by = \"uid:1000\"\n"
                  "[[tier.cold]]\npath = \"/var/lib/k\"\ncapacity = \"1GiB\"\nsegment = \"16MiB\"\n"
                  "tails = \"never\"\nadmission = \"frequency\"\nwrite_budget = \"10GiB\"\n"
                  "rewrite_share = 0.5\nscrub_rate = 0\ndirect_io = false\n"
                  "[limits]\nsessions = 4\nblock = \"1MiB\"\n[metrics]\nlisten = \"off\"\n")};
}

bool RunScrape(std::span<const std::byte> bytes) {
  const Result<ctl::Exposition> scrape = ctl::Exposition::Parse(AsText(bytes));
  if (!scrape.ok()) return false;
  // What kvtierctl top looks at, and for a name and a label of the input's own.
  const std::string_view text = AsText(bytes);
  const std::string_view name = text.substr(0, text.find_first_of("{ \n"));
  size_t samples = 0;
  for (const ctl::Exposition::Sample& sample : scrape->Of(name)) {
    ++samples;
    for (const auto& [label, value] : sample.labels) {
      const std::vector<std::string> values = scrape->Values(name, label);
      KVTIER_CHECK(std::ranges::find(values, value) != values.end());
    }
    [[maybe_unused]] const double sum = scrape->Sum(name, sample.labels);
  }
  KVTIER_CHECK(samples <= bytes.size());
  return true;
}

std::vector<FuzzTarget::Bytes> ScrapeSeeds() {
  return {
      BytesOf("# HELP kvtier_tier_used_bytes Bytes.\n# TYPE kvtier_tier_used_bytes gauge\n"
              "kvtier_tier_used_bytes{tier=\"hot\",medium=\"host\"} 1.5e+09\n"
              "kvtier_tier_used_bytes{tier=\"co\\\\l\\\"d\"} NaN\nkvtier_up 1\n"),
      BytesOf(
          "kvtier_fetch_seconds_bucket{tier=\"warm\",le=\"+Inf\"} 12\n"
          "kvtier_fetch_seconds_sum{tier=\"warm\"} 0.25\n\nkvtier_build_info{version=\"0.1.0\",} 1 1700\n")};
}

}  // namespace kvtier
