#include "daemon/service/session_registry.h"

#include <cstring>

namespace kvtier {

void ClientSession::RememberModel(ModelId model, const ModelSpec& spec) {
  std::lock_guard lock(mutex_);
  models_.insert_or_assign(model, spec);
}

std::optional<ModelSpec> ClientSession::FindModel(ModelId model) const {
  std::lock_guard lock(mutex_);
  const auto found = models_.find(model);
  if (found == models_.end()) return std::nullopt;
  return found->second;
}

/// Tokens are random: any of their words is a good hash, and an attacker who probes buckets learns nothing of
/// a token.
size_t SessionRegistry::TokenHash::operator()(const SessionToken& token) const noexcept {
  size_t word;
  std::memcpy(&word, token.data(), sizeof(word));
  return word;
}

void SessionRegistry::Add(const SessionToken& token, std::shared_ptr<ClientSession> session) {
  std::unique_lock lock(mutex_);
  sessions_.insert_or_assign(token, std::move(session));
}

void SessionRegistry::Remove(const SessionToken& token) {
  std::shared_ptr<ClientSession> last;  // freed outside the lock: it may unmap staging memory
  std::unique_lock lock(mutex_);
  const auto found = sessions_.find(token);
  if (found == sessions_.end()) return;
  last = std::move(found->second);
  sessions_.erase(found);
}

std::shared_ptr<ClientSession> SessionRegistry::Find(std::string_view token) const {
  SessionToken key;
  if (token.size() != key.size()) return nullptr;
  std::memcpy(key.data(), token.data(), key.size());
  std::shared_lock lock(mutex_);
  const auto found = sessions_.find(key);
  return found == sessions_.end() ? nullptr : found->second;
}

}  // namespace kvtier
