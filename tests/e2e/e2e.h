#pragma once

#include <gtest/gtest.h>
#include <kvtier/kvtier.hpp>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "tests/support/daemon_process.h"
#include "tests/support/eventually.h"

namespace kvtier::e2e {

/// Generous, so that a busy machine is not an error; tests of deadlines set their own.
inline constexpr uint32_t kPatienceMs = 30'000;

/// The model of most tests: blocks of 64 tokens, 128 KiB raw.
inline constexpr uint32_t kLayers = 4, kHeads = 2, kDim = 64, kBlockTokens = 64;
inline constexpr uint64_t kTokenBytes = uint64_t{kLayers} * 2 * kHeads * kDim * 2;
inline constexpr uint64_t kBlockBytes = kTokenBytes * kBlockTokens;
kvtier_model_spec TestSpec(const char* model_id = "e2e");

/// `count` token ids that depend on `seed` in every place.
std::vector<int32_t> Tokens(uint32_t seed, size_t count);

/// K and V of a sequence of test model blocks, fp16, [layer][K, V][head][token][channel], and a view of them.
class Kv {
 public:
  explicit Kv(size_t tokens) : tokens_(tokens), values_(tokens * kTokenBytes / 2), base_(values_.data()) {}
  Kv(const Kv& other) : tokens_(other.tokens_), values_(other.values_), base_(values_.data()) {}
  Kv& operator=(const Kv&) = delete;

  /// Values of a standard normal, other ones for every seed.
  static Kv Random(uint32_t seed, size_t tokens);
  /// Of [first, first + count) tokens; borrows.
  kvtier_view View(size_t first = 0);
  size_t tokens() const { return tokens_; }
  std::vector<uint16_t>& values() { return values_; }
  /// Relative rms distance over tokens [first, first + count), K and V of all layers.
  double ErrorOver(const Kv& other, size_t first, size_t count) const;
  bool SameOver(const Kv& other, size_t first, size_t count) const;

 private:
  template <typename Visit>
  void ForEach(size_t first, size_t count, const Visit& visit) const;

  size_t tokens_;
  std::vector<uint16_t> values_;
  void* base_;
};

/// A connected client with the test model registered.
struct Engine {
  api::Client client;
  api::Model model;

  static api::Outcome<Engine> Connect(const std::string& socket, const kvtier_model_spec& spec = TestSpec(),
                                      uint32_t timeout_ms = kPatienceMs);

  api::Sequence Keys(std::vector<int32_t> tokens) const;
  /// Puts all blocks and waits. Results by block.
  std::vector<kvtier_put_result> Put(const api::Sequence& sequence, Kv& kv,
                                     kvtier_durability durability = KVTIER_MEMORY) const;
  /// Blocks in a row that a lookup finds.
  size_t Hits(const api::Sequence& sequence) const;
  /// Acquires and fetches all that is there into `out`; the results of the blocks held, empty when nothing
  /// hits.
  std::vector<kvtier_block_result> Fetch(const api::Sequence& sequence, Kv& out) const;
  kvtier_stats Stats() const;
};

/// kvtierctl against a daemon.
ProgramResult Ctl(const DaemonProcess& daemon, const std::string& arguments);

/// Lines of /proc: kvtier's memory files that a process has mapped or holds open.
std::vector<std::string> KvtierResources(pid_t pid);

/// One daemon for each test.
class E2eTest : public testing::Test {
 protected:
  void StartDaemon(const DaemonSettings& settings) {
    daemon_ = std::make_unique<DaemonProcess>(settings);
    const Status started = daemon_->Start();
    ASSERT_TRUE(started.ok()) << started.ToString();
  }
  Engine Connect(const kvtier_model_spec& spec = TestSpec()) {
    auto engine = Engine::Connect(daemon_->socket(), spec);
    if (!engine) std::fprintf(stderr, "%s\n%s\n", kvtier_last_error(), daemon_->Log().c_str());
    KVTIER_CHECK(static_cast<bool>(engine));
    return std::move(*engine);
  }
  void TearDown() override {
    if (HasFailure() && daemon_) std::fprintf(stderr, "kvtierd's log:\n%s\n", daemon_->Log().c_str());
  }

  std::unique_ptr<DaemonProcess> daemon_;
};

}  // namespace kvtier::e2e
