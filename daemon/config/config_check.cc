#include "daemon/config/config_check.h"

#include <algorithm>
#include <array>
#include <charconv>

#include "tiers/base/units.h"
#include "tiers/place.h"

namespace kvtier {
namespace {

constexpr uint32_t kMaxGpu = 63;
constexpr std::array<std::string_view, 6> kLogLevels = {"trace", "debug", "info", "warn", "error", "off"};

Status Invalid(std::string message) {
  return Status(Code::kInvalidArgument, std::move(message));
}

/// Bits of a number in the rung, scales and headers left out.
uint64_t BitsOf(Precision precision) {
  switch (precision) {
    case Precision::kInt2:
      return 2;
    case Precision::kK4V2:
      return 3;
    case Precision::kInt4:
      return 4;
    case Precision::kBits8:
      return 8;
    default:
      return 16;
  }
}

std::string Quoted(std::string_view text) {
  return "\"" + std::string(text) + "\"";
}

}  // namespace

Status CheckSocketPath(std::string_view path) {
  if (path.empty()) return Invalid("must not be empty");
  const size_t max_bytes = kMaxSocketPathBytes - kSessionSocketSuffix.size();
  if (path.size() > max_bytes) {
    return Invalid("the path has " + std::to_string(path.size()) + " bytes; UNIX sockets allow " +
                   std::to_string(max_bytes) + " here (" + std::to_string(kMaxSocketPathBytes) + " less \"" +
                   std::string(kSessionSocketSuffix) + "\")");
  }
  return Status::Ok();
}

Result<uint32_t> ParseSocketMode(std::string_view mode) {
  for (const uint32_t known : {0600u, 0660u, 0666u}) {
    if (mode == "0" + std::to_string(known / 64) + std::to_string(known / 8 % 8) + std::to_string(known % 8))
      return known;
  }
  return Invalid("must be \"0600\" (the daemon's user), \"0660\" (and its group) or \"0666\" (everybody)");
}

Result<bool> ParseStrangers(std::string_view strangers) {
  if (strangers == "tenants") return true;
  if (strangers == "refuse") return false;
  return Invalid("must be \"tenants\" or \"refuse\"");
}

Status CheckStaging(uint64_t session_bytes, uint64_t total_bytes) {
  if (session_bytes % kSlotAlign != 0) return Invalid("staging must be a multiple of 4KiB");
  if (total_bytes < session_bytes) return Invalid("staging_total is smaller than staging of one session");
  return Status::Ok();
}

Status CheckLogLevel(std::string_view level) {
  if (std::find(kLogLevels.begin(), kLogLevels.end(), level) != kLogLevels.end()) return Status::Ok();
  return Invalid("must be one of trace, debug, info, warn, error, off");
}

Result<BlockIoKind> ParseIoKind(std::string_view io) {
  if (io == "auto") return BlockIoKind::kAuto;
  if (io == "io_uring") return BlockIoKind::kUring;
  if (io == "sync") return BlockIoKind::kSync;
  return Invalid("must be \"auto\", \"io_uring\" or \"sync\"");
}

Status CheckLeaseTtl(uint32_t ttl_ms, uint32_t max_ttl_ms) {
  return ttl_ms <= max_ttl_ms ? Status::Ok() : Invalid("lease_ttl_ms is above max_lease_ttl_ms");
}

Result<CodecId> ParseCodec(std::string_view name) {
  const Codec* named = FindCodec(name);
  if (named != nullptr && named->id == CodecId::kRaw8) {
    return Invalid("raw8 is not for tiers: a tier of raw16 or kv8 keeps FP8 blocks as the engine gave them");
  }
  if (named != nullptr) return named->id;
  std::string known;
  for (const Codec* codec : AllCodecs()) {
    if (codec->id != CodecId::kRaw8) known += (known.empty() ? "" : ", ") + std::string(codec->name);
  }
  return Invalid("unknown codec " + Quoted(name) + " (known: " + known + ")");
}

Status CheckWatermarks(double low, double high) {
  return low < high ? Status::Ok() : Invalid("low_watermark must be below high_watermark");
}

Status CheckHostMedium(std::string_view medium) {
  if (medium == "host") return Status::Ok();
  return Invalid("unknown medium " + Quoted(medium) + " (known here: host)");
}

Result<std::optional<uint32_t>> ParseHotMedium(std::string_view medium) {
  constexpr std::string_view kGpu = "gpu:";
  if (medium == "host") return std::optional<uint32_t>();
  if (!medium.starts_with(kGpu)) {
    return Invalid("unknown medium " + Quoted(medium) + " (known here: host, gpu:N)");
  }
  const std::string_view digits = medium.substr(kGpu.size());
  uint32_t number = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), number);
  if (error == std::errc() && end == digits.data() + digits.size() && number <= kMaxGpu) {
    return std::optional<uint32_t>(number);
  }
  return Invalid("must be \"gpu:\" and a number from 0 to " + std::to_string(kMaxGpu));
}

