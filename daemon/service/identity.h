#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "daemon/service/session_wire.h"
#include "tiers/base/status.h"

namespace kvtier {

/// Users and groups that are one tenant.
struct TenantMembers {
  std::string name;
  std::vector<uint32_t> uids, gids;
};

struct IdentityOptions {
  std::vector<TenantMembers> tenants;  ///< of several that a peer's groups select, the first
  std::vector<uint32_t> admin_uids, admin_gids;
  bool strangers = true;  ///< who is of no tenant above is one of their own, "uid:1000"; false: is refused
  uint32_t own_uid = 0;   ///< the daemon's
  /// What the kernel calls all users and groups that the daemon's user namespace does not have: not one of
  /// them. None where it has them all.
  std::optional<uint32_t> unmapped_id;
};

/// Who a peer of the session socket is: which tenant, and whether an admin. By its uid and groups alone, as
/// the kernel recorded them at connect(). Threads: any; immutable.
class IdentityMap {
 public:
  explicit IdentityMap(IdentityOptions options);

  struct Identity {
    std::string tenant;
    bool admin = false;
  };
  /// Errors: kUnauthenticated (the kernel names no user, or one that cannot be told from others),
  /// kPermissionDenied (a stranger).
  Result<Identity> Identify(const Peer& peer) const;
  /// Whether Identify needs Peer::gids.
  bool needs_groups() const { return !by_gid_.empty() || !admin_gids_.empty(); }

 private:
  const std::string* TenantOf(const Peer& peer) const;

  std::vector<std::string> names_;
  std::unordered_map<uint32_t, size_t> by_uid_, by_gid_;
  std::unordered_set<uint32_t> admin_uids_, admin_gids_;
  bool strangers_;
  std::optional<uint32_t> unmapped_id_;
};

/// Whether a file such as /proc/self/uid_map gives every number a meaning.
bool MapsEveryId(std::string_view id_map);
/// IdentityOptions::unmapped_id of this process.
std::optional<uint32_t> UnmappedIdHere();

}  // namespace kvtier
