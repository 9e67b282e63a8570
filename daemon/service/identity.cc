#include "daemon/service/identity.h"

#include <algorithm>
#include <fstream>
#include <sstream>

namespace kvtier {
namespace {

constexpr uint32_t kUsualUnmappedId = 65534;

std::string ReadFile(const char* path) {
  std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

}  // namespace

IdentityMap::IdentityMap(IdentityOptions options)
    : admin_uids_(options.admin_uids.begin(), options.admin_uids.end()),
      admin_gids_(options.admin_gids.begin(), options.admin_gids.end()),
      strangers_(options.strangers),
      unmapped_id_(options.unmapped_id) {
  admin_uids_.insert({0u, options.own_uid});
  for (TenantMembers& tenant : options.tenants) {
    for (const uint32_t uid : tenant.uids) by_uid_.emplace(uid, names_.size());
    for (const uint32_t gid : tenant.gids) by_gid_.emplace(gid, names_.size());
    names_.push_back(std::move(tenant.name));
  }
}

const std::string* IdentityMap::TenantOf(const Peer& peer) const {
  if (const auto user = by_uid_.find(peer.uid); user != by_uid_.end()) return &names_[user->second];
  size_t first = names_.size();
  for (const uint32_t gid : peer.gids) {
    const auto group = gid == unmapped_id_ ? by_gid_.end() : by_gid_.find(gid);
    if (group != by_gid_.end()) first = std::min(first, group->second);
  }
  return first < names_.size() ? &names_[first] : nullptr;
}

Result<IdentityMap::Identity> IdentityMap::Identify(const Peer& peer) const {
  if (peer.uid == UINT32_MAX) return Status(Code::kUnauthenticated, "the peer has no uid");
  if (peer.uid == unmapped_id_) {
    return Status(Code::kUnauthenticated,
                  "the daemon runs in a user namespace that does not have the peer's user: " +
                      std::to_string(peer.uid) + " may be anybody");
  }
  const bool admin = admin_uids_.contains(peer.uid) || std::ranges::any_of(peer.gids, [this](uint32_t gid) {
                       return gid != unmapped_id_ && admin_gids_.contains(gid);
                     });
  const std::string* tenant = TenantOf(peer);
  if (tenant == nullptr && !strangers_ && !admin) {
    return Status(Code::kPermissionDenied,
                  "user " + std::to_string(peer.uid) + " is of no tenant that this daemon serves");
  }
  return Identity{.tenant = tenant != nullptr ? *tenant : "uid:" + std::to_string(peer.uid), .admin = admin};
}

bool MapsEveryId(std::string_view id_map) {
  uint64_t inside = 0, outside = 0, count = 0;
  std::istringstream line{std::string(id_map)};
  return static_cast<bool>(line >> inside >> outside >> count) && inside == 0 && count >= UINT32_MAX;
}

std::optional<uint32_t> UnmappedIdHere() {
  if (MapsEveryId(ReadFile("/proc/self/uid_map")) && MapsEveryId(ReadFile("/proc/self/gid_map")))
    return std::nullopt;
  uint32_t id = kUsualUnmappedId;
  std::istringstream overflow(ReadFile("/proc/sys/kernel/overflowuid"));
  if (!(overflow >> id)) id = kUsualUnmappedId;
  return id;
}

}  // namespace kvtier
