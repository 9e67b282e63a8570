#pragma once

#include <string>

#include "client/ctl/verbs.h"

namespace kvtier::ctl {

/// The kvtierd that `kvtierctl config check` asks: the one in this program's own folder, else the first in
/// PATH. Errors: kNotFound.
Result<std::string> FindDaemonProgram();

/// Has `daemon`, a kvtierd, check the configuration in `file` as it would at a start; the parser is a part of
/// the daemon, and what a daemon accepts is told best by the one that will run. Returns what there is to
/// print. Errors: kInvalidArgument, kNotFound or kPermissionDenied with kvtierd's own message, "file:line:
/// what is wrong"; kDeadlineExceeded (it is killed then); kInternal when it cannot be run or is no kvtierd.
Result<std::string> CheckConfig(const std::string& daemon, const std::string& file, Format format,
                                Duration timeout);

}  // namespace kvtier::ctl
