#include "daemon/config/config_tenants.h"

#include <algorithm>
#include <charconv>

#include "daemon/config/config_section.h"

namespace kvtier {
namespace {

constexpr size_t kMaxTenantNameBytes = 64;
constexpr std::string_view kUid = "uid:";

Status Invalid(std::string message) {
  return Status(Code::kInvalidArgument, std::move(message));
}

/// "uid:1000". One spelling only: it is compared as text.
bool IsUserTenant(std::string_view tenant) {
  const std::string_view digits = tenant.starts_with(kUid) ? tenant.substr(kUid.size()) : "";
  uint32_t uid = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), uid);
  const bool is_uid = error == std::errc() && end == digits.data() + digits.size();
  return is_uid && std::to_string(uid) == digits;
}

bool IsNameLetter(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' || c == '_' ||
         c == '-';
}

Status CheckName(const TenantConfig& tenant, const std::vector<TenantConfig>& others) {
  const std::string& name = tenant.name;
  const bool free_name = std::ranges::all_of(name, IsNameLetter);
  if (name.empty() || name.size() > kMaxTenantNameBytes || !(free_name || IsUserTenant(name))) {
    return Invalid("must be 1 to " + std::to_string(kMaxTenantNameBytes) +
                   " letters, digits, '.', '_' or '-'; or \"uid:\" and the number of a user");
  }
  if (name == kOtherTenants) return Invalid("\"other\" is what metrics call all tenants without a name");
  const auto same = [&name](const TenantConfig& other) { return other.name == name; };
  if (std::ranges::any_of(others, same)) return Invalid("another tenant is called \"" + name + "\"");
  return Status::Ok();
}

/// Nobody is of two tenants.
Status CheckIds(const std::vector<uint32_t>& ids, const std::vector<TenantConfig>& others,
                std::vector<uint32_t> TenantConfig::*field) {
  for (const uint32_t id : ids) {
    for (const TenantConfig& other : others) {
      if (std::ranges::find(other.*field, id) == (other.*field).end()) continue;
      return Invalid(std::to_string(id) + " is of tenant \"" + other.name + "\" already");
    }
  }
  return Status::Ok();
}

Status CheckWho(const TenantConfig& tenant) {
  const bool lists = !tenant.uids.empty() || !tenant.gids.empty();
  if (IsUserTenant(tenant.name)) {
    return lists ? Invalid("is the tenant of that one user: uids and gids are for tenants with another name")
                 : Status::Ok();
  }
  return lists ? Status::Ok() : Invalid("nobody is of this tenant: it needs uids or gids");
}

Status ReadTenant(Section section, std::vector<TenantConfig>& tenants) {
  TenantConfig tenant;
  section.Text("name", tenant.name);
  section.Check("name", CheckName(tenant, tenants));
  section.Numbers("uids", tenant.uids, kMaxIds);
  section.Check("uids", CheckIds(tenant.uids, tenants, &TenantConfig::uids));
  section.Numbers("gids", tenant.gids, kMaxIds);
  section.Check("gids", CheckIds(tenant.gids, tenants, &TenantConfig::gids));
  KVTIER_TRY(section.Finish());
  section.Check("name", CheckWho(tenant));
  KVTIER_TRY(section.Finish());
  tenants.push_back(std::move(tenant));
  return Status::Ok();
}

}  // namespace

Status CheckTenant(std::string_view tenant, const std::vector<TenantConfig>& tenants) {
  const auto same = [tenant](const TenantConfig& one) { return one.name == tenant; };
  if (IsUserTenant(tenant) || std::ranges::any_of(tenants, same)) return Status::Ok();
  return Invalid("must be a tenant: \"uid:\" and the number of a user, or the name of a [[tenant]]");
}

Status ReadTenants(const toml::table& root, std::string_view file, Config& config) {
  if (const toml::node* tenants = root.get("tenant")) {
    const toml::array* list = tenants->as_array();
    if (list == nullptr || !tenants->is_array_of_tables())
      return ErrorAt(file, *tenants, "tenants are written [[tenant]]");
    if (list->size() > kMaxNamedTenants) {
      return ErrorAt(file, *list->get(kMaxNamedTenants),
                     "there may be " + std::to_string(kMaxNamedTenants) + " tenants with a name");
    }
    for (const toml::node& one : *list)
      KVTIER_TRY(ReadTenant(Section(*one.as_table(), "tenant", file), config.tenants));
  }
  if (const toml::table* admin = root["admin"].as_table()) {
    Section section(*admin, "admin", file);
    section.Numbers("uids", config.admin.uids, kMaxIds);
    section.Numbers("gids", config.admin.gids, kMaxIds);
    KVTIER_TRY(section.Finish());
  }
  return Status::Ok();
}

}  // namespace kvtier
