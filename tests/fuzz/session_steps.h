#pragma once

#include <cstdint>

#include "tiers/base/ids.h"

namespace kvtier {

/// What the steps of an input of "session" are (target_session.cc).
enum SessionStep : uint8_t {
  kConnect,
  kSend,
  kClose,
  kRead,
  kTurn,
  kAnswer,
  kPublish,
  kRetire,
  kWithdraw,
  kAdvance,
  kSteps
};
inline constexpr TierId kSharedStoreTier{2};

}  // namespace kvtier
