// What an engine does without blocking: fetches layer by layer, and tickets that tell when they have ended.
#include <poll.h>
#include <sched.h>
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <set>
#include <span>
#include <thread>

#include "tests/e2e/e2e.h"

namespace kvtier::e2e {
namespace {

constexpr size_t kBlocks = 6, kTokens = kBlocks * kBlockTokens;
constexpr size_t kLayerValues = kTokens * kTokenBytes / 2 / kLayers;

class Async : public E2eTest {
 protected:
  Engine Filled(uint32_t fetch_threads = 1) {
    StartDaemon({});
    Engine engine = Connect();
    EXPECT_EQ(engine.Put(Sequence(engine), kv_).size(), kBlocks);
    if (fetch_threads == 1) return engine;
    kvtier_options options{};
    options.struct_size = sizeof(options);
    options.socket = daemon_->socket().c_str();
    options.timeout_ms = kPatienceMs;
    options.fetch_threads = fetch_threads;
    auto client = api::Client::Open(options);
    KVTIER_CHECK(static_cast<bool>(client));
    const api::Model model = *client->RegisterModel(TestSpec());
    return Engine{std::move(*client), model};
  }
  static api::Sequence Sequence(const Engine& engine) { return engine.Keys(Tokens(1, kTokens)); }
  bool LayerIsRight(Kv& out, size_t layer) {
    const size_t first = layer * kLayerValues;
    return std::ranges::equal(std::span(kv_.values()).subspan(first, kLayerValues),
                              std::span(out.values()).subspan(first, kLayerValues));
  }

