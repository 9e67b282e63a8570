#include <signal.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <map>
#include <string>

#include "tests/support/faulty_block_io.h"
#include "tests/tiers/cold_parts.h"
#include "tests/tiers/cold_steps.h"
#include "tests/tiers/cxl_fixture.h"

// cold_crash_helper files|cxl FOLDER POINT N FIRST_SEED: stores blocks FIRST_SEED, FIRST_SEED + 1, ... one
// commit each, erases every third, and kills itself by SIGKILL at POINT of the N-th block. Says what was
// acknowledged, one line each, unbuffered: "stored SEED", "erasing SEED", "erased SEED".
//
// cold_crash_helper files FOLDER parts:WHAT:K N FIRST_SEED: stores blocks of base, K tail and V tail and dies
// at the K-th write (WHAT before_write, torn_write, after_write) or sync (before_sync, after_sync) of the
// N-th block.
//
// cold_crash_helper files FOLDER steps N FIRST_SEED: N rounds of every step (cold_steps.h), to be killed from
// outside.

namespace kvtier {
namespace {

void Die() {
  ::kill(::getpid(), SIGKILL);
}

void Say(const char* what, uint64_t seed) {
  char line[64];
  const int length =
      std::snprintf(line, sizeof(line), "%s %llu\n", what, static_cast<unsigned long long>(seed));
  KVTIER_CHECK(::write(STDOUT_FILENO, line, static_cast<size_t>(length)) == length);
}

/// Memory in which the process dies at an armed step.
class DyingMemory final : public CxlMemory {
 public:
  explicit DyingMemory(std::unique_ptr<CxlMemory> inner) : inner_(std::move(inner)) {}
  void Arm(std::string point) { point_ = std::move(point); }

  std::span<const std::byte> span() const override { return inner_->span(); }
  CxlPersistence persistence() const override { return inner_->persistence(); }
  bool lost() const override { return inner_->lost(); }
  uint64_t stale_bytes() const override { return inner_->stale_bytes(); }
  void Write(uint64_t offset, std::span<const std::byte> bytes) override {
    if (point_ == "before_write") Die();
    if (point_ == "torn_write") {
      inner_->Write(offset, bytes.first(bytes.size() / 2));
      Die();
    }
    inner_->Write(offset, bytes);
    if (point_ == "after_write") Die();
  }
  void Zero(uint64_t offset, uint64_t bytes) override { inner_->Zero(offset, bytes); }
  Status Persist(uint64_t offset, uint64_t bytes) override {
    if (point_ == "before_sync") Die();
    const Status status = inner_->Persist(offset, bytes);
    if (point_ == "after_sync") Die();
    return status;
  }

 private:
  const std::unique_ptr<CxlMemory> inner_;
  std::string point_;
};

/// Arms `faulty` for the requests that come next, or `skip` later.
void Arm(FaultyBlockIo& faulty, const std::string& point, uint64_t skip = 0) {
  using Op = IoRequest::Op;
  const uint64_t next_write = faulty.count(Op::kWrite) + 1 + skip;
  const uint64_t next_sync = faulty.count(Op::kDataSync) + 1 + skip;
  if (point == "before_write") faulty.BeforeNth(Op::kWrite, next_write, Die);
  if (point == "torn_write") {
    faulty.ShortenNth(Op::kWrite, next_write, 4096);
    faulty.AfterNth(Op::kWrite, next_write, Die);
  }
  if (point == "after_write") faulty.AfterNth(Op::kWrite, next_write, Die);
  if (point == "before_sync") faulty.BeforeNth(Op::kDataSync, next_sync, Die);
  if (point == "after_sync") faulty.AfterNth(Op::kDataSync, next_sync, Die);
}

int Run(const std::string& medium, const std::string& folder, const std::string& point, uint64_t n,
        uint64_t first_seed) {
  auto io = MakeBlockIo(BlockIoKind::kSync).value();
  FaultyBlockIo faulty(*io);
  std::unique_ptr<ColdStore> store;
  DyingMemory* memory = nullptr;
  if (medium == "cxl") {
    auto dying =
        std::make_unique<DyingMemory>(MapForCxlStore(TestCxlOptions(), CxlFileTarget(folder)).value());
    memory = dying.get();
    store = CxlStore::Make(TestCxlOptions(), std::move(dying)).value();
  } else {
    store = ColdStore::Make(TestColdOptions(folder)).value();
  }
  const auto arm = [&](const std::string& what) {
    if (memory != nullptr) {
      memory->Arm(what);
    } else {
      Arm(faulty, what);
    }
  };
  const ColdRecovery recovery = store->Recover().value();
  TestAllocator allocator;
  allocator.ContinueAfter(recovery);
  if (point == "steps") {
    ColdSteps(*store, *io, allocator, Say).Run(first_seed, n);
    return 0;
  }
  KVTIER_CHECK(store->PutModel({.name_space = TestNamespace(), .fields = "fields"}).ok());
  for (uint64_t i = 1; i <= n + 1; ++i) {
    const uint64_t seed = first_seed + i - 1;
    if (i == n) arm(point);
    const ColdRecord record = WriteBlock(*store, faulty, allocator, seed).value();
    KVTIER_CHECK(store->Commit({&record, 1}, faulty).ok());
    Say("stored", seed);
    if (i == n && point == "after_commit") Die();
    if (i % 3 != 0) continue;
    if (i == n && point == "during_erase") arm("after_sync");
    Say("erasing", seed);
    KVTIER_CHECK(store->Erase({&record, 1}, faulty).ok());
    Say("erased", seed);
    if (i == n && point == "after_erase") Die();
  }
  return 0;
}

int RunParts(const std::string& folder, const std::string& point, uint64_t n, uint64_t first_seed) {
  const size_t colon = point.rfind(':');
  const uint64_t k = std::strtoull(point.c_str() + colon + 1, nullptr, 10);
  auto io = MakeBlockIo(BlockIoKind::kSync).value();
  FaultyBlockIo faulty(*io);
  auto store = ColdStore::Make(TestColdOptions(folder)).value();
  const ColdRecovery recovery = store->Recover().value();
  KVTIER_CHECK(store->PutModel({.name_space = TestNamespace(), .fields = "fields"}).ok());
  TestAllocator allocator;
  allocator.ContinueAfter(recovery);
  for (uint64_t i = 1; i <= n; ++i) {
    const uint64_t seed = first_seed + i - 1;
    if (i == n) Arm(faulty, point.substr(0, colon), k - 1);
    const WrittenParts parts = WriteParts(*store, faulty, allocator, MakePartsBlock(seed)).value();
    KVTIER_CHECK(CommitParts(*store, faulty, parts).ok());
    Say("stored", seed);
  }
  Die();
  return 0;
}

}  // namespace
}  // namespace kvtier

int main(int argc, char** argv) {
  if (argc != 6) return 2;
  const std::string point = argv[3], parts = "parts:";
  const uint64_t n = std::strtoull(argv[4], nullptr, 10), first_seed = std::strtoull(argv[5], nullptr, 10);
  if (point.starts_with(parts)) {
    return kvtier::RunParts(argv[2], point.substr(parts.size()), n, first_seed);
  }
  return kvtier::Run(argv[1], argv[2], point, n, first_seed);
}
