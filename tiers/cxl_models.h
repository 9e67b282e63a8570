#pragma once

#include <map>

#include "tiers/cxl_format.h"
#include "tiers/cxl_memory.h"

namespace kvtier {

/// What stands in the area of models. Offsets are of the memory.
struct CxlModelArea {
  struct Range {
    uint64_t begin = 0, end = 0;
  };
  std::map<decltype(NamespaceDigest::bytes), std::string> fields;  ///< by namespace: the last sound entry's
  uint64_t end = kCxlModelsOffset;                                 ///< of the last sound entry
  std::vector<Range> damaged;  ///< where entries stood that do not check out any more
  /// Behind `end`: of an entry whose header was never written to its end. Empty: there is none.
  Range unfinished;
};
/// `start`: kCxlMetaBytes, from the start of the memory on.
CxlModelArea ReadCxlModels(std::span<const std::byte> start, const StoreUuid& uuid);

/// The models of a CXL store: entries one after the other in the area behind the superblocks, the last one of
/// a namespace counts. Owns: nothing; writes to the memory. Threads: single-owner.
class CxlModels {
 public:
  CxlModels(CxlMemory& memory, const StoreUuid& uuid) : memory_(memory), uuid_(uuid) {}

  /// What stands in the area; once, first. Entries that do not check out are counted in `dropped` and zeroed,
  /// as is one that was never finished.
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
