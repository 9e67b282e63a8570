#pragma once

#include <algorithm>
#include <functional>
#include <span>

#include "client/src/connection.h"
#include "kvtier/kvtier.h"

namespace kvtier::client {

/// Keys in slices of at most the daemon's limit.
inline Status ForEachSlice(const Connection& connection, std::span<const kvtier_block_ref> refs,
                           const std::function<Status(std::span<const kvtier_block_ref>)>& call) {
  const size_t limit = connection.welcome().limits().keys_per_call();
  for (size_t at = 0; at < refs.size(); at += limit) {
    KVTIER_TRY(call(refs.subspan(at, std::min(limit, refs.size() - at))));
  }
  return Status::Ok();
}

}  // namespace kvtier::client