  Kv kv_ = Kv::Random(1, kTokens);
};

TEST_F(Async, LayersComeInOrderAndEachIsWholeWhenItIsTold) {
  for (const uint32_t threads : {1u, 3u}) {
    const Engine engine = Filled(threads);
    const api::Sequence sequence = Sequence(engine);
    auto lease = engine.model.Acquire(sequence.Query());
    ASSERT_TRUE(lease) << api::LastError();
    Kv out(kTokens);
    kvtier_view view = out.View();
    void* base = view.bases[0];
    view.bases = &base;
    const auto ticket = lease->FetchAsync(0, kBlocks, view);
    base = nullptr;  // the library has its own copy
    ASSERT_TRUE(ticket) << api::LastError();
    std::vector<kvtier_block_result> results(kBlocks);
    for (uint32_t layer = 0; layer < kLayers; ++layer) {
      ASSERT_EQ(engine.client.WaitLayer(*ticket, layer, results, kPatienceMs), KVTIER_OK) << api::LastError();
      EXPECT_TRUE(LayerIsRight(out, layer)) << layer;
      for (const auto& result : results) EXPECT_EQ(result.precision, KVTIER_BITS16);
    }
    EXPECT_EQ(engine.client.Wait(*ticket), KVTIER_OK);
    EXPECT_EQ(engine.client.Wait(*ticket), KVTIER_STALE);
    EXPECT_EQ(engine.client.WaitLayer(*ticket, 0, results), KVTIER_STALE);
  }
}

/// A destination that holds up the thread that first writes to it until it is opened. One at a time.
class HeldMemory {
 public:
  explicit HeldMemory(size_t bytes) : bytes_(bytes) {
    base = ::mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    KVTIER_CHECK(base != MAP_FAILED);
    open_ = touched_ = false;
    CPU_ZERO(&cpus_);
    struct sigaction action {};
    action.sa_handler = [](int) {
      ::sched_getaffinity(0, sizeof(cpus_), &cpus_);
      touched_ = true;
      const timespec pause{.tv_sec = 0, .tv_nsec = 100'000};
      while (!open_) ::nanosleep(&pause, nullptr);
    };
    KVTIER_CHECK(::sigaction(SIGSEGV, &action, &before_) == 0);
  }
  ~HeldMemory() {
    Open();
    ::sigaction(SIGSEGV, &before_, nullptr);
  }
  HeldMemory(const HeldMemory&) = delete;
  HeldMemory& operator=(const HeldMemory&) = delete;

  void Open() {
    KVTIER_CHECK(::mprotect(base, bytes_, PROT_READ | PROT_WRITE) == 0);
    open_ = true;
  }
  /// Where the thread that is held up may run.
  cpu_set_t AwaitTouch() const {
    while (!touched_) std::this_thread::yield();
    return cpus_;
  }

  void* base;

 private:
  static inline std::atomic<bool> open_ = false, touched_ = false;
  static inline cpu_set_t cpus_{};
  const size_t bytes_;
  struct sigaction before_ {};
};

TEST_F(Async, WhoWaitsDecodesWhatNoThreadHasBegun) {
  const Engine engine = Filled();
  const api::Sequence sequence = Sequence(engine);
  auto lease = engine.model.Acquire(sequence.Query());
  ASSERT_TRUE(lease) << api::LastError();
  Kv out(kTokens), shape(kTokens);
  HeldMemory held(kTokens * kTokenBytes);
  kvtier_view view = shape.View();
  view.bases = &held.base;
  const auto stuck = lease->FetchAsync(0, kBlocks, view);
  ASSERT_TRUE(stuck) << api::LastError();
  held.AwaitTouch();
  const auto ticket = lease->FetchAsync(0, kBlocks, out.View());
  ASSERT_TRUE(ticket) << api::LastError();
  EXPECT_EQ(engine.client.Wait(*ticket, {}, kPatienceMs), KVTIER_OK) << api::LastError();
  EXPECT_TRUE(kv_.SameOver(out, 0, kTokens));
  held.Open();
  EXPECT_EQ(engine.client.Wait(*stuck, {}, kPatienceMs), KVTIER_OK) << api::LastError();
  EXPECT_TRUE(std::ranges::equal(kv_.values(),
                                 std::span(static_cast<uint16_t*>(held.base), kTokens * kTokenBytes / 2)));
}

TEST_F(Async, ThreadsLeaveTheCpuOfWhoStartsAFetch) {
  cpu_set_t mine;
  ASSERT_EQ(::sched_getaffinity(0, sizeof(mine), &mine), 0);
  if (CPU_COUNT(&mine) < 2) GTEST_SKIP() << "there is one CPU";
  const Engine engine = Filled();
  const api::Sequence sequence = Sequence(engine);
  auto lease = engine.model.Acquire(sequence.Query());
  ASSERT_TRUE(lease) << api::LastError();
  Kv shape(kTokens);
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (!CPU_ISSET(cpu, &mine)) continue;
    // The thread is there by the second fetch, and may run wherever this one could when it came to be.
    const auto first = lease->FetchAsync(0, kBlocks, shape.View());
    ASSERT_TRUE(first) << api::LastError();
    ASSERT_EQ(engine.client.Wait(*first, {}, kPatienceMs), KVTIER_OK);
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(cpu, &one);
    ASSERT_EQ(::sched_setaffinity(0, sizeof(one), &one), 0);
    HeldMemory held(kTokens * kTokenBytes);
    kvtier_view view = shape.View();
    view.bases = &held.base;
    const auto ticket = lease->FetchAsync(0, kBlocks, view);
    EXPECT_EQ(::sched_setaffinity(0, sizeof(mine), &mine), 0);
    ASSERT_TRUE(ticket) << api::LastError();
    const cpu_set_t cpus = held.AwaitTouch();
    EXPECT_FALSE(CPU_ISSET(cpu, &cpus));
    EXPECT_EQ(CPU_COUNT(&cpus), CPU_COUNT(&mine) - 1);
    held.Open();
    EXPECT_EQ(engine.client.Wait(*ticket, {}, kPatienceMs), KVTIER_OK);
  }
}

TEST_F(Async, ManyFetchesAtOnceAreAllRight) {
  const Engine engine = Filled(4);
  const api::Sequence sequence = Sequence(engine);
  auto lease = engine.model.Acquire(sequence.Query());
  ASSERT_TRUE(lease) << api::LastError();
  std::vector<Kv> outs(24, Kv(kTokens));
  std::vector<kvtier_ticket> tickets;
  for (Kv& out : outs) {
    const auto ticket = lease->FetchAsync(0, kBlocks, out.View());
    ASSERT_TRUE(ticket) << api::LastError();
    tickets.push_back(*ticket);
  }
  for (size_t i = 0; i < outs.size(); ++i) {
    ASSERT_EQ(engine.client.Wait(tickets[i], {}, kPatienceMs), KVTIER_OK) << api::LastError();
    EXPECT_TRUE(kv_.SameOver(outs[i], 0, kTokens)) << i;
  }
}

TEST_F(Async, NothingIsWrittenAfterACancel) {
  const Engine engine = Filled(2);
  const api::Sequence sequence = Sequence(engine);
  auto lease = engine.model.Acquire(sequence.Query());
  ASSERT_TRUE(lease) << api::LastError();
  for (int round = 0; round < 50; ++round) {
    Kv out(kTokens);
    const auto ticket = lease->FetchAsync(0, kBlocks, out.View());
    ASSERT_TRUE(ticket) << api::LastError();
    if (round % 2 == 1) std::this_thread::sleep_for(std::chrono::microseconds(20 * round));
    ASSERT_EQ(engine.client.Cancel(*ticket), KVTIER_OK);
    const std::vector<uint16_t> then = out.values();
    std::vector<kvtier_block_result> results(kBlocks);
    const kvtier_code waited = engine.client.WaitLayer(*ticket, kLayers - 1, results);
    for (size_t block = 0; block < kBlocks; ++block) {
      if (results[block].code == KVTIER_OK) {
        EXPECT_TRUE(kv_.SameOver(out, block * kBlockTokens, kBlockTokens));
      } else {
        EXPECT_EQ(results[block].code, KVTIER_CANCELLED);
      }
    }
    EXPECT_TRUE(waited == KVTIER_OK || waited == KVTIER_CANCELLED) << waited;
    EXPECT_EQ(engine.client.Wait(*ticket), waited);
    EXPECT_EQ(out.values(), then);
  }
}

TEST_F(Async, AClosedHandleWritesNothingMore) {
  Engine engine = Filled();
  const api::Sequence sequence = Sequence(engine);
  auto lease = engine.model.Acquire(sequence.Query());
  ASSERT_TRUE(lease) << api::LastError();
  std::vector<Kv> outs(16, Kv(kTokens));
  for (Kv& out : outs) ASSERT_TRUE(lease->FetchAsync(0, kBlocks, out.View())) << api::LastError();
  { const Engine closing = std::move(engine); }
  std::vector<std::vector<uint16_t>> then;
  for (Kv& out : outs) then.push_back(out.values());
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  for (size_t i = 0; i < outs.size(); ++i) EXPECT_EQ(outs[i].values(), then[i]);
}

TEST_F(Async, S12_AFetchUnderAnExpiredLeaseIsStaleNotWrong) {
  const Engine engine = Filled();
  kvtier_acquire_options options = api::AcquireOptions();
  options.ttl_ms = 30;
  kvtier_lease* lease = nullptr;
  const api::Sequence sequence = Sequence(engine);
  const kvtier_query held = sequence.Query();
  ASSERT_EQ(kvtier_acquire(engine.model.get(), &held, &options, &lease), KVTIER_OK) << api::LastError();
  std::this_thread::sleep_for(std::chrono::milliseconds(60));
  Kv out(kTokens);
  const kvtier_view view = out.View();
  kvtier_ticket ticket = 0;
  ASSERT_EQ(kvtier_fetch_async(lease, 0, kBlocks, 0, 0, &view, &ticket), KVTIER_OK) << api::LastError();
  std::vector<kvtier_block_result> results(kBlocks);
  EXPECT_EQ(engine.client.WaitLayer(ticket, 0, results, kPatienceMs), KVTIER_STALE);
  for (const auto& result : results) EXPECT_EQ(result.code, KVTIER_STALE);
  EXPECT_EQ(engine.client.Wait(ticket), KVTIER_STALE);
  kvtier_release(lease);
}

TEST_F(Async, AFetchGoesOnToItsEndWhenTheDaemonDies) {
  const Engine engine = Filled();
  const api::Sequence sequence = Sequence(engine);
  auto lease = engine.model.Acquire(sequence.Query());
  ASSERT_TRUE(lease) << api::LastError();
  Kv out(kTokens);
  daemon_->Kill();
  const auto ticket = lease->FetchAsync(0, kBlocks, out.View());
  ASSERT_TRUE(ticket) << api::LastError();
  std::vector<kvtier_block_result> results(kBlocks);
  const kvtier_code code = engine.client.WaitLayer(*ticket, kLayers - 1, results, kPatienceMs);
  EXPECT_TRUE(code == KVTIER_OK || code == KVTIER_STALE) << code;
  for (size_t block = 0; block < kBlocks; ++block) {
    if (results[block].code == KVTIER_OK) {
      EXPECT_TRUE(kv_.SameOver(out, block * kBlockTokens, kBlockTokens));
    }
  }
  EXPECT_EQ(engine.client.Wait(*ticket), code) << "the ticket is still there: its memory was in use";
}

TEST_F(Async, BadArgumentsAreRefused) {
  const Engine engine = Filled();
  const api::Sequence sequence = Sequence(engine);
  auto lease = engine.model.Acquire(sequence.Query());
  ASSERT_TRUE(lease) << api::LastError();
  Kv out(kTokens);
  kvtier_view view = out.View();
  EXPECT_EQ(lease->FetchAsync(0, 0, view).code(), KVTIER_INVALID_ARGUMENT);
  EXPECT_EQ(lease->FetchAsync(1, kBlocks, view).code(), KVTIER_INVALID_ARGUMENT);
  view.token_stride = 1;
  EXPECT_EQ(lease->FetchAsync(0, kBlocks, view).code(), KVTIER_INVALID_ARGUMENT);
  const auto ticket = lease->FetchAsync(0, kBlocks, out.View());
  ASSERT_TRUE(ticket) << api::LastError();
  std::vector<kvtier_block_result> results(kBlocks);
  EXPECT_EQ(engine.client.WaitLayer(*ticket, kLayers, results), KVTIER_INVALID_ARGUMENT);
  EXPECT_EQ(engine.client.WaitLayer(*ticket, 0, {results.data(), 2}), KVTIER_OUT_OF_RANGE);
  EXPECT_EQ(engine.client.WaitLayer(*ticket + 1, 0, results), KVTIER_STALE);
  EXPECT_EQ(engine.client.Wait(*ticket, {}, kPatienceMs), KVTIER_OK);
}

TEST_F(Async, EveryTicketTellsItsEndOnce) {
  StartDaemon({});
  const Engine engine = Connect();
  int fd = -1;
  ASSERT_EQ(kvtier_completion_fd(engine.client.get(), &fd), KVTIER_OK);
  const api::Sequence sequence = Sequence(engine);
  std::set<kvtier_ticket> expected;
  for (const size_t blocks : {2, 4, 6, 6}) {
    const auto put = engine.model.Put(sequence.Query(0, blocks), kv_.View());
    ASSERT_TRUE(put) << api::LastError();
    expected.insert(*put);
  }
  const auto take = [&] {
    std::vector<kvtier_ticket> all;
    while (all.size() < expected.size()) {
      pollfd ready{.fd = fd, .events = POLLIN, .revents = 0};
      if (::poll(&ready, 1, kPatienceMs) != 1) break;
      kvtier_ticket some[3];
      size_t count = 0;
      EXPECT_EQ(kvtier_completed(engine.client.get(), some, 3, &count), KVTIER_OK);
      EXPECT_GT(count, 0u);
      all.insert(all.end(), some, some + count);
    }
    return all;
  };
  std::vector<kvtier_ticket> told = take();
  EXPECT_EQ(told.size(), expected.size());
  EXPECT_EQ(std::set(told.begin(), told.end()), expected);
  for (const kvtier_ticket ticket : told) EXPECT_EQ(engine.client.Wait(ticket, {}, 1), KVTIER_OK);

  auto lease = engine.model.Acquire(sequence.Query());
  ASSERT_TRUE(lease) << api::LastError();
  Kv out(kTokens);
  const auto fetch = lease->FetchAsync(0, kBlocks, out.View());
  const auto prefetch = engine.model.Prefetch(sequence.Query(), 0);
  ASSERT_TRUE(fetch && prefetch) << api::LastError();
  expected = {*fetch, *prefetch};
  told = take();
  EXPECT_EQ(std::set(told.begin(), told.end()), expected);
  EXPECT_EQ(engine.client.Wait(*fetch, {}, 1), KVTIER_OK);
  EXPECT_EQ(engine.client.Wait(*prefetch, {}, 1), KVTIER_OK);
}

TEST_F(Async, APutThatIsNotTakenWholeStillHasItsTicket) {
  // A block of 4 MiB, more than a session's staging memory: refused before the source is read.
  StartDaemon({.server_keys = "staging = \"1MiB\"\n", .more = {}});
  kvtier_model_spec spec = TestSpec("wide");
  spec.layers = 2;
  spec.kv_heads = 32;
  spec.k_dim = spec.v_dim = 128;
  spec.tokens_per_block = 128;
  const Engine engine = Connect(spec);
  const api::Sequence sequence = engine.Keys(Tokens(1, 128));
  ASSERT_EQ(sequence.blocks(), 1u);
  const auto put = engine.model.Put(sequence.Query(), kv_.View());
  EXPECT_FALSE(put);
  EXPECT_EQ(put.code(), KVTIER_RESOURCE_EXHAUSTED);
  ASSERT_NE(*put, 0u);
  kvtier_put_result result = {.code = KVTIER_OK, .precision = KVTIER_INT2, .tier = 9};
  EXPECT_EQ(engine.client.Wait(*put, {&result, 1}, kPatienceMs), KVTIER_RESOURCE_EXHAUSTED);
  EXPECT_EQ(result.code, KVTIER_RESOURCE_EXHAUSTED);
  EXPECT_EQ(result.precision, KVTIER_PRECISION_ANY);
}

TEST_F(Async, TicketsOfADaemonThatDiesTellTheirEndToo) {
  StartDaemon({});
  const Engine engine = Connect();
  int fd = -1;
  ASSERT_EQ(kvtier_completion_fd(engine.client.get(), &fd), KVTIER_OK);
  const api::Sequence sequence = Sequence(engine);
  for (int round = 0; round < 4; ++round) {
    const auto put = engine.model.Put(sequence.Query(), kv_.View());
    ASSERT_TRUE(put) << api::LastError();
    std::this_thread::sleep_for(std::chrono::microseconds(200 * round));
    daemon_->Kill();
    pollfd ready{.fd = fd, .events = POLLIN, .revents = 0};
    ASSERT_EQ(::poll(&ready, 1, kPatienceMs), 1);
    kvtier_ticket told[2];
    size_t count = 0;
    ASSERT_EQ(kvtier_completed(engine.client.get(), told, 2, &count), KVTIER_OK);
    ASSERT_EQ(count, 1u);
    EXPECT_EQ(told[0], *put);
    const kvtier_code code = engine.client.Wait(*put, {}, kPatienceMs);
    EXPECT_TRUE(code == KVTIER_OK || code == KVTIER_STALE || code == KVTIER_UNAVAILABLE) << code;
    ASSERT_TRUE(daemon_->Start().ok());
    ASSERT_TRUE(Eventually(20, [&] { return engine.client.Stats().code() == KVTIER_OK; }));
  }
}

}  // namespace
}  // namespace kvtier::e2e
