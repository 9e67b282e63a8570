#pragma once

#include <cstdint>

namespace kvtier {

/// What the steps of an input of "commands" are, behind the numbers of the methods (target_commands.cc).
enum CommandStep : uint8_t { kStep = 17, kRunJob, kFailJob, kAdvance, kOpen, kClose, kSettle, kSteps };
inline constexpr uint8_t kTokenOfMessage = 0xFF;

}  // namespace kvtier
