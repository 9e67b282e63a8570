#pragma once

#include <string>

#include "proto/kvtier.pb.h"

namespace kvtier::ctl {

/// "2026-12-01T04:13:27.123Z  cold sheds writes", without the end of the line. Pure, as is the other.
std::string EventLine(const v1::Event& event);
/// One JSON object: sequence, time_ms, event (which of the kinds), and what it says.
std::string EventJson(const v1::Event& event);

}  // namespace kvtier::ctl
