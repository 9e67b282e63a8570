// The daemon dies, hangs and comes back under clients that carry on.
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <random>
#include <thread>

#include "tests/e2e/e2e.h"

namespace kvtier::e2e {
namespace {

using Clock = std::chrono::steady_clock;

class Restarts : public E2eTest {};

size_t FilesIn(const std::string& folder) {
  return static_cast<size_t>(
      std::distance(std::filesystem::directory_iterator(folder), std::filesystem::directory_iterator()));
}

/// Memory files with names, but for those of tests that run at the same time: folders, and files
/// kvtier-test-N.
int64_t NamedMemoryFiles() {
  const auto counts = [](const std::filesystem::directory_entry& entry) {
    std::error_code gone;
    return entry.is_regular_file(gone) && !entry.path().filename().string().starts_with("kvtier-test-");
  };
  return std::count_if(std::filesystem::directory_iterator("/dev/shm"), {}, counts);
}

TEST_F(Restarts, S36_TenKillsInARowStopNoStartAndLeaveNoMemory) {
  StartDaemon({.hot_bytes = uint64_t{64} << 20,
               .warm_bytes = uint64_t{64} << 20,
               .cold_bytes = uint64_t{256} << 20,
               .more = {}});
  const size_t files = FilesIn(daemon_->folder().path());
  const int64_t named = NamedMemoryFiles();
  for (uint32_t round = 0; round < 10; ++round) {
    {
      const Engine engine = Connect();
      Kv kv = Kv::Random(round, 32 * kBlockTokens);
      for (const auto& result : engine.Put(engine.Keys(Tokens(round, 32 * kBlockTokens)), kv)) {
        EXPECT_EQ(result.code, KVTIER_OK);
      }
    }
    daemon_->Kill();
    // The daemon's memory files have no names: they are gone with the last process that holds one.
    EXPECT_EQ(KvtierResources(::getpid()), std::vector<std::string>{});
    ASSERT_TRUE(daemon_->Start().ok()) << daemon_->Log();
  }
  EXPECT_EQ(FilesIn(daemon_->folder().path()), files) << "sockets and locks are reused, not added";
  EXPECT_LE(NamedMemoryFiles(), named);
}

TEST_F(Restarts, S54_WithAHungDaemonEveryCallEndsAtItsDeadline) {
  StartDaemon({});
  const Engine engine = Connect();
  const api::Sequence sequence = engine.Keys(Tokens(1, 4 * kBlockTokens));
  Kv kv = Kv::Random(1, 4 * kBlockTokens);
  engine.Put(sequence, kv);
  ASSERT_TRUE(daemon_->Pause());
  constexpr uint32_t kTimeoutMs = 100;
  const auto timed = [&](const char* what, const auto& call) {
    const auto start = Clock::now();
    const kvtier_code code = call();
    const auto took = std::chrono::duration_cast<std::chrono::milliseconds>(Clock::now() - start).count();
    EXPECT_TRUE(code == KVTIER_DEADLINE_EXCEEDED || code == KVTIER_UNAVAILABLE)
        << what << ": " << kvtier_code_name(code);
    EXPECT_LT(took, 10 * kTimeoutMs) << what;
  };
  const api::Sequence fresh = engine.Keys(Tokens(2, 4 * kBlockTokens));
  timed("lookup", [&] { return engine.model.Lookup(sequence.Query(), kTimeoutMs).code(); });
  timed("acquire",
        [&] { return engine.model.Acquire(sequence.Query(), api::AcquireOptions(kTimeoutMs)).code(); });
  timed("put",
        [&] { return engine.model.Put(fresh.Query(), kv.View(), api::PutOptions(kTimeoutMs)).code(); });
  timed("remove", [&] { return engine.model.Remove(sequence.Query(), kTimeoutMs).code(); });
  timed("stats", [&] { return engine.client.Stats(kTimeoutMs).code(); });
  daemon_->Continue();
  EXPECT_TRUE(Eventually(
      10, [&] { return engine.Hits(sequence) == 4 || engine.Hits(fresh) > 0 || engine.client.Stats(); }));
}

TEST_F(Restarts, S54_OpenAtAHungDaemonEndsAtItsTimeout) {
  StartDaemon({});
  ASSERT_TRUE(daemon_->Pause());
  for (const uint32_t timeout_ms : {0u, 50u, 400u}) {
    const auto start = Clock::now();
    EXPECT_EQ(Engine::Connect(daemon_->socket(), TestSpec(), timeout_ms).code(), KVTIER_UNAVAILABLE);
    const auto took = std::chrono::duration_cast<std::chrono::milliseconds>(Clock::now() - start).count();
    EXPECT_LT(took, 900) << timeout_ms;
  }
}

TEST_F(Restarts, S54_WithADeadDaemonEveryCallIsAMissAtOnce) {
  StartDaemon({});
  const Engine engine = Connect();
  const api::Sequence sequence = engine.Keys(Tokens(1, kBlockTokens));
  Kv kv = Kv::Random(1, kBlockTokens);
  daemon_->Kill();
  const auto start = Clock::now();
  for (int i = 0; i < 20; ++i) {
    EXPECT_EQ(engine.model.Acquire(sequence.Query(), api::AcquireOptions(100)).code(), KVTIER_UNAVAILABLE);
    EXPECT_EQ(engine.model.Put(sequence.Query(), kv.View(), api::PutOptions(100)).code(), KVTIER_UNAVAILABLE);
  }
  EXPECT_LT(Clock::now() - start, std::chrono::milliseconds(20 * 2 * 100));
  // Keys need no daemon.
  EXPECT_EQ(engine.Keys(Tokens(1, 100)).blocks(), 2u);
}

TEST_F(Restarts, S56_ClientsCarryOnOverRestartsUnderLoad) {
  StartDaemon({.hot_bytes = uint64_t{32} << 20,
               .warm_bytes = uint64_t{32} << 20,
               .cold_bytes = uint64_t{256} << 20,
               .more = {}});
  constexpr int kClients = 4, kRestarts = 5;
  std::atomic<bool> stop = false;
  std::atomic<uint64_t> hits = 0, misses = 0, wrong = 0;
  std::vector<std::thread> clients;
  for (int c = 0; c < kClients; ++c) {
    clients.emplace_back([&, c] {
      const Engine engine = Connect();
      std::mt19937 rng(static_cast<uint32_t>(c));
      while (!stop) {
        const uint32_t seed = static_cast<uint32_t>(c) * 100 + rng() % 8;
        const size_t tokens = 2 * kBlockTokens;
        const api::Sequence sequence = engine.Keys(Tokens(seed, tokens));
        Kv kv = Kv::Random(seed, tokens);
        Kv out(tokens);
        const auto results = engine.Fetch(sequence, out);
        if (results.empty()) {
          ++misses;
          engine.Put(sequence, kv);
          continue;
        }
        for (size_t i = 0; i < results.size(); ++i) {
          if (results[i].code != KVTIER_OK) continue;
          ++hits;
          if (kv.ErrorOver(out, i * kBlockTokens, kBlockTokens) > 0.6) ++wrong;
        }
      }
    });
  }
  for (int restart = 0; restart < kRestarts; ++restart) {
    const uint64_t before = hits;
    EXPECT_TRUE(Eventually(30, [&] { return hits > before + 20; })) << "restart " << restart;
    daemon_->Kill();
    ASSERT_TRUE(daemon_->Launch().ok());  // within a millisecond
    ASSERT_TRUE(daemon_->WaitUntilReady().ok()) << daemon_->Log();
  }
  const uint64_t before = hits;
  EXPECT_TRUE(Eventually(30, [&] { return hits > before + 20; }));
  stop = true;
  for (auto& client : clients) client.join();
  EXPECT_EQ(wrong, 0u);
  EXPECT_GT(misses, 0u);
}

TEST_F(Restarts, ATerminatedDaemonEndsWithoutError) {
  StartDaemon({});
  const Engine engine = Connect();
  EXPECT_EQ(daemon_->Stop(), 0) << daemon_->Log();
  EXPECT_TRUE(Eventually(5, [&] { return engine.client.Stats(100).code() == KVTIER_UNAVAILABLE; }));
}

}  // namespace
}  // namespace kvtier::e2e
