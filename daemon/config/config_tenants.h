#pragma once

#include <toml++/toml.h>

#include <string_view>

#include "daemon/config/config.h"

namespace kvtier {

/// [[tenant]] and [admin]. Errors: those of ParseConfig.
Status ReadTenants(const toml::table& root, std::string_view file, Config& config);

/// The name of a tenant as sessions have it: "uid:" and the number of a user, or one of `tenants`.
Status CheckTenant(std::string_view tenant, const std::vector<TenantConfig>& tenants);

}  // namespace kvtier
