#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "client/src/connection.h"
#include "daemon/policy/keys.h"
#include "kvtier/kvtier.h"
#include "proto/kvtier.pb.h"

namespace kvtier::client {

/// A kvtier_query checked against its model. Borrows the caller's arrays.
struct Query {
  std::span<const kvtier_block_ref> refs;
  std::span<const int32_t> tokens;         ///< of the whole sequence; empty when not given
  std::span<const kvtier_block_ref> full;  ///< the full blocks at the front of refs that may hit
  const kvtier_block_ref* tail = nullptr;  ///< the last ref where it is a tail block
  uint64_t limit = 0;                      ///< hits end at or before this position

  bool wants_tails() const { return !tokens.empty() || tail != nullptr; }
  Key ParentOf(size_t block) const;  ///< block <= full.size()
  uint64_t PositionOf(size_t block) const;
};

/// Errors: kInvalidArgument, naming what is wrong.
Result<Query> CheckQuery(const Model& model, const kvtier_query* query);

Key KeyOf(const uint8_t (&bytes)[KVTIER_KEY_BYTES]);
/// Keys side by side, as the wire wants them.
std::string PackKeys(std::span<const kvtier_block_ref> refs);

/// Packed keys that ask for `full`, a slice of the query's full blocks. Where there is none the parent is
/// asked for: found or not, the reply lists its tails; the run is then not the query's (RunCounts).
std::string KeysToAsk(const Query& query, std::span<const kvtier_block_ref> full);
inline bool RunCounts(const Query& query) {
  return !query.full.empty();
}

/// Proves by hashing which tail child of block `matched - 1` (of the parent, for 0) is a prefix of the
/// query's tokens, and returns the index of the longest one. Without tokens only the query's own tail block
/// counts.
std::optional<size_t> ChooseTail(const Query& query, size_t matched, std::span<const v1::TailChild> tails);

}  // namespace kvtier::client
