#pragma once

#include <functional>

#include "tests/tiers/cold_fixture.h"

namespace kvtier {

/// Every step of the commit protocol, again and again: model files, new segments, records, commits of several
/// blocks, dead headers, recycled segments. Goes on after errors, as the engine does: a block whose write or
/// commit failed is erased, a segment that did not take one is written to no more.
/// `say` hears of "stored", "erasing" and "erased" blocks, by seed.
class ColdSteps {
 public:
  using Say = std::function<void(const char* what, uint64_t seed)>;
  ColdSteps(ColdStore& store, BlockIo& io, TestAllocator& allocator, Say say)
      : store_(store), io_(io), allocator_(allocator), say_(std::move(say)) {}

  void Run(uint64_t first_seed, uint64_t rounds) {
    for (uint64_t round = 0; round < rounds; ++round) {
      PutModel(round);
      StoreBatch(first_seed + round * kBatch);
      if (round % 3 == 2) EraseOldest();
      if (round % 4 == 3) RecycleOldest();
    }
  }
  uint64_t errors() const { return errors_; }
  static constexpr uint64_t kBatch = 4;

 private:
  struct Stored {
    uint64_t seed;
    ColdRecord record;
  };

  bool Count(const Status& status) {
    if (!status.ok()) ++errors_;
    return status.ok();
  }
  void PutModel(uint64_t round) {
    // The model that the blocks need comes first; others may fail without harm.
    const NamespaceDigest name_space = round == 0 ? TestNamespace() : DigestOf<NamespaceDigest>(1000 + round);
    bool put = Count(store_.PutModel({.name_space = name_space, .fields = "fields"}));
    for (int again = 0; round == 0 && !put && again < 3; ++again) {
      put = Count(store_.PutModel({.name_space = name_space, .fields = "fields"}));
    }
  }
  void StoreBatch(uint64_t first_seed) {
    std::vector<Stored> batch;
    for (uint64_t seed = first_seed; seed < first_seed + kBatch; ++seed) {
      Result<ColdRecord> record = WriteBlock(store_, io_, allocator_, seed);
      if (Count(record.status())) {
        batch.push_back({seed, *std::move(record)});
      } else {
        allocator_.SealSegment();
      }
    }
    // As the committer does it: by segment, and one that fails does not touch the others.
    while (!batch.empty()) {
      const uint32_t segment = batch.front().record.place.container;
      std::vector<Stored> some;
      std::copy_if(batch.begin(), batch.end(), std::back_inserter(some),
                   [&](const Stored& one) { return one.record.place.container == segment; });
      std::erase_if(batch, [&](const Stored& one) { return one.record.place.container == segment; });
      std::vector<ColdRecord> records;
      for (const Stored& one : some) records.push_back(one.record);
      if (Count(store_.Commit(records, io_))) {
        for (const Stored& one : some) say_("stored", one.seed);
        stored_.insert(stored_.end(), some.begin(), some.end());
        continue;
      }
      allocator_.SealSegment();
      Count(store_.Erase(records, io_));
    }
  }
  void EraseOldest() {
    if (stored_.empty()) return;
    const Stored oldest = stored_.front();
    stored_.erase(stored_.begin());
    say_("erasing", oldest.seed);
    if (Count(store_.Erase({&oldest.record, 1}, io_))) say_("erased", oldest.seed);
  }
  void RecycleOldest() {
    if (stored_.empty()) return;
    const uint32_t segment = stored_.front().record.place.container;
    if (segment == allocator_.segment()) return;  // still being filled
    std::vector<uint64_t> gone;
    for (const Stored& one : stored_) {
      if (one.record.place.container == segment) gone.push_back(one.seed);
    }
    std::erase_if(stored_, [&](const Stored& one) { return one.record.place.container == segment; });
    for (const uint64_t seed : gone) say_("erasing", seed);
    if (!Count(store_.RecycleSegment(segment, allocator_.TakeSequence(), io_))) return;
    for (const uint64_t seed : gone) say_("erased", seed);
  }

  ColdStore& store_;
  BlockIo& io_;
  TestAllocator& allocator_;
  const Say say_;
  std::vector<Stored> stored_;
  uint64_t errors_ = 0;
};

}  // namespace kvtier
