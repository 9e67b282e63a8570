#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "deploy/quickstart/conversation.h"

namespace kvtier::quickstart {

/// What was found out about the blocks of one model that came from one tier in one precision.
struct Rung {
  uint32_t blocks = 0;
  double image_bits = 0;
  double values = 0;
  double k_measured = 0, k_reported = 0, v_measured = 0,
         v_reported = 0;  ///< sums of squares over (block, layer)
  std::vector<double> fetch_us;
  std::optional<double> attention_error;
};

/// Fetches conversations, compares every value with its source, and collects what each tier costs. Threads:
/// one.
class Ladder {
 public:
  struct RungId {
    std::string model;
    uint32_t tier;
    kvtier_precision precision;
    auto operator<=>(const RungId&) const = default;
  };

  /// Fetches all blocks, and the error of the attention output where one rung holds them all.
  Status Fetch(const Conversation& conversation);
  /// Fetches one block into `kv`. Errors: kDataLoss when the error of a layer is not the one that the daemon
  /// reports, or when a 16-bit block is not bit-exact.
  Result<RungId> FetchBlock(const Conversation& conversation, uint32_t block, std::vector<uint16_t>* kv);

  void PrintTable(const std::vector<std::string>& tier_names) const;
  /// model,what,layer,block,precision,error as measured, for the comparison with the numpy reference.
  Status WriteErrors(const std::string& path) const;
  uint64_t blocks() const { return blocks_; }
  /// Blocks that came from this tier.
  uint64_t BlocksFrom(uint32_t tier) const;

 private:
  Status CheckLayers(const RealKv& real, uint32_t block, const FetchedBlock& fetched,
                     const std::vector<uint16_t>& kv, Rung* rung);

  std::map<RungId, Rung> rungs_;
  std::map<std::string, std::vector<double>> exact_attention_;  ///< by model, with the source's K and V
  std::map<std::string, double> errors_;                        ///< by "model,what,layer,block,precision"
  uint64_t blocks_ = 0;
};

}  // namespace kvtier::quickstart
