#pragma once

#include <kvtier/kvtier.h>

#include <string>
#include <vector>

#include "deploy/quickstart/real_kv.h"

namespace kvtier::quickstart {

inline constexpr uint32_t kTokensPerBlock = 128;
inline constexpr uint32_t kBlocks = RealKv::kTokens / kTokensPerBlock;
inline constexpr uint32_t kTimeoutMs = 10'000;

/// A code of the C ABI with the text of kvtier_last_error().
Status StatusOf(kvtier_code code, const std::string& call);

/// One fetched block and what it cost.
struct FetchedBlock {
  kvtier_block_info info;
  double fetch_us;  ///< acquire, fetch of all layers, release
  double k_reported[RealKv::kLayers];
  double v_reported[RealKv::kLayers];
};

/// The text of a fixture under one LoRA id: the same real KV under keys of its own, so that a few megabytes
/// of KV can fill all tiers. Number 0 has no LoRA. Borrows: the connection, the model data. Threads: one.
class Conversation {
 public:
  static Result<Conversation> Make(kvtier_client* handle, const RealKv& real, uint32_t number);

  const RealKv& real() const { return *real_; }
  uint32_t number() const { return number_; }

  /// Puts all blocks and waits until they are stored.
  Status Put(kvtier_durability durability) const;
  /// The tier of each block, -1 for a miss.
  Result<std::vector<int>> Tiers() const;
  /// Fetches one block into `kv`, a buffer with the shape of real().kv.
  Result<FetchedBlock> Fetch(uint32_t block, std::vector<uint16_t>* kv) const;

 private:
  kvtier_client* handle_ = nullptr;
  const RealKv* real_ = nullptr;
  uint32_t number_ = 0;
  kvtier_model* model_ = nullptr;
  std::vector<kvtier_block_ref> refs_;
};

}  // namespace kvtier::quickstart
