#pragma once

#include <string>

#include "tiers/base/clock.h"
#include "tiers/base/status.h"

namespace kvtier::ctl {

inline constexpr size_t kMaxHttpBytes = size_t{8} << 20;

/// The body of http://`address``path`, where `address` is a numeric IPv4 address or localhost, and a port.
/// Errors: kInvalidArgument (address), kUnavailable (nobody answers, another status than 200),
/// kDeadlineExceeded, kResourceExhausted (more than kMaxHttpBytes).
Result<std::string> HttpGet(const std::string& address, const std::string& path, Duration timeout);

}  // namespace kvtier::ctl
