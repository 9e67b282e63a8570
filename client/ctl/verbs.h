#pragma once

#include <cstdint>
#include <string>

#include "client/src/client.h"

namespace kvtier::ctl {

enum class Format : uint8_t { kHuman, kJson };

/// What kvtierctl can ask of a daemon. Each verb returns the text to print, in `format`.
/// Errors: those of the daemon; kPermissionDenied for everybody but root and the daemon's own user (all but
/// Status, Tiers).
class Verbs {
 public:
  Verbs(client::Client& client, Format format, Duration timeout)
      : client_(client), format_(format), timeout_(timeout) {}

  Result<std::string> Status();
  Result<std::string> Tiers();
  Result<std::string> Models();
  /// `limit` 0: all.
  Result<std::string> Blocks(uint32_t model, uint64_t limit);
  /// Of the one block, of all models, whose key starts with `prefix` in hexadecimal. kInvalidArgument also
  /// where there are several.
  Result<std::string> Explain(const std::string& prefix);
  /// `tier` is a name or a number; `count` 0: all.
  Result<std::string> Demote(const std::string& tier, uint64_t count);
  Result<std::string> Evict(const std::string& tier, uint64_t count);
  /// An empty `tier` means all. kDataLoss when a copy was corrupt (its message is the text to print).
  Result<std::string> Verify(const std::string& tier);
  Result<std::string> Drain();

 private:
  template <typename Request, typename Reply>
  kvtier::Status Ask(Request request, Reply& reply);
  Result<v1::StatsReply> Stats();
  struct Found {
    v1::ListModelsReply::Model model;
    v1::ListBlocksReply::Block block;
  };
  Result<Found> FindBlock(const std::string& prefix);
  using MoveCall = kvtier::Status (client::Rpc::*)(const v1::TierCountRequest&, v1::CountReply&, TimePoint);
  Result<uint64_t> MoveBlocks(MoveCall call, const std::string& tier, uint64_t count);
  Result<uint32_t> TierNumber(const std::string& tier);
  std::string Count(const char* verb, uint64_t count) const;

  client::Client& client_;
  const Format format_;
  const Duration timeout_;
  std::string boot_id_;  ///< of the connection that answered last
};

}  // namespace kvtier::ctl
