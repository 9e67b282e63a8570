#pragma once

#include <string>

#include "client/ctl/verbs.h"

namespace kvtier::ctl {

/// Reads all of a cold store's folder, without a daemon; changes nothing. Errors: kDataLoss when something is
/// damaged (its message is the text to print); else the store cannot be looked at.
Result<std::string> VerifyStore(const std::string& folder, Format format);
/// Makes a damaged store whole again, without what cannot be saved.
Result<std::string> RepairStore(const std::string& folder, Format format);

}  // namespace kvtier::ctl
