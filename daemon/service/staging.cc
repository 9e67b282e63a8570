#include "daemon/service/staging.h"

#include <fcntl.h>

#include "tiers/base/memfd.h"

namespace kvtier {

bool StagingBudget::Take(uint64_t bytes) {
  uint64_t used = used_bytes_.load(std::memory_order_relaxed);
  do {
    if (bytes > total_bytes_ - used) return false;
  } while (!used_bytes_.compare_exchange_weak(used, used + bytes, std::memory_order_relaxed));
  return true;
}

void StagingBudget::Return(uint64_t bytes) {
  used_bytes_.fetch_sub(bytes, std::memory_order_relaxed);
}

Result<Staging::WithDescriptor> Staging::Make(std::shared_ptr<StagingBudget> budget, uint64_t bytes) {
  std::shared_ptr<Staging> staging(new Staging(std::move(budget)));
  if (!staging->budget_->Take(bytes)) {
    return Status(Code::kResourceExhausted,
                  "no staging memory left for another session ([server] staging_total)");
  }
  staging->taken_bytes_ = bytes;
  KVTIER_ASSIGN(UniqueFd file, MakeMemoryFile("kvtier-staging", bytes));
  KVTIER_TRY(AddSeals(file.get(), F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL));
  KVTIER_ASSIGN(staging->memory_, MappedMemory::MapShared(file.get(), bytes, MapAccess::kReadOnly));
  return WithDescriptor{.staging = std::move(staging), .descriptor = std::move(file)};
}

Staging::~Staging() {
  budget_->Return(taken_bytes_);
}

}  // namespace kvtier
