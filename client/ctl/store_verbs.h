#pragma once

#include <string>

#include "client/ctl/verbs.h"

namespace kvtier::ctl {

/// Reads all of a cold store, a folder or the memory of a CXL tier (a file, its folder, a device), without a
/// daemon; changes nothing. Errors: kDataLoss when something is damaged (its message is the text to print);
/// else the store cannot be looked at.
Result<std::string> VerifyStore(const std::string& path, Format format);
/// Makes a damaged store whole again, without what cannot be saved. kFailedPrecondition for a CXL tier's: a
/// start of the daemon does all there is to do.
Result<std::string> RepairStore(const std::string& path, Format format);

}  // namespace kvtier::ctl
