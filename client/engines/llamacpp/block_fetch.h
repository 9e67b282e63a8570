#pragma once

#include <cstddef>
#include <cstdint>
#include <kvtier/kvtier.hpp>

#include "client/engines/llamacpp/seq_blocks.h"
#include "tiers/base/status.h"

namespace kvtier::llamacpp {

/// One block of a lease on its way into a state: the library's thread decodes it while the engine takes the
/// block before. Client, lease and buffer outlive it. Threads: single-owner.
class BlockFetch {
 public:
  /// Errors: those of kvtier_fetch_async.
  static Result<BlockFetch> Start(const api::Client& client, api::Lease& lease, size_t index,
                                  SeqStateBuffer& buffer, HeadShape heads);
  BlockFetch(BlockFetch&& other) noexcept;
  BlockFetch& operator=(BlockFetch&& other) noexcept;
  BlockFetch(const BlockFetch&) = delete;
  BlockFetch& operator=(const BlockFetch&) = delete;
  /// Ends it: nothing writes to the buffer any more.
  ~BlockFetch();

  /// Until the buffer holds the block. Errors: kDeadlineExceeded; why the bytes are not to be used.
  Result<kvtier_block_result> Wait(uint32_t timeout_ms) const;

 private:
  BlockFetch(const api::Client& client, kvtier_ticket ticket, uint32_t last_layer)
      : client_(&client), ticket_(ticket), last_layer_(last_layer) {}

  const api::Client* client_;
  kvtier_ticket ticket_;  ///< 0: moved from
  uint32_t last_layer_;
};

/// OK, or the library's code with what it says of it.
Status StatusOf(kvtier_code code, const char* call);

}  // namespace kvtier::llamacpp
