#pragma once

#include <cstdlib>

#include "tests/tiers/cold_fixture.h"
#include "tiers/cxl_mapping.h"

namespace kvtier {

/// What libpmem2 takes for the granularity of every mapping while this lives: "BYTE", "CACHE_LINE", "PAGE";
/// null: what is so. A machine of its own with DAX is for the tests that need a real one.
class ForcedGranularity {
 public:
  explicit ForcedGranularity(const char* granularity) {
    if (granularity == nullptr) {
      ::unsetenv(kName);
    } else {
      ::setenv(kName, granularity, 1);
    }
  }
  ~ForcedGranularity() { ::unsetenv(kName); }
  ForcedGranularity(const ForcedGranularity&) = delete;
  ForcedGranularity& operator=(const ForcedGranularity&) = delete;

 private:
  static constexpr const char* kName = "PMEM2_FORCE_GRANULARITY";
};

}  // namespace kvtier
