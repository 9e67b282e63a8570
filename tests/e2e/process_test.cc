// What a client is to the process that it lives in, and to others: fork, exhaustion, other users.
#include <fcntl.h>
#include <grp.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#include <algorithm>

#include <fstream>
#include <functional>

#include "tests/e2e/e2e.h"

namespace kvtier::e2e {
namespace {

/// Runs `body` in a child as `uid` (0: as it is); its exit code.
int InChild(uid_t uid, const std::function<int()>& body) {
  const pid_t child = ::fork();
  if (child == 0) {
    if (uid != 0 && (::setgroups(0, nullptr) != 0 || ::setgid(uid) != 0 || ::setuid(uid) != 0)) ::_exit(99);
    ::_exit(body());
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

class Processes : public E2eTest {};

// Tests whose children open handles come first: the parent has opened none by then.

TEST_F(Processes, S58_OpenWithFewDescriptorsLeftIsACodeWithText) {
#if defined(__SANITIZE_ADDRESS__)
  std::puts(
      "not run here: the type check of UBSan needs descriptors of its own and takes their lack for a bad "
      "object");
  return;
#endif
  StartDaemon({});
  int opened = 0;
  for (int left = 0; left <= 24; ++left) {
    // A child each, because gRPC takes its first descriptors once in a process.
    const int code = InChild(0, [&] {
      const rlimit limit{.rlim_cur = 128, .rlim_max = 128};
      if (::setrlimit(RLIMIT_NOFILE, &limit) != 0) return 97;
      std::vector<int> taken;
      for (int fd = 0; (fd = ::open("/dev/null", O_RDONLY | O_CLOEXEC)) >= 0;) taken.push_back(fd);
      for (int i = 0; i < left; ++i, taken.pop_back()) ::close(taken.back());
      const kvtier_code answer = Engine::Connect(daemon_->socket()).code();
      const bool says_why = std::string(api::LastError()).find("descriptor") != std::string::npos;
      return answer == KVTIER_OK || says_why ? static_cast<int>(answer) : 98;
    });
    EXPECT_TRUE(code == KVTIER_OK || code == KVTIER_RESOURCE_EXHAUSTED) << left << " left: " << code;
    if (left < 16) {
      EXPECT_EQ(code, KVTIER_RESOURCE_EXHAUSTED) << left << " left";
    }
    opened += code == KVTIER_OK ? 1 : 0;
  }
  EXPECT_GT(opened, 0);
}

TEST_F(Processes, S70_TwoUsersShareNoMemoryAndNoHit) {
  if (::geteuid() != 0) GTEST_FAIL() << "this test starts processes of two users and must run as root";
  StartDaemon({});
  // The daemon's socket is for its own user: let two others in, as an operator would by a group.
  ASSERT_EQ(::chmod(daemon_->folder().path().c_str(), 0755), 0);
  for (const char* name : {"kvtierd.sock", "kvtierd.sock.session"}) {
    ASSERT_EQ(::chmod(daemon_->folder().File(name).c_str(), 0666), 0);
  }
  constexpr uid_t kFirst = 20001, kSecond = 20002;
  const auto open_and_put = [&](uint32_t seed) {
    auto engine = Engine::Connect(daemon_->socket());
    if (!engine) return 10;
    Kv kv = Kv::Random(seed, 4 * kBlockTokens);
    const api::Sequence sequence = engine->Keys(Tokens(1, 4 * kBlockTokens));
    for (const auto& result : engine->Put(sequence, kv)) {
      if (result.code != KVTIER_OK) return 11;  // PRESENT would tell of another tenant's block
    }
    Kv out(4 * kBlockTokens);
    if (engine->Fetch(sequence, out).size() != 4) return 12;
    return out.values() == kv.values() ? 0 : 13;
  };
  EXPECT_EQ(InChild(kFirst, [&] { return open_and_put(1); }), 0);
  EXPECT_EQ(InChild(kSecond, [&] { return open_and_put(2); }), 0);

  const auto inodes_of_arenas = [](const std::vector<std::string>& resources) {
    std::vector<std::string> inodes;
    for (const std::string& line : resources) {
      if (line.find("kvtier-arena") != std::string::npos) inodes.push_back(line);
    }
    return inodes;
  };
  // Both at once: what the one maps, the other neither maps nor holds open; also after everything was
  // evicted.
  const auto stay = [&](int told, int hold, uint32_t seed) {
    auto engine = Engine::Connect(daemon_->socket());
    if (!engine) return 10;
    Kv kv = Kv::Random(seed, 4 * kBlockTokens);
    for (int round = 0; round < 2; ++round) {
      const api::Sequence sequence = engine->Keys(Tokens(seed, 4 * kBlockTokens));
      engine->Put(sequence, kv);
      Kv out(4 * kBlockTokens);
      if (engine->Fetch(sequence, out).size() != 4 || out.values() != kv.values()) return 11;
      (void)kvtier_clear(engine->model.get(), nullptr, 0);
    }
    engine->Put(engine->Keys(Tokens(seed, 4 * kBlockTokens)), kv);
    Kv out(4 * kBlockTokens);
    engine->Fetch(engine->Keys(Tokens(seed, 4 * kBlockTokens)), out);
    if (::write(told, "x", 1) != 1) return 12;
    char byte;
    return ::read(hold, &byte, 1) == 0 ? 0 : 13;
  };
  int told[2], hold[2];
  ASSERT_TRUE(::pipe(told) == 0 && ::pipe(hold) == 0);
  pid_t children[2];
  for (int i = 0; i < 2; ++i) {
    children[i] = ::fork();
    if (children[i] == 0) {
      ::close(hold[1]);
      const uid_t uid = i == 0 ? kFirst : kSecond;
      if (::setgroups(0, nullptr) != 0 || ::setgid(uid) != 0 || ::setuid(uid) != 0) ::_exit(99);
      ::_exit(stay(told[1], hold[0], 50 + static_cast<uint32_t>(i)));
    }
  }
  char byte;
  ASSERT_EQ(::read(told[0], &byte, 1), 1);
  ASSERT_EQ(::read(told[0], &byte, 1), 1);
  const auto first = inodes_of_arenas(KvtierResources(children[0])),
             second = inodes_of_arenas(KvtierResources(children[1]));
  EXPECT_FALSE(first.empty());
  EXPECT_FALSE(second.empty());
  for (const std::string& line : first) {
    EXPECT_NE(line.find(" r--s "), std::string::npos) << "mapped read-only, and no descriptor kept: " << line;
    EXPECT_EQ(std::ranges::count(second, line), 0) << line;
  }
  ::close(hold[1]);
  for (const pid_t child : children) {
    int status = 0;
    ::waitpid(child, &status, 0);
    EXPECT_EQ(WEXITSTATUS(status), 0);
  }
  for (const int fd : {told[0], told[1], hold[0]}) ::close(fd);
}

TEST_F(Processes, S59_AChildKeepsNeitherTheSessionNorItsMappings) {
  StartDaemon({});
  int hold[2];
  ASSERT_EQ(::pipe(hold), 0);
  pid_t grandchild = -1;
  int told[2];
  ASSERT_EQ(::pipe(told), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    auto engine = Engine::Connect(daemon_->socket());
    if (!engine) ::_exit(1);
    const pid_t own = ::fork();
    if (own == 0) {  // outlives the client
      ::close(hold[1]);
      char byte;
      ::_exit(::read(hold[0], &byte, 1) == 0 ? 0 : 1);
    }
    if (::write(told[1], &own, sizeof(own)) != sizeof(own)) ::_exit(1);
    ::close(hold[1]);
    ::pause();
  }
  ASSERT_EQ(::read(told[0], &grandchild, sizeof(grandchild)), static_cast<ssize_t>(sizeof(grandchild)));
  std::ifstream maps("/proc/" + std::to_string(grandchild) + "/maps");
  const std::string text((std::istreambuf_iterator<char>(maps)), std::istreambuf_iterator<char>());
  EXPECT_EQ(text.find("kvtier-staging"), std::string::npos);
  EXPECT_EQ(text.find("kvtier-arena"), std::string::npos);
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
  EXPECT_TRUE(Eventually(1, [&] { return daemon_->Metric("kvtier_sessions").value() == 0; }))
      << "the grandchild holds the session open";
  ::close(hold[1]);
  for (const int fd : {hold[0], told[0], told[1]}) ::close(fd);
}

TEST_F(Processes, S59_TheChildOfAForkIsRefusedAndTheParentGoesOn) {
  StartDaemon({});
  const Engine engine = Connect();
  const api::Sequence sequence = engine.Keys(Tokens(1, 2 * kBlockTokens));
  Kv kv = Kv::Random(1, 2 * kBlockTokens);
  engine.Put(sequence, kv);
  const kvtier_query query = sequence.Query();
  kvtier_lease* lease = nullptr;
  ASSERT_EQ(kvtier_acquire(engine.model.get(), &query, nullptr, &lease), KVTIER_OK);
  Kv out(2 * kBlockTokens);
  const kvtier_view view = out.View();

  const int code = InChild(0, [&] {
    kvtier_lookup_result found{};
    kvtier_block_result results[2];
    kvtier_lease* other = nullptr;
    kvtier_ticket ticket = 0;
    if (kvtier_lookup(engine.model.get(), &query, nullptr, &found, 0) != KVTIER_FAILED_PRECONDITION) return 1;
    if (kvtier_acquire(engine.model.get(), &query, nullptr, &other) != KVTIER_FAILED_PRECONDITION) return 2;
    if (kvtier_fetch(lease, 0, 2, 0, 0, &view, results) != KVTIER_FAILED_PRECONDITION) return 3;
    if (kvtier_put(engine.model.get(), &query, &view, nullptr, &ticket) != KVTIER_FAILED_PRECONDITION)
      return 4;
    if (kvtier_release(lease) != KVTIER_FAILED_PRECONDITION) return 5;
    kvtier_close(engine.client.get());
    if (Engine::Connect(daemon_->socket()).code() != KVTIER_FAILED_PRECONDITION) return 6;
    return 0;
  });
  EXPECT_EQ(code, 0);

  kvtier_block_result results[2];
  EXPECT_EQ(kvtier_fetch(lease, 0, 2, 0, 0, &view, results), KVTIER_OK) << api::LastError();
  EXPECT_EQ(out.values(), kv.values());
  EXPECT_EQ(kvtier_release(lease), KVTIER_OK);
  EXPECT_EQ(engine.Hits(sequence), 2u);
}

TEST_F(Processes, S58_ExhaustedLimitsAreCodes) {
  StartDaemon({.hot_bytes = uint64_t{64} << 20,
               .warm_bytes = 0,
               .cold_bytes = 0,
               .more = "[limits]\nsessions = 2\nmodels_per_session = 2\nleases_per_session = 3\n"});
  const Engine engine = Connect();
  const api::Sequence sequence = engine.Keys(Tokens(1, kBlockTokens));
  Kv kv = Kv::Random(1, kBlockTokens);
  engine.Put(sequence, kv);
  EXPECT_TRUE(engine.client.RegisterModel(TestSpec("second")));
  EXPECT_EQ(engine.client.RegisterModel(TestSpec("third")).code(), KVTIER_RESOURCE_EXHAUSTED);
  std::vector<api::Lease> leases;
  for (int i = 0; i < 3; ++i) {
    auto lease = engine.model.Acquire(sequence.Query());
    ASSERT_TRUE(lease);
    leases.push_back(std::move(*lease));
  }
  EXPECT_EQ(engine.model.Acquire(sequence.Query()).code(), KVTIER_RESOURCE_EXHAUSTED);
  leases.pop_back();
  EXPECT_TRUE(engine.model.Acquire(sequence.Query()));
  const Engine second = Connect();
  EXPECT_EQ(Engine::Connect(daemon_->socket()).code(), KVTIER_RESOURCE_EXHAUSTED);
  EXPECT_EQ(engine.Hits(sequence), 1u) << "who is in stays in";
}

TEST_F(Processes, S58_ModelIdsAreBytesAndTooLongOnesAreCodesWithText) {
  StartDaemon({});
  const Engine engine = Connect();
  EXPECT_TRUE(engine.client.RegisterModel(TestSpec("\xff\xfe"))) << api::LastError();
  const std::string huge(5 << 20, 'x');
  EXPECT_EQ(engine.client.RegisterModel(TestSpec(huge.c_str())).code(), KVTIER_INVALID_ARGUMENT);
  EXPECT_NE(std::string(api::LastError()).find("model_id"), std::string::npos) << api::LastError();
}

TEST_F(Processes, S52_ABlockAboveTheLimitIsATypedError) {
  StartDaemon({.hot_bytes = uint64_t{64} << 20,
               .warm_bytes = 0,
               .cold_bytes = 0,
               .more = "[limits]\nblock = \"128KiB\"\n"});
  const Engine fits = Connect();
  kvtier_model_spec larger = TestSpec("larger");
  larger.layers = kLayers + 1;
  const kvtier_code code = fits.client.RegisterModel(larger).code();
  EXPECT_EQ(code, KVTIER_OUT_OF_RANGE) << kvtier_code_name(code);
}

TEST_F(Processes, OutcomesThatDoNotFitCanBeWaitedForAgain) {
  StartDaemon({});
  const Engine engine = Connect();
  const api::Sequence sequence = engine.Keys(Tokens(1, 3 * kBlockTokens));
  Kv kv = Kv::Random(1, 3 * kBlockTokens);
  const auto ticket = engine.model.Put(sequence.Query(), kv.View());
  ASSERT_TRUE(ticket) << api::LastError();
  std::vector<kvtier_put_result> few(2), all(3);
  EXPECT_EQ(engine.client.Wait(*ticket, few), KVTIER_OUT_OF_RANGE);
  EXPECT_EQ(engine.client.Wait(*ticket, all), KVTIER_OK) << api::LastError();
  for (const kvtier_put_result& result : all) EXPECT_EQ(result.precision, KVTIER_BITS16);
  EXPECT_EQ(engine.client.Wait(*ticket, all), KVTIER_STALE);
}

TEST_F(Processes, TheReadmeExampleRuns) {
  StartDaemon({});
  ::setenv("KVTIER_SOCKET", daemon_->socket().c_str(), 1);
  const ProgramResult result = RunProgram("kvtier_readme_example", "");
  ::unsetenv("KVTIER_SOCKET");
  EXPECT_EQ(result.exit_code, 0) << result.output;
  EXPECT_EQ(result.output, "precision 5, error of K 0.0000\nprecision 5, error of K 0.0000\n");
}

}  // namespace
}  // namespace kvtier::e2e
