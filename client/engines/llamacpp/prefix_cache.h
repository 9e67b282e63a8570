#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <kvtier/kvtier.hpp>
#include <optional>
#include <span>
#include <string>

#include "client/engines/llamacpp/block_fetch.h"
#include "client/engines/llamacpp/breaker.h"
#include "client/engines/llamacpp/prompt_cache.h"
#include "client/engines/llamacpp/seq_blocks.h"

namespace kvtier::llamacpp {

/// Everything that decides the bytes of K and V besides the tokens.
struct ModelIdentity {
  std::string model_id;
  std::string revision;       ///< digest of the weights
  std::string config_digest;  ///< RoPE and what else the context was made with
  SeqShape shape;
  HeadShape heads;
};

struct PrefixCacheOptions {
  std::string socket;  ///< empty: $KVTIER_SOCKET or the default path
  uint32_t tokens_per_block = 128;
  kvtier_precision min_precision = KVTIER_PRECISION_ANY;
  kvtier_durability durability = KVTIER_MEMORY;
  Duration call_timeout = std::chrono::milliseconds(100);     ///< of each call to the daemon
  Duration restore_budget = std::chrono::milliseconds(1000);  ///< of all of a restore, or of a store
};

/// The daemon's cache as an engine uses it: fills a sequence from it, and hands new blocks to it. The daemon
/// may be absent, suspended, killed or restarted at any time: every call ends within its budget and the rest
/// is computed. Bytes are given to the engine only of blocks that a fetch called good.
/// Threads: single-owner, the engine's thread. The clock outlives it.
class PrefixCache final : public PromptCache {
 public:
  PrefixCache(ModelIdentity identity, PrefixCacheOptions options, const Clock& clock);

  RestoreReport Restore(std::span<const int32_t> tokens, SequenceMemory& memory) override;
  StoreReport Store(std::span<const int32_t> tokens, uint32_t own_from, SequenceMemory& memory) override;
  /// Waits until what was handed over stands at its durability, was refused or dropped. Returns how many
  /// blocks stand. Errors: kDeadlineExceeded; then it can be called again.
  Result<uint64_t> Settle(Duration timeout);

  uint32_t tokens_per_block() const override { return options_.tokens_per_block; }
  bool connected() const override { return connected_; }

 private:
  /// Connects and registers where that has not been done. Errors: kUnavailable while the daemon is left
  /// alone.
  Status MakeReady();
  Status Ended(kvtier_code code, const char* call);
  /// What one lease holds from block `first` on; the number of blocks, at least one. Errors: why no more.
  Result<size_t> RestoreRun(const api::Sequence& sequence, size_t first, SequenceMemory& memory,
                            TimePoint deadline, RestoreReport& report);
  struct ComingBlock {
    kvtier_block_info info;
    const SeqStateBuffer* buffer;
    BlockFetch fetch;
  };
  /// `position`: where the block has to begin.
  Result<ComingBlock> StartBlock(api::Lease& lease, size_t index, uint64_t position);
  Status TakeBlock(const ComingBlock& block, SequenceMemory& memory, TimePoint deadline,
                   RestoreReport& report);
  Status StoreRun(const api::Sequence& sequence, BlockRun run, SequenceMemory& memory, TimePoint deadline);
  uint32_t CallTimeoutMs(TimePoint deadline) const;

  const ModelIdentity identity_;
  const PrefixCacheOptions options_;
  const Clock& clock_;
  Breaker breaker_;
  bool connected_ = false;
  std::optional<api::Client> client_;
  std::optional<api::Model> model_;
  /// One is filled while the engine takes the other; kept, since fresh memory costs as much as the copy.
  std::array<std::optional<SeqStateBuffer>, 2> buffers_;
  struct Handed {
    kvtier_ticket ticket;
    size_t blocks;
  };
  std::deque<Handed> handed_;  ///< the newest kHandedMax puts that nobody has waited for
};

}  // namespace kvtier::llamacpp
