#pragma once

#include <string>
#include <string_view>

#include "client/ctl/command_tree.h"
#include "tiers/base/status.h"

namespace kvtier::ctl {

/// Scripts that make a shell complete the command line of `program`: its commands, options, what options are
/// chosen from, and paths. They need nothing but the shell itself. Pure.
std::string BashCompletion(const Command& program);
std::string ZshCompletion(const Command& program);
std::string FishCompletion(const Command& program);

}  // namespace kvtier::ctl
