#pragma once

#include <array>
#include <cstddef>
#include <memory>
#include <mutex>
#include <optional>
#include <shared_mutex>
#include <string>
#include <string_view>
#include <unordered_map>

#include "daemon/policy/model_spec.h"
#include "daemon/service/staging.h"
#include "tiers/base/ids.h"

namespace kvtier {

/// 128 random bits that prove a gRPC call belongs to a session. Secret: never in logs.
using SessionToken = std::array<std::byte, 16>;

/// A client between its welcome and the end of its socket. Immutable but for the models. Threads: any.
class ClientSession {
 public:
  SessionId id;
  std::string tenant_name;
  uint32_t uid = 0;
  int32_t pid = 0;  ///< 0 where it is not visible from here
  bool admin = false;
  std::shared_ptr<const Staging> staging;

  /// Models that the session has registered: a put needs the shape to know how many staging bytes a block
  /// has.
  void RememberModel(ModelId model, const ModelSpec& spec);
  std::optional<ModelSpec> FindModel(ModelId model) const;

 private:
  mutable std::mutex mutex_;
  std::unordered_map<ModelId, ModelSpec> models_;  ///< bounded by the engine's limit on registrations
};

/// Who may call: tokens of the sessions that are open now. Written by the session thread, read by gRPC
/// threads.
class SessionRegistry {
 public:
  void Add(const SessionToken& token, std::shared_ptr<ClientSession> session);
  void Remove(const SessionToken& token);
  /// Null for anything that is not the token of an open session.
  std::shared_ptr<ClientSession> Find(std::string_view token) const;

 private:
  struct TokenHash {
    size_t operator()(const SessionToken& token) const noexcept;
  };
  mutable std::shared_mutex mutex_;
  std::unordered_map<SessionToken, std::shared_ptr<ClientSession>, TokenHash> sessions_;
};

}  // namespace kvtier
