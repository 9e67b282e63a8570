#pragma once

#include <algorithm>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tests/e2e/e2e.h"
#include "tests/support/fault_mount.h"
#include "tests/support/scratch_disk.h"

namespace kvtier::e2e {

inline constexpr uint64_t kMiB = uint64_t{1} << 20;

/// A real kvtierd whose cold tier is on a disk that a test breaks, and a client that knows what it has put:
/// each sequence is one block, named by its seed.
class FaultyDaemonTest : public E2eTest {
 protected:
  static void SetUpTestSuite() { KeepTemporaryFilesInMemory(); }
  static constexpr uint32_t kFastMs = 200;  ///< deadline of calls that may have to give up

  /// Without tails each block is one record: what is read and lost can be counted.
  DaemonSettings Settings(const std::string& cold_path, uint64_t cold_bytes = 64 * kMiB,
                          const std::string& tails = "never") {
    DaemonSettings settings;
    settings.hot_bytes = 16 * kMiB;
    settings.cold_bytes = cold_bytes;
    settings.cold_path = cold_path;
    settings.segment = "1MiB";
    settings.tails = tails;
    return settings;
  }
  /// Starts kvtierd over kvtier-fault-fs. Skips the test where there is no FUSE.
  void StartOverFaults(const std::vector<std::string>& faults = {}) {
    std::filesystem::create_directory(folder_.File("backing"));
    std::filesystem::create_directory(folder_.File("mount"));
    auto mount = FaultMount::Make(folder_.File("backing"), folder_.File("mount"));
    if (!mount.ok()) GTEST_SKIP() << mount.status().ToString();
    mount_ = std::move(mount).value();
    for (const std::string& fault : faults) mount_->Fault(fault);
    StartDaemon(Settings(mount_->path()));
    if (!HasFatalFailure()) engine_.emplace(Connect());
  }
  void TearDown() override {
    E2eTest::TearDown();
    if (mount_ && daemon_) mount_->Heal();
    engine_.reset();
    daemon_.reset();
  }
  void Restart() {
    engine_.reset();
    daemon_->Kill();
    const Status started = daemon_->Start();
    ASSERT_TRUE(started.ok()) << started.ToString();
    engine_.emplace(Connect());
  }

  api::Sequence Of(uint32_t seed) const { return engine_->Keys(Tokens(seed, kBlockTokens)); }
  kvtier_code Put(uint32_t seed, kvtier_durability durability = KVTIER_MEMORY, uint32_t timeout_ms = 0) {
    Kv kv = Kv::Random(seed, kBlockTokens);
    kvtier_put_options options = api::PutOptions(timeout_ms);
    options.durability = durability;
    const api::Sequence sequence = Of(seed);
    const auto ticket = engine_->model.Put(sequence.Query(), kv.View(), options);
    if (!ticket) return ticket.code();
    std::vector<kvtier_put_result> results(1);
    const kvtier_code code = engine_->client.Wait(*ticket, results, timeout_ms);
    return code == KVTIER_OK ? static_cast<kvtier_code>(results[0].code) : code;
  }
  /// Nothing wrong was served: true for the block itself, false for a miss. A payload of another block, or
  /// garbage, is a failure of the test.
  bool Fetch(uint32_t seed, uint32_t timeout_ms = 0) {
    Kv kv = Kv::Random(seed, kBlockTokens), out(kBlockTokens);
    const api::Sequence sequence = Of(seed);
    auto lease = engine_->model.Acquire(sequence.Query(), api::AcquireOptions(timeout_ms));
    if (!lease || lease->count() == 0) return false;
    std::vector<kvtier_block_result> results(1);
    if (lease->Fetch(0, out.View(), results) != KVTIER_OK || results[0].code != KVTIER_OK) return false;
    EXPECT_LE(kv.ErrorOver(out, 0, kBlockTokens), 0.6) << "WRONG PAYLOAD of " << seed;
    return true;
  }
  size_t CountFetched(uint32_t first, uint32_t count) {
    size_t fetched = 0;
    for (uint32_t seed = first; seed < first + count; ++seed) fetched += Fetch(seed);
    return fetched;
  }
  /// Makes blocks durable, and leaves them on the cold tier alone.
  void PutCold(uint32_t first, uint32_t count) {
    for (uint32_t seed = first; seed < first + count; ++seed) {
      ASSERT_EQ(Put(seed, KVTIER_DURABLE), KVTIER_OK) << seed;
    }
    LeaveHost();
  }
  void LeaveHost() {
    const ProgramResult evicted = Ctl(*daemon_, "evict hot");
    ASSERT_EQ(evicted.exit_code, 0) << evicted.output;
  }
  /// More blocks than the host tier holds, each stored and read back at once: it serves, whatever the cold
  /// tier does.
  void ExpectHostServes(uint32_t first) {
    for (uint32_t seed = first; seed < first + 300; ++seed) {
      ASSERT_EQ(Put(seed), KVTIER_OK) << seed;
      ASSERT_TRUE(Fetch(seed)) << seed;
    }
  }
  double Sample(const std::string& name) const {
    const Result<double> value = daemon_->Metric(name);
    EXPECT_TRUE(value.ok()) << value.status().ToString();
    return value.ok() ? *value : -1;
  }
  double ColdSample(const std::string& name, const std::string& more = "") const {
    return Sample(name + "{tier=\"cold\"" + more + "}");
  }
  bool Writes() const { return ColdSample("kvtier_tier_circuit_open") == 0; }
  bool Reads() const { return ColdSample("kvtier_tier_read_circuit_open") == 0; }

  TemporaryFolder folder_;
  std::unique_ptr<FaultMount> mount_;
  std::optional<Engine> engine_;
};

}  // namespace kvtier::e2e