Result<MediumKind> ParseColdMedium(std::string_view medium) {
  if (medium == "nvme") return MediumKind::kNvme;
  if (medium == "cxl") return MediumKind::kCxl;
  return Invalid("unknown medium " + Quoted(medium) + " (known here: cxl, nvme)");
}

Result<CxlKind> ParseCxlSource(std::string_view source) {
  for (const CxlKind kind :
       {CxlKind::kAuto, CxlKind::kDevDax, CxlKind::kFsDax, CxlKind::kFile, CxlKind::kNuma}) {
    if (source == CxlKindName(kind)) return kind;
  }
  return Invalid("must be \"auto\", \"devdax\", \"fsdax\", \"file\" or \"numa\"");
}

Status CheckCxlPlace(const TierConfig& tier) {
  const bool is_node = tier.numa_node.has_value() || tier.cxl_source == CxlKind::kNuma;
  if (is_node && !tier.path.empty()) return Invalid("memory of a NUMA node has no path");
  if (tier.numa_node && tier.cxl_source != CxlKind::kNuma && tier.cxl_source != CxlKind::kAuto) {
    return Invalid("numa_node is for source = \"numa\"");
  }
  if (tier.cxl_source == CxlKind::kFile && tier.path.empty()) return Invalid("a file needs a path");
  return Status::Ok();
}

Status CheckTails(std::string_view tails) {
  if (tails == "never" || tails == "while_room") return Status::Ok();
  return Invalid("must be \"never\" or \"while_room\"");
}

Status CheckAdmission(std::string_view admission) {
  const bool known = admission == "all" || admission == "frequency";
  return known ? Status::Ok() : Invalid("must be \"all\" or \"frequency\"");
}

Status CheckSegment(uint64_t segment_bytes, uint64_t capacity_bytes) {
  if (segment_bytes % kSlotAlign != 0) return Invalid("must be a multiple of 4KiB");
  // One segment that fills, one that is being emptied, and the index.
  if (capacity_bytes / 4 < segment_bytes) return Invalid("capacity must hold at least four segments");
  return Status::Ok();
}

Status CheckBlockFits(uint64_t block_bytes, const std::vector<TierConfig>& tiers) {
  for (const TierConfig& tier : tiers) {
    const Codec& codec = *FindCodec(tier.codec);
    const uint64_t least_bytes = block_bytes / BitsOf(Precision::kBits16) * BitsOf(codec.precision);
    if (tier.kind == MediumKind::kHost || least_bytes < tier.segment_bytes) continue;
    return Invalid("blocks of " + FormatBytes(block_bytes) + " in " + std::string(codec.name) +
                   " do not fit into segments of " + FormatBytes(tier.segment_bytes) + " of tier " +
                   tier.name);
  }
  return Status::Ok();
}

Status CheckLadder(const std::vector<TierConfig>& tiers) {
  if (tiers.empty()) return Invalid("no tier: write at least one of [tier.hot], [tier.warm], [[tier.cold]]");
  for (size_t i = 1; i < tiers.size(); ++i) {
    const Codec& upper = *FindCodec(tiers[i - 1].codec);
    const Codec& lower = *FindCodec(tiers[i].codec);
    if (lower.precision > upper.precision) {
      return Invalid("tier " + tiers[i].name + " (codec " + std::string(lower.name) +
                     ") is more exact than tier " + tiers[i - 1].name + " above it (codec " +
                     std::string(upper.name) + ")");
    }
  }
  for (size_t i = 1; i < tiers.size(); ++i) {
    if (tiers[i - 1].kind == MediumKind::kHost) continue;
    if (tiers[i].kind == tiers[i - 1].kind) return Invalid("two cold tiers of one medium");
    if (tiers[i].kind == MediumKind::kCxl) return Invalid("a cold tier of medium cxl goes above one of nvme");
  }
  return Status::Ok();
}

}  // namespace kvtier
