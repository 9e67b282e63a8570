#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "daemon/config/config.h"

/// What is wrong with a value, without file and line: config.cc adds them. For config.cc only.
namespace kvtier {

Status CheckSocketPath(std::string_view path);
Result<uint32_t> ParseSocketMode(std::string_view mode);
/// Whether they are served.
Result<bool> ParseStrangers(std::string_view strangers);
Status CheckStaging(uint64_t session_bytes, uint64_t total_bytes);
Status CheckLogLevel(std::string_view level);
Result<BlockIoKind> ParseIoKind(std::string_view io);
Status CheckLeaseTtl(uint32_t ttl_ms, uint32_t max_ttl_ms);
Result<CodecId> ParseCodec(std::string_view name);
Status CheckWatermarks(double low, double high);
Status CheckHostMedium(std::string_view medium);
/// The GPU that it is; none: host memory.
Result<std::optional<uint32_t>> ParseHotMedium(std::string_view medium);
Result<MediumKind> ParseColdMedium(std::string_view medium);
Result<CxlKind> ParseCxlSource(std::string_view source);
/// Which of path and NUMA node goes with which source.
Status CheckCxlPlace(const TierConfig& tier);
Status CheckTails(std::string_view tails);
Status CheckAdmission(std::string_view admission);
Status CheckSegment(uint64_t segment_bytes, uint64_t capacity_bytes);
/// A block of `block_bytes` in the tier's codec fits into a segment of each cold tier.
Status CheckBlockFits(uint64_t block_bytes, const std::vector<TierConfig>& tiers);
/// There is a tier, no tier is more exact than the one above it, and of the cold ones CXL comes first.
Status CheckLadder(const std::vector<TierConfig>& tiers);

}  // namespace kvtier
