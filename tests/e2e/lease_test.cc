// Leases and handles that end: by release, by time, by eviction, by the death of a client or of the daemon.
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <thread>

#include "tests/e2e/e2e.h"

namespace kvtier::e2e {
namespace {

constexpr uint32_t kShortTtlMs = 50;

class Leases : public E2eTest {
 protected:
  void Fill(const Engine& engine, uint32_t seed, size_t blocks) {
    Kv kv = Kv::Random(seed, blocks * kBlockTokens);
    for (const auto& result : engine.Put(engine.Keys(Tokens(seed, blocks * kBlockTokens)), kv)) {
      ASSERT_EQ(result.code, KVTIER_OK);
    }
  }
  kvtier_lease* AcquireRaw(const Engine& engine, const api::Sequence& sequence, uint32_t ttl_ms = 0) {
    const kvtier_query query = sequence.Query();
    kvtier_acquire_options options = api::AcquireOptions();
    options.ttl_ms = ttl_ms;
    kvtier_lease* lease = nullptr;
    EXPECT_EQ(kvtier_acquire(engine.model.get(), &query, &options, &lease), KVTIER_OK) << api::LastError();
    return lease;
  }
  double LeasesLive() { return daemon_->Metric("kvtier_leases").value(); }
};

// First, because its child opens a handle: this process has opened none by then.
TEST_F(Leases, S37_AKilledClientLeavesNothingBehindAfterASecond) {
  StartDaemon({});
  int ready[2];
  ASSERT_EQ(::pipe(ready), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    auto engine = Engine::Connect(daemon_->socket());
    if (!engine) ::_exit(1);
    Kv kv = Kv::Random(6, 8 * kBlockTokens);
    const api::Sequence sequence = engine->Keys(Tokens(6, 8 * kBlockTokens));
    engine->Put(sequence, kv);
    auto lease = engine->model.Acquire(sequence.Query());
    if (!lease || ::write(ready[1], "x", 1) != 1) ::_exit(1);
    ::pause();
    ::_exit(0);
  }
  char byte = 0;
  ASSERT_EQ(::read(ready[0], &byte, 1), 1);
  EXPECT_EQ(LeasesLive(), 1);
  EXPECT_EQ(daemon_->Metric("kvtier_sessions").value(), 1);
  EXPECT_GT(daemon_->Metric("kvtier_staging_bytes").value(), 0);
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
  const bool freed = Eventually(1, [&] {
    return LeasesLive() == 0 && daemon_->Metric("kvtier_sessions").value() == 0 &&
           daemon_->Metric("kvtier_staging_bytes").value() == 0;
  });
  EXPECT_TRUE(freed);
  ::close(ready[0]);
  ::close(ready[1]);
}

TEST_F(Leases, S26_ReleasingTwiceAfterExpiryAndAfterARestartAreCodes) {
  StartDaemon({});
  const Engine engine = Connect();
  Fill(engine, 1, 2);
  const api::Sequence sequence = engine.Keys(Tokens(1, 2 * kBlockTokens));

  kvtier_lease* twice = AcquireRaw(engine, sequence);
  EXPECT_EQ(kvtier_release(twice), KVTIER_OK);
  EXPECT_EQ(kvtier_release(twice), KVTIER_STALE);
  EXPECT_EQ(kvtier_lease_count(twice), 0u);

  kvtier_lease* expired = AcquireRaw(engine, sequence, kShortTtlMs);
  EXPECT_TRUE(Eventually(10, [&] { return LeasesLive() == 0; }));
  EXPECT_EQ(kvtier_release(expired), KVTIER_STALE);

  kvtier_lease* restarted = AcquireRaw(engine, sequence);
  daemon_->Kill();
  ASSERT_TRUE(daemon_->Start().ok());
  EXPECT_EQ(kvtier_release(restarted), KVTIER_STALE);
  EXPECT_TRUE(Eventually(10, [&] { return engine.client.Stats(); }));
  EXPECT_EQ(engine.Stats().leases, 0u);
}

TEST_F(Leases, S18_ExpiryIsSeenByEveryReadInTheSameWay) {
  StartDaemon({});
  const Engine engine = Connect();
  Fill(engine, 2, 3);
  kvtier_lease* lease = AcquireRaw(engine, engine.Keys(Tokens(2, 3 * kBlockTokens)), kShortTtlMs);
  ASSERT_TRUE(Eventually(10, [&] { return LeasesLive() == 0; }));
  Kv out(3 * kBlockTokens);
  const kvtier_view view = out.View();
  for (uint32_t layer = 0; layer < kLayers; ++layer) {
    kvtier_block_result results[3];
    EXPECT_EQ(kvtier_fetch(lease, 0, 3, layer, 1, &view, results), KVTIER_STALE);
    for (const auto& result : results) EXPECT_EQ(result.code, KVTIER_STALE);
  }
  EXPECT_EQ(kvtier_release(lease), KVTIER_STALE);
}

TEST_F(Leases, AFetchOutsideTheLeaseTouchesNoResult) {
  StartDaemon({});
  const Engine engine = Connect();
  Fill(engine, 4, 2);
  kvtier_lease* lease = AcquireRaw(engine, engine.Keys(Tokens(4, 2 * kBlockTokens)));
  Kv out(2 * kBlockTokens);
  const kvtier_view view = out.View();
  struct {
    size_t first, count;
  } const outside[] = {{0, 3}, {1, 2}, {2, 1}, {0, 0}, {SIZE_MAX, 2}, {1, SIZE_MAX}, {0, SIZE_MAX / 2}};
  for (const auto& range : outside) {
    kvtier_block_result results[3] = {};
    EXPECT_EQ(kvtier_fetch(lease, range.first, range.count, 0, 0, &view, results), KVTIER_INVALID_ARGUMENT);
    for (const auto& result : results) EXPECT_EQ(result.code, KVTIER_OK) << range.first << ' ' << range.count;
  }
  EXPECT_EQ(kvtier_release(lease), KVTIER_OK);
}

TEST_F(Leases, S54_AReleaseThatAHungDaemonMissedFreesTheLeaseOnceItAnswers) {
  StartDaemon({});
  constexpr uint32_t kTimeoutMs = 500;
  auto engine = Engine::Connect(daemon_->socket(), TestSpec(), kTimeoutMs);
  ASSERT_TRUE(engine);
  Fill(*engine, 5, 1);
  kvtier_lease* lease = AcquireRaw(*engine, engine->Keys(Tokens(5, kBlockTokens)), kPatienceMs);
  ASSERT_EQ(LeasesLive(), 1);
  ASSERT_TRUE(daemon_->Pause());
  EXPECT_EQ(kvtier_release(lease), KVTIER_DEADLINE_EXCEEDED);
  daemon_->Continue();
  EXPECT_TRUE(Eventually(10, [&] { return LeasesLive() == 0; })) << "it stays pinned until its TTL";
}

TEST_F(Leases, S61_ReadingRenewsALease) {
  StartDaemon({});
  const Engine engine = Connect();
  Fill(engine, 3, 1);
  kvtier_lease* lease = AcquireRaw(engine, engine.Keys(Tokens(3, kBlockTokens)), 400);
  Kv out(kBlockTokens);
  const kvtier_view view = out.View();
  const auto start = std::chrono::steady_clock::now();
  kvtier_block_result result{};
  while (std::chrono::steady_clock::now() - start < std::chrono::milliseconds(1200)) {
    ASSERT_EQ(kvtier_fetch(lease, 0, 1, 0, 0, &view, &result), KVTIER_OK) << api::LastError();
  }
  EXPECT_EQ(kvtier_release(lease), KVTIER_OK);
}

TEST_F(Leases, S12_AHandleKeptAcrossFreeAndReuseOfItsSlotIsStale) {
  // A hot tier of few slots: what is written after the lease has expired reuses them.
  StartDaemon({.hot_bytes = uint64_t{16} << 20, .warm_bytes = 0, .cold_bytes = 0, .more = {}});
  const Engine engine = Connect();
  Fill(engine, 4, 4);
  const api::Sequence sequence = engine.Keys(Tokens(4, 4 * kBlockTokens));
  kvtier_lease* lease = AcquireRaw(engine, sequence, kShortTtlMs);
  ASSERT_TRUE(Eventually(10, [&] { return LeasesLive() == 0; }));
  for (uint32_t seed = 100; engine.Hits(sequence) > 0; ++seed) {
    ASSERT_LT(seed, 200u) << "never evicted";
    Fill(engine, seed, 8);
  }
  Kv out(4 * kBlockTokens);
  const kvtier_view view = out.View();
  kvtier_block_result results[4];
  EXPECT_EQ(kvtier_fetch(lease, 0, 4, 0, 0, &view, results), KVTIER_STALE);
  EXPECT_EQ(kvtier_release(lease), KVTIER_STALE);
}

TEST_F(Leases, S27_EvictionUnderALeaseChangesNoByteUntilTheRelease) {
  StartDaemon({.hot_bytes = uint64_t{16} << 20, .warm_bytes = 0, .cold_bytes = 0, .more = {}});
  const Engine engine = Connect();
  const api::Sequence sequence = engine.Keys(Tokens(5, 4 * kBlockTokens));
  Kv kv = Kv::Random(5, 4 * kBlockTokens);
  engine.Put(sequence, kv);
  auto lease = engine.model.Acquire(sequence.Query());
  ASSERT_TRUE(lease);
  for (uint32_t seed = 300; seed < 320; ++seed) {
    Kv other = Kv::Random(seed, 8 * kBlockTokens);
    engine.Put(engine.Keys(Tokens(seed, 8 * kBlockTokens)), other);
    Kv out(4 * kBlockTokens);
    std::vector<kvtier_block_result> results(4);
    ASSERT_EQ(lease->Fetch(0, out.View(), results), KVTIER_OK) << api::LastError();
    ASSERT_EQ(out.values(), kv.values());
  }
}

TEST_F(Leases, S55_AnIdleClientStaysAndAnUnknownSessionRegistersByItself) {
  StartDaemon({.hot_bytes = uint64_t{64} << 20,
               .warm_bytes = 0,
               .cold_bytes = 0,
               .more = "[limits]\nlease_ttl_ms = 100\n"});
  const Engine engine = Connect();
  Fill(engine, 7, 1);
  const auto idle = std::chrono::milliseconds(500);  // several lease lifetimes
  std::this_thread::sleep_for(idle);
  EXPECT_EQ(engine.Hits(engine.Keys(Tokens(7, kBlockTokens))), 1u);
  EXPECT_EQ(daemon_->Metric("kvtier_sessions_opened_total").value(), 1);

  daemon_->Kill();
  ASSERT_TRUE(daemon_->Start().ok());
  EXPECT_TRUE(
      Eventually(10, [&] { return engine.model.Lookup(engine.Keys(Tokens(7, kBlockTokens)).Query()); }));
  Fill(engine, 7, 1);
  EXPECT_EQ(engine.Hits(engine.Keys(Tokens(7, kBlockTokens))), 1u);
}

}  // namespace
}  // namespace kvtier::e2e
