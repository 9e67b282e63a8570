// The cache bridge against a real daemon. Memory stands in for the engine; it takes and gives the same
// states.
#include "client/engines/llamacpp/prefix_cache.h"

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <array>
#include <atomic>
#include <functional>
#include <numeric>
#include <thread>

#include "tests/llamacpp/states.h"
#include "tests/support/daemon_process.h"
#include "tests/support/eventually.h"
#include "tiers/base/check.h"
#include "tiers/base/unique_fd.h"

namespace kvtier::llamacpp {
namespace {

constexpr uint32_t kBlockTokens = 64;
constexpr HeadShape kHeads{.kv_heads = 2, .head_dim = 64};
constexpr SeqShape kShape{.layers = 4, .row_bytes = 2 * 64 * 2};
constexpr std::chrono::seconds kPatience{30};

/// Rows of tokens, as an engine has them. Every token's rows are made from its position and the prefix.
class Memory final : public SequenceMemory {
 public:
  /// As an engine computes them: from the tokens up to each one.
  void Compute(std::span<const int32_t> tokens) {
    uint32_t prefix = 17;
    for (size_t i = 0; i < tokens.size(); ++i) {
      prefix = prefix * 31 + static_cast<uint32_t>(tokens[i]);
      if (i < rows_.size()) continue;
      std::mt19937 random(prefix);
      std::vector<uint16_t> row(size_t{2} * kShape.layers * kShape.row_bytes / 2);
      for (uint16_t& value : row)
        value = static_cast<uint16_t>(0x3000 + random() % 0x0c00);  // fp16, 1/8 to 1
      rows_.push_back(std::move(row));
    }
  }
  void Truncate(uint32_t tokens) override { rows_.resize(tokens); }
  size_t size() const { return rows_.size(); }
  const std::vector<std::vector<uint16_t>>& rows() const { return rows_; }
  void FailAppends() { fails_ = true; }
  /// Runs before an append.
  std::function<void()> before_append = [] {};

  Result<std::vector<std::byte>> Save(int32_t first, uint32_t tokens) override {
    // Cells backwards: no part of the bridge may think that they lie in order.
    std::vector<int32_t> positions(tokens);
    std::iota(positions.rbegin(), positions.rend(), first);
    std::vector<std::byte> bytes = StateOf(kShape, positions, 1);
    Result<SeqState> state = SeqState::Parse(bytes, kShape);
    for (uint32_t plane = 0; plane < 2 * kShape.layers; ++plane) {
      for (uint32_t cell = 0; cell < tokens; ++cell) {
        std::byte* const out = bytes.data() + (state->K(plane) - bytes.data()) + cell * kShape.row_bytes;
        std::memcpy(out, RowOf(static_cast<size_t>(positions[cell]), plane), kShape.row_bytes);
      }
    }
    return bytes;
  }

  Status Append(std::span<const std::byte> bytes) override {
    before_append();
    if (fails_) return Status(Code::kResourceExhausted, "no cells");
    KVTIER_ASSIGN(const SeqState state, SeqState::Parse(bytes, kShape));
    for (uint32_t cell = 0; cell < state.cells(); ++cell) {
      EXPECT_EQ(state.positions()[cell], static_cast<int32_t>(rows_.size()));
      std::vector<uint16_t> row(size_t{2} * kShape.layers * kShape.row_bytes / 2);
      for (uint32_t plane = 0; plane < 2 * kShape.layers; ++plane) {
        std::memcpy(reinterpret_cast<std::byte*>(row.data()) + plane * kShape.row_bytes,
                    state.K(plane) + cell * kShape.row_bytes, kShape.row_bytes);
      }
      rows_.push_back(std::move(row));
    }
    return Status::Ok();
  }

 private:
  const std::byte* RowOf(size_t token, uint32_t plane) const {
    return reinterpret_cast<const std::byte*>(rows_[token].data()) + plane * kShape.row_bytes;
  }

