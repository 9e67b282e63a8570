#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "codecs/codec.h"
#include "daemon/engine/engine.h"
#include "tiers/base/block_io.h"
#include "tiers/base/status.h"
#include "tiers/cxl_system.h"

namespace kvtier {

/// kvtier.toml, parsed and checked: every value is inside its bounds. deploy/kvtier.toml documents each key.

struct ServerConfig {
  std::string socket = "/run/kvtier/kvtierd.sock";
  uint32_t socket_mode = 0600;  ///< 0600, 0660 or 0666
  bool strangers = true;        ///< who is of no [[tenant]] is one of their own, or is refused
  uint32_t workers = 0;         ///< 0: one per core, at most 4
  uint64_t staging_bytes = uint64_t{64} << 20;
  uint64_t staging_total_bytes = uint64_t{8} << 30;
  uint32_t default_deadline_ms = 100;
  std::string log_level = "info";
  uint64_t landing_bytes = uint64_t{128} << 20;
  BlockIoKind io = BlockIoKind::kAuto;
};

struct TierConfig {
  std::string name;
  MediumKind kind = MediumKind::kHost;
  CodecId codec = CodecId::kRaw16;
  uint64_t capacity_bytes = 0;
  std::optional<uint32_t> gpu;  ///< hot: medium = "gpu:N"; the kind stays kHost, where it falls back to
  double high_watermark = 0.95, low_watermark = 0.90;
  std::string path;  ///< cold tiers only, as is all below; cxl: may be empty
  uint64_t segment_bytes = uint64_t{64} << 20;
  uint64_t scrub_bytes_per_second = uint64_t{1} << 20;
  AdmissionOptions admission{};
  double rewrite_share = 0;
  bool direct_io = true;                ///< nvme
  bool keep_tails = true;               ///< nvme: tails = "while_room"
  CxlKind cxl_source = CxlKind::kAuto;  ///< cxl, as is all below
  std::optional<uint32_t> numa_node;
  std::string mapped_by;  ///< tenant whose clients map the memory; empty: nobody
};

struct LimitsConfig {
  uint32_t sessions = 1024;
  uint32_t models_per_session = 64;
  uint32_t leases_per_session = 4096;
  double lease_share = 0.25;
  uint32_t lease_ttl_ms = 10'000;
  uint32_t max_lease_ttl_ms = 60'000;
  uint32_t keys_per_call = kMaxKeysPerCall;
  uint64_t block_bytes = uint64_t{64} << 20;
  uint32_t command_queue = 4096;
  uint32_t jobs_in_flight = 256;
  uint64_t max_blocks = 16'000'000;
};

struct MetricsConfig {
  bool enabled = true;
  std::string host = "127.0.0.1";
  uint16_t port = 9464;  ///< 0: one that is free, told in the log
};

/// Users and groups that are one tenant together.
struct TenantConfig {
  std::string name;
  std::vector<uint32_t> uids, gids;
};

/// Who may look at and change everything, beside root and the daemon's own user.
struct AdminConfig {
  std::vector<uint32_t> uids, gids;
};

struct Config {
  ServerConfig server;
  std::vector<TenantConfig> tenants;  ///< as written: of several that a peer's groups select, the first
  AdminConfig admin;
  std::vector<TierConfig> tiers;  ///< as written, highest first; 1 to kMaxTiers
  LimitsConfig limits;
  MetricsConfig metrics;
};

/// Longest path of a UNIX socket, without its terminating zero.
inline constexpr size_t kMaxSocketPathBytes = 107;
/// What the session socket adds to the path of the gRPC socket.
inline constexpr std::string_view kSessionSocketSuffix = ".session";
inline constexpr uint64_t kMinTierBytes = uint64_t{16} << 20;
inline constexpr uint64_t kMaxConfigFileBytes = uint64_t{1} << 20;
inline constexpr size_t kMaxNamedTenants = 256;
inline constexpr size_t kMaxIds = 1024;  ///< in one list of users or groups
/// In metrics, all tenants that have no label of their own.
inline constexpr std::string_view kOtherTenants = "other";

/// `name` is how messages call the file. Errors: kInvalidArgument, kUnimplemented for a medium or policy that
/// this version does not have; one line "name:line: [section] key: what is wrong".
Result<Config> ParseConfig(std::string_view text, std::string_view name);
/// Errors: as ParseConfig, and kNotFound, kPermissionDenied.
Result<Config> LoadConfig(const std::string& path);

}  // namespace kvtier
