// What the daemon takes from the machine: its budgets and a fixed allowance, at every moment of a busy life.
#include <sys/stat.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <fstream>
#include <thread>

#include "tests/e2e/e2e.h"

namespace kvtier::e2e {
namespace {

constexpr uint64_t kMiB = uint64_t{1} << 20;
constexpr uint64_t kHotBytes = 64 * kMiB, kWarmBytes = 64 * kMiB, kColdBytes = 512 * kMiB;
constexpr uint64_t kStagingBytes = 64 * kMiB;  ///< of the one session: the default
/// Code, RocksDB, gRPC, bounce buffers, tables.
constexpr uint64_t kAllowanceBytes = 64 * kMiB;

/// RssAnon + RssFile of /proc/PID/status.
uint64_t ResidentBytes(pid_t pid) {
  std::ifstream status("/proc/" + std::to_string(pid) + "/status");
  uint64_t bytes = 0;
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("RssAnon:") || line.starts_with("RssFile:"))
      bytes += std::stoull(line.substr(8)) * 1024;
  }
  return bytes;
}

/// Allocated bytes of the memory files that the process holds open, each counted once.
uint64_t MemoryFileBytes(pid_t pid) {
  std::vector<ino_t> seen;
  uint64_t bytes = 0;
  std::error_code gone;  // descriptors come and go while we look
  for (const auto& entry :
       std::filesystem::directory_iterator("/proc/" + std::to_string(pid) + "/fd", gone)) {
    const std::filesystem::path target = std::filesystem::read_symlink(entry.path(), gone);
    struct stat info {};
    if (!target.string().starts_with("/memfd:") || ::stat(entry.path().c_str(), &info) != 0) continue;
    if (std::find(seen.begin(), seen.end(), info.st_ino) != seen.end()) continue;
    seen.push_back(info.st_ino);
    bytes += static_cast<uint64_t>(info.st_blocks) * 512;
  }
  return bytes;
}

class Memory : public E2eTest {};

TEST_F(Memory, S35_TheDaemonStaysWithinItsBudgetsAnd64MiB) {
#if defined(__SANITIZE_ADDRESS__)
  std::puts("not judged: a sanitizer's shadow memory is not the daemon's");
  return;
#endif
  StartDaemon({.hot_bytes = kHotBytes, .warm_bytes = kWarmBytes, .cold_bytes = kColdBytes, .more = ""});
  const Engine engine = Connect();

  std::atomic<bool> done = false;
  uint64_t most_bytes = 0, most_memory_files = 0;
  std::thread watcher([&] {
    while (!done) {
      const uint64_t memory_files = MemoryFileBytes(daemon_->pid());
      most_memory_files = std::max(most_memory_files, memory_files);
      most_bytes = std::max(most_bytes, ResidentBytes(daemon_->pid()) + memory_files);
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
  });
  // 192 MiB of raw KV through 128 MiB of host tiers, so that arenas of both come and go.
  constexpr size_t kBlocksPerPut = 16;
  for (uint32_t i = 0; i < 96; ++i) {
    Kv kv = Kv::Random(i, kBlocksPerPut * kBlockTokens);
    for (const kvtier_put_result& result : engine.Put(engine.Keys(Tokens(i, kv.tokens())), kv)) {
      EXPECT_EQ(result.code, KVTIER_OK);
    }
  }
  for (uint32_t i = 0; i < 32; ++i) {  // reads from cold bring blocks back up
    Kv out(kBlocksPerPut * kBlockTokens);
    EXPECT_FALSE(engine.Fetch(engine.Keys(Tokens(i, out.tokens())), out).empty());
  }
  done = true;
  watcher.join();

  EXPECT_GE(most_memory_files, kHotBytes / 2) << "the tiers were not even used";
  EXPECT_LE(most_bytes, kHotBytes + kWarmBytes + kStagingBytes + kAllowanceBytes)
      << most_memory_files << " of it in memory files";
  RecordProperty("most_bytes", std::to_string(most_bytes));
}

}  // namespace
}  // namespace kvtier::e2e