  std::vector<std::vector<uint16_t>> rows_;
  bool fails_ = false;
};

std::vector<int32_t> Tokens(size_t count, int32_t seed = 1) {
  std::vector<int32_t> tokens(count);
  std::iota(tokens.begin(), tokens.end(), seed * 100'000);
  return tokens;
}

ModelIdentity Identity() {
  return {.model_id = "bridge", .revision = "1", .config_digest = "", .shape = kShape, .heads = kHeads};
}

PrefixCacheOptions Options(const std::string& socket) {
  PrefixCacheOptions options;
  options.socket = socket;
  options.tokens_per_block = kBlockTokens;
  options.call_timeout = kPatience;
  options.restore_budget = kPatience;
  return options;
}

class PrefixCacheTest : public testing::Test {
 protected:
  void SetUp() override {
    const Status started = daemon_.Start();
    ASSERT_TRUE(started.ok()) << started.ToString();
  }
  PrefixCache Cache() { return PrefixCache(Identity(), Options(daemon_.socket()), clock_); }
  /// Computes and stores a sequence, and waits until it stands.
  void Fill(PrefixCache& cache, std::span<const int32_t> tokens) {
    Memory memory;
    memory.Compute(tokens);
    const StoreReport stored = cache.Store(tokens, 0, memory);
    ASSERT_TRUE(stored.ended.ok()) << stored.ended.ToString();
    const Result<uint64_t> stand = cache.Settle(kPatience);
    ASSERT_TRUE(stand.ok()) << stand.status().ToString();
    EXPECT_EQ(*stand, stored.blocks);
  }
  static void ExpectComputed(const Memory& memory, std::span<const int32_t> tokens) {
    Memory expected;
    expected.Compute(tokens.first(memory.size()));
    EXPECT_TRUE(memory.rows() == expected.rows());
  }

  SteadyClock clock_;
  DaemonProcess daemon_{DaemonSettings{}};
};

TEST_F(PrefixCacheTest, BringsBackBlocksAndTailBitForBit) {
  const std::vector<int32_t> tokens = Tokens(3 * kBlockTokens + 20);
  PrefixCache cache = Cache();
  Fill(cache, tokens);
  // The next turn: the same tokens and more.
  std::vector<int32_t> longer = tokens;
  longer.insert(longer.end(), {1, 2, 3});
  Memory memory;
  const RestoreReport report = cache.Restore(longer, memory);
  EXPECT_TRUE(report.ended.ok()) << report.ended.ToString();
  EXPECT_EQ(report.tokens, tokens.size());
  EXPECT_EQ(report.full_tokens, 3 * kBlockTokens);
  EXPECT_EQ(report.blocks_by_tier[0], 4u);
  EXPECT_EQ(report.lowest, KVTIER_BITS16);
  EXPECT_EQ(report.k_error_max, 0.0f);
  EXPECT_EQ(memory.size(), report.tokens);
  ExpectComputed(memory, longer);
}

TEST_F(PrefixCacheTest, LeavesTheLastTokenOfAKnownPromptToTheEngineAndNoMore) {
  for (const size_t behind : {0, 1, 20}) {
    const std::vector<int32_t> tokens = Tokens(2 * kBlockTokens + behind, static_cast<int32_t>(behind));
    PrefixCache cache = Cache();
    Fill(cache, tokens);
    Memory memory;
    const RestoreReport report = cache.Restore(tokens, memory);
    EXPECT_EQ(report.tokens, tokens.size() - 1) << behind;
    EXPECT_EQ(report.full_tokens, 2 * kBlockTokens) << behind;
    EXPECT_EQ(memory.size(), report.tokens);
    ExpectComputed(memory, tokens);
  }
}

TEST_F(PrefixCacheTest, AMissIsAMiss) {
  PrefixCache cache = Cache();
  Memory memory;
  EXPECT_EQ(cache.Restore(Tokens(300), memory).ended.code(), Code::kNotFound);
  EXPECT_TRUE(cache.connected());
  for (const size_t few : {0, 1}) EXPECT_EQ(cache.Restore(Tokens(few), memory).tokens, 0u);
  EXPECT_EQ(memory.size(), 0u);
}

TEST_F(PrefixCacheTest, StoresNoBlockThatItRestored) {
  const std::vector<int32_t> tokens = Tokens(4 * kBlockTokens);
  PrefixCache cache = Cache();
  Fill(cache, std::span(tokens).first(2 * kBlockTokens));
  Memory memory;
  const RestoreReport restored = cache.Restore(tokens, memory);
  ASSERT_EQ(restored.full_tokens, 2 * kBlockTokens);
  memory.Compute(tokens);
  const StoreReport stored = cache.Store(tokens, restored.full_tokens, memory);
  EXPECT_EQ(stored.blocks, 2u);
  EXPECT_EQ(stored.full_tokens_end, 4 * kBlockTokens);
  const StoreReport again = cache.Store(tokens, stored.full_tokens_end, memory);
  EXPECT_TRUE(again.ended.ok());
  EXPECT_EQ(again.blocks, 0u);
}

TEST_F(PrefixCacheTest, StoresLongSequencesInParts) {
  constexpr uint64_t kTokenBytes = uint64_t{2} * kShape.layers * kShape.row_bytes;
  const std::vector<int32_t> tokens = Tokens((uint64_t{40} << 20) / kTokenBytes);
  DaemonSettings settings;
  settings.hot_bytes = uint64_t{128} << 20;
  DaemonProcess large(settings);
  ASSERT_TRUE(large.Start().ok());
  PrefixCache cache(Identity(), Options(large.socket()), clock_);
  Fill(cache, tokens);
  Memory memory;
  EXPECT_EQ(cache.Restore(tokens, memory).tokens, tokens.size() - 1);
  ExpectComputed(memory, tokens);
}

TEST_F(PrefixCacheTest, KeepsModelsApart) {
  const std::vector<int32_t> tokens = Tokens(200);
  PrefixCache cache = Cache();
  Fill(cache, tokens);
  ModelIdentity retrained = Identity();
  retrained.revision = "2";
  PrefixCache other(retrained, Options(daemon_.socket()), clock_);
  Memory memory;
  EXPECT_EQ(other.Restore(tokens, memory).ended.code(), Code::kNotFound);
}

TEST_F(PrefixCacheTest, AnEngineWithoutRoomKeepsWhatIsThere) {
  const std::vector<int32_t> tokens = Tokens(3 * kBlockTokens + 1);
  PrefixCache cache = Cache();
  Fill(cache, tokens);
  Memory memory;
  memory.before_append = [&] {
    if (memory.size() == kBlockTokens) memory.FailAppends();
  };
  const RestoreReport report = cache.Restore(tokens, memory);
  EXPECT_EQ(report.ended.code(), Code::kResourceExhausted);
  EXPECT_EQ(report.tokens, kBlockTokens);
  ExpectComputed(memory, tokens);
}

TEST_F(PrefixCacheTest, ADaemonKilledDuringARestoreLeavesAPrefixThatIsRight) {
  const std::vector<int32_t> tokens = Tokens(6 * kBlockTokens + 1);
  PrefixCache cache = Cache();
  Fill(cache, tokens);
  Memory memory;
  memory.before_append = [&] {
    if (memory.size() == 2 * kBlockTokens) daemon_.Kill();
  };
  const RestoreReport report = cache.Restore(tokens, memory);
  EXPECT_EQ(memory.size(), report.tokens);
  EXPECT_GE(report.tokens, 3 * kBlockTokens);
  ExpectComputed(memory, tokens);

  // The engine goes on alone, and hits again when there is a daemon again.
  memory.Compute(tokens);
  EXPECT_FALSE(cache.Store(tokens, report.full_tokens, memory).ended.ok());
  ASSERT_TRUE(daemon_.Start().ok());
  EXPECT_TRUE(Eventually(30, [&] { return cache.Store(tokens, 0, memory).ended.ok(); }));
  ASSERT_TRUE(cache.Settle(kPatience).ok());
  Memory next;
  EXPECT_EQ(cache.Restore(tokens, next).tokens, 6 * kBlockTokens);
  ExpectComputed(next, tokens);
}

TEST_F(PrefixCacheTest, ASuspendedDaemonCostsItsTimeoutOnceThenNothing) {
  const std::vector<int32_t> tokens = Tokens(3 * kBlockTokens + 1);
  PrefixCacheOptions options = Options(daemon_.socket());
  PrefixCache patient(Identity(), options, clock_);
  Fill(patient, tokens);
  options.call_timeout = std::chrono::milliseconds(150);
  PrefixCache cache(Identity(), options, clock_);
  Memory warm_up;
  ASSERT_TRUE(Eventually(30, [&] {
    warm_up.Truncate(0);
    return cache.Restore(tokens, warm_up).tokens == 3 * kBlockTokens;
  }));

  ASSERT_TRUE(daemon_.Pause());
  Memory memory;
  const RestoreReport first = cache.Restore(tokens, memory);
  EXPECT_EQ(first.ended.code(), Code::kDeadlineExceeded) << first.ended.ToString();
  EXPECT_GE(first.took, std::chrono::milliseconds(100));
  EXPECT_EQ(memory.size(), 0u);
  EXPECT_FALSE(cache.connected());
  const RestoreReport second = cache.Restore(tokens, memory);
  EXPECT_EQ(second.ended.code(), Code::kUnavailable);
  EXPECT_LT(second.took, std::chrono::milliseconds(100)) << "not asked again so soon";

  daemon_.Continue();
  EXPECT_TRUE(Eventually(30, [&] {
    memory.Truncate(0);
    return cache.Restore(tokens, memory).tokens == 3 * kBlockTokens;
  }));
  ExpectComputed(memory, tokens);
}

TEST_F(PrefixCacheTest, BlocksGivenAwayUnderAnExpiredLeaseAreComputedAgain) {
  DaemonSettings settings;
  settings.hot_bytes = uint64_t{64} << 20;
  settings.more = "[limits]\nlease_ttl_ms = 300\n";
  DaemonProcess small(settings);
  ASSERT_TRUE(small.Start().ok());
  const std::vector<int32_t> tokens = Tokens(6 * kBlockTokens + 1);
  PrefixCache cache(Identity(), Options(small.socket()), clock_);
  Fill(cache, tokens);
  // The engine is stopped for longer than a lease lives, in the middle of a restore. Meanwhile another one
  // fills the tier several times over.
  PrefixCache other(Identity(), Options(small.socket()), clock_);
  Memory memory;
  memory.before_append = [&] {
    if (memory.size() != 2 * kBlockTokens) return;
    EXPECT_TRUE(Eventually(20, [&] {
      const Result<double> expired = small.Metric("kvtier_leases_ended_total{reason=\"expired\"}");
      return expired.ok() && *expired >= 1;
    }));
    for (int32_t seed = 2; seed < 8; ++seed) {
      Memory noise;
      const std::vector<int32_t> others = Tokens(200 * kBlockTokens, seed);
      noise.Compute(others);
      EXPECT_TRUE(other.Store(others, 0, noise).ended.ok());
      EXPECT_TRUE(other.Settle(kPatience).ok());
    }
  };
  const RestoreReport report = cache.Restore(tokens, memory);
  EXPECT_EQ(report.ended.code(), Code::kStale) << report.ended.ToString();
  // And the fourth block where it was decoded before the engine stood still.
  EXPECT_GE(report.tokens, 3 * kBlockTokens);
  EXPECT_LE(report.tokens, 4 * kBlockTokens);
  EXPECT_EQ(memory.size(), report.tokens);
  ExpectComputed(memory, tokens);
  memory.Compute(tokens);
  EXPECT_TRUE(cache.Store(tokens, report.full_tokens, memory).ended.ok());
}

TEST(PrefixCacheAlone, AFullDaemonCostsBlocksAndNothingElse) {
  DaemonSettings settings;
  settings.hot_bytes = uint64_t{16} << 20;  // and nothing below it
  DaemonProcess small(settings);
  const Status started = small.Start();
  ASSERT_TRUE(started.ok()) << started.ToString();
  const SteadyClock clock;
  PrefixCache cache(Identity(), Options(small.socket()), clock);
  for (int32_t seed = 1; seed < 4; ++seed) {
    const std::vector<int32_t> tokens = Tokens(200 * kBlockTokens, seed);  // 26 MB
    Memory memory;
    memory.Compute(tokens);
    cache.Store(tokens, 0, memory).ended.IgnoreBecause("there is no room for all of it");
    EXPECT_TRUE(cache.Settle(kPatience).ok());
    Memory next;
    const RestoreReport report = cache.Restore(tokens, next);
    EXPECT_LT(report.tokens, tokens.size());
    EXPECT_EQ(next.size(), report.tokens);
    Memory expected;
    expected.Compute(std::span(tokens).first(next.size()));
    EXPECT_TRUE(next.rows() == expected.rows());
  }
  EXPECT_TRUE(cache.connected());
}

/// Something that listens where a daemon does, and answers whatever is said with noise.
class Babbler {
 public:
  explicit Babbler(const std::string& socket) : socket_(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0)) {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    const std::string path = socket + ".session";
    std::memcpy(address.sun_path, path.c_str(), path.size() + 1);
    KVTIER_CHECK(::bind(socket_.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0 &&
                 ::listen(socket_.get(), 16) == 0);
    thread_ = std::thread([this] { Run(); });
  }
  ~Babbler() {
    ::shutdown(socket_.get(), SHUT_RDWR);
    thread_.join();
  }
  int sessions() const { return sessions_; }

 private:
  void Run() {
    std::mt19937 random(1);
    std::vector<UniqueFd> taken;  // held open
    for (;;) {
      UniqueFd fd(::accept(socket_.get(), nullptr, nullptr));
      if (!fd.valid()) return;
      std::array<unsigned char, 200> noise{};
      for (unsigned char& byte : noise) byte = static_cast<unsigned char>(random());
      if (::send(fd.get(), noise.data(), noise.size(), MSG_NOSIGNAL) > 0) ++sessions_;
      taken.push_back(std::move(fd));
    }
  }

  const UniqueFd socket_;
  std::atomic<int> sessions_ = 0;
  std::thread thread_;
};

PrefixCacheOptions Impatient(const std::string& socket) {
  PrefixCacheOptions options = Options(socket);
  options.call_timeout = std::chrono::milliseconds(200);
  return options;
}

/// All are short and miss. The way the stores ended.
std::vector<Code> CallsWithoutADaemon(PrefixCache& cache) {
  const std::vector<int32_t> tokens = Tokens(300);
  Memory memory;
  memory.Compute(tokens);
  std::vector<Code> ends;
  for (int turn = 0; turn < 3; ++turn) {
    Memory empty;
    const RestoreReport restored = cache.Restore(tokens, empty);
    EXPECT_EQ(restored.tokens, 0u);
    EXPECT_FALSE(restored.ended.ok());
    EXPECT_LT(restored.took, std::chrono::seconds(5));
    const StoreReport stored = cache.Store(tokens, 0, memory);
    EXPECT_FALSE(stored.ended.ok());
    EXPECT_LT(stored.took, std::chrono::seconds(5));
    ends.push_back(stored.ended.code());
  }
  EXPECT_FALSE(cache.connected());
  return ends;
}

TEST(PrefixCacheAlone, ADaemonThatTalksNonsenseIsNone) {
  const TemporaryFolder folder;
  Babbler babbler(folder.File("kvtierd.sock"));
  const SteadyClock clock;
  PrefixCache cache(Identity(), Impatient(folder.File("kvtierd.sock")), clock);
  CallsWithoutADaemon(cache);
  EXPECT_GE(babbler.sessions(), 1);
}

TEST(PrefixCacheAlone, WithoutADaemonEveryCallIsShort) {
  const TemporaryFolder folder;
  const SteadyClock clock;
  PrefixCache cache(Identity(), Impatient(folder.File("nobody.sock")), clock);
  EXPECT_EQ(CallsWithoutADaemon(cache), std::vector<Code>(3, Code::kUnavailable));
  const Result<uint64_t> stand = cache.Settle(std::chrono::milliseconds(1));
  ASSERT_TRUE(stand.ok());
  EXPECT_EQ(*stand, 0u);
}

}  // namespace
}  // namespace kvtier::llamacpp
