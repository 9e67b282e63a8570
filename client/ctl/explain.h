#pragma once

#include <string>
#include <string_view>

#include "proto/kvtier.pb.h"
#include "tiers/base/status.h"

namespace kvtier::ctl {

/// The `after` of a listing (keys in order, that key itself not among them) that begins with the first key
/// whose hexadecimal form starts with `prefix`; empty: from the first key on.
/// Errors: kInvalidArgument for what no key starts with.
Result<std::string> KeyBefore(std::string_view prefix);

/// Where a block is, in which precision, and why there.
std::string ExplainText(const v1::ListBlocksReply::Block& block, const v1::ListModelsReply::Model& model,
                        const v1::StatsReply& stats);

}  // namespace kvtier::ctl
