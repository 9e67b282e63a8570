#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "tiers/base/status.h"

namespace kvtier {

/// "512MiB", "4 GiB", "4096": a whole number and B, KiB, MiB, GiB, TiB or nothing. Errors: kInvalidArgument.
Result<uint64_t> ParseBytes(std::string_view text);
/// The shortest form that ParseBytes reads back exactly.
std::string FormatBytes(uint64_t bytes);

struct HostPort {
  std::string host;
  uint16_t port = 0;
};
/// "127.0.0.1:9464": a numeric IPv4 address, as the metrics server knows no IPv6. Errors: kInvalidArgument.
Result<HostPort> ParseHostPort(std::string_view text);

}  // namespace kvtier
