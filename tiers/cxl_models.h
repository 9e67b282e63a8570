#pragma once

#include <map>

#include "tiers/cxl_format.h"
#include "tiers/cxl_memory.h"

namespace kvtier {

/// The models of a CXL store: entries one after the other in the area behind the superblocks, the last one of
/// a namespace counts. Owns: nothing; writes to the memory. Threads: single-owner.
class CxlModels {
 public:
  CxlModels(CxlMemory& memory, const StoreUuid& uuid) : memory_(memory), uuid_(uuid) {}

  /// What stands in the area; once, first. Entries that do not check out are counted in `dropped`.
  std::vector<ModelRecord> Load(uint64_t& dropped);
  /// Errors: kResourceExhausted (the area is full), kInvalidArgument (fields too large), kUnavailable.
  Status Put(const ModelRecord& model);

 private:
  CxlMemory& memory_;
  const StoreUuid uuid_;
  uint64_t end_ = kCxlModelsOffset;  ///< the next entry starts here
  std::map<decltype(NamespaceDigest::bytes), std::string> known_;
};

}  // namespace kvtier
