#pragma once

#include <cstdint>
#include <cstdio>
#include <string>

#include "client/ctl/exposition.h"
#include "tiers/base/clock.h"

namespace kvtier::ctl {

/// What a daemon does, on one screen: rates of what happened from `before` to `now`, `seconds` later.
std::string TopFrame(const std::string& address, const Exposition& before, const Exposition& now,
                     double seconds);

struct TopOptions {
  std::string address;  ///< of the metrics
  Duration interval{};  ///< between two looks
  uint64_t frames = 0;  ///< 0: until killed
};
/// Writes a frame for each interval to `out`; where that is a terminal, one over the other. Blocks.
/// Errors: those of HttpGet and Exposition::Parse for the first look; of a later one the screen tells.
Status ShowTop(const TopOptions& options, std::FILE* out);

}  // namespace kvtier::ctl
