#pragma once

#include <cstdlib>

#include "tests/tiers/cold_fixture.h"
#include "tiers/cxl_mapping.h"
#include "tiers/cxl_store.h"

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

inline CxlStoreOptions TestCxlOptions() {
  return {.tier = TierId{2}, .capacity_bytes = kTestCapacityBytes, .segment_bytes = kTestSegmentBytes};
}

inline CxlTarget CxlFileTarget(const std::string& folder) {
  return {.kind = CxlKind::kFile, .path = folder + "/" + std::string(kCxlFileName), .any_file = true};
}

/// A store on a file in `folder`.
inline Result<std::unique_ptr<ColdStore>> MakeCxlStore(const std::string& folder) {
  KVTIER_ASSIGN(std::unique_ptr<CxlMapping> mapping, MapForCxlStore(TestCxlOptions(), CxlFileTarget(folder)));
  KVTIER_ASSIGN(std::unique_ptr<CxlStore> store, CxlStore::Make(TestCxlOptions(), std::move(mapping)));
  return std::unique_ptr<ColdStore>(std::move(store));
}

}  // namespace kvtier
