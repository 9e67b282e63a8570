// Tenants of one daemon: other users and groups, what they find of each other, what they may use.
#include <grp.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <functional>

#include "tests/e2e/e2e.h"

namespace kvtier::e2e {
namespace {

/// A user of the machine. Nothing of these exists but the numbers.
struct User {
  uid_t uid = 0;
  std::vector<gid_t> gids;
};

class Tenants : public E2eTest {
 protected:
  /// A daemon whose sockets everybody reaches.
  void StartOpenDaemon(DaemonSettings settings) {
    if (::geteuid() != 0) GTEST_SKIP() << "only root becomes other users";
    settings.server_keys += "socket_mode = \"0666\"\n";
    StartDaemon(settings);
    ASSERT_EQ(::chmod(daemon_->folder().path().c_str(), 0711), 0);
  }
  /// What `body` returns, run as the user. Every client of these tests lives in a child: gRPC does not
  /// survive a fork.
  int As(const User& user, const std::function<int()>& body) const {
    const pid_t child = ::fork();
    if (child == 0) {
      const bool is = ::setgroups(user.gids.size(), user.gids.data()) == 0 && ::setgid(user.uid) == 0 &&
                      ::setuid(user.uid) == 0;
      ::_exit(is ? body() : 99);
    }
    int status = 0;
    ::waitpid(child, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
  }
  /// Blocks that the user's puts store.
  int Stores(const User& user, uint32_t seed, int blocks) const {
    return As(user, [&] {
      const auto engine = Engine::Connect(daemon_->socket());
      if (!engine) return 98;
      Kv kv = Kv::Random(seed, blocks * kBlockTokens);
      int stored = 0;
      for (const auto& result : engine->Put(engine->Keys(Tokens(seed, blocks * kBlockTokens)), kv))
        stored += result.code == KVTIER_OK ? 1 : 0;
      return stored;
    });
  }
  /// Blocks of that sequence that the user gets, bit by bit; 97 when one is wrong.
  int Finds(const User& user, uint32_t seed, int blocks) const {
    return As(user, [&] {
      const auto engine = Engine::Connect(daemon_->socket());
      if (!engine) return 98;
      const Kv expected = Kv::Random(seed, blocks * kBlockTokens);
      Kv got(blocks * kBlockTokens);
      const auto results = engine->Fetch(engine->Keys(Tokens(seed, blocks * kBlockTokens)), got);
      for (const auto& result : results) {
        if (result.code != KVTIER_OK) return 96;
      }
      const bool same = expected.SameOver(got, 0, results.size() * kBlockTokens);
      return same ? static_cast<int>(results.size()) : 97;
    });
  }
  kvtier_code ConnectCode(const User& user) const {
    return static_cast<kvtier_code>(As(user, [&] {
      const auto engine = Engine::Connect(daemon_->socket(), TestSpec(), 2'000);
      return static_cast<int>(engine ? KVTIER_OK : engine.code());
    }));
  }
};

constexpr char kTeams[] =
    "[[tenant]]\nname = \"team-a\"\nuids = [41001, 41002]\ngids = [41900]\n"
    "[[tenant]]\nname = \"team-b\"\nuids = [42001]\n";

TEST_F(Tenants, UsersAndGroupsOfOneTenantShareBlocksAndNobodyElseFindsThem) {
  StartOpenDaemon({.more = kTeams});
  if (IsSkipped()) return;
  EXPECT_EQ(Stores({41001, {}}, 1, 3), 3);
  EXPECT_EQ(Finds({41001, {}}, 1, 3), 3);
  EXPECT_EQ(Finds({41002, {}}, 1, 3), 3) << "the other user of the tenant";
  EXPECT_EQ(Finds({43000, {41900}}, 1, 3), 3) << "by one of its groups";
  EXPECT_EQ(Finds({43000, {41901}}, 1, 3), 0) << "a stranger";
  EXPECT_EQ(Finds({42001, {}}, 1, 3), 0) << "the other tenant";
  EXPECT_EQ(Finds({42001, {41900}}, 1, 3), 0) << "its uid goes before its groups";
  EXPECT_EQ(Finds({0, {}}, 1, 3), 0) << "not even root";
  EXPECT_EQ(Stores({42001, {}}, 1, 3), 3) << "the same tokens are other blocks";
  EXPECT_EQ(Stores({43000, {}}, 1, 3), 3);
  const std::string models = Ctl(*daemon_, "models").output;
  for (const char* tenant : {"team-a", "team-b", "uid:43000"})
    EXPECT_NE(models.find(tenant), std::string::npos) << models;
}

TEST_F(Tenants, ABlockIsItsTenantsAfterARestartToo) {
  StartOpenDaemon({.hot_bytes = uint64_t{64} << 20, .cold_bytes = uint64_t{64} << 20, .more = kTeams});
  if (IsSkipped()) return;
  EXPECT_EQ(Stores({41001, {}}, 1, 2), 2);
  EXPECT_EQ(Ctl(*daemon_, "drain").exit_code, 0);
  EXPECT_EQ(daemon_->Stop(), 0);
  ASSERT_TRUE(daemon_->Start().ok());
  const auto hits = [&](const User& user) {
    return As(user, [&] {
      const auto engine = Engine::Connect(daemon_->socket());
      return engine ? static_cast<int>(engine->Hits(engine->Keys(Tokens(1, 2 * kBlockTokens)))) : 98;
    });
  };
  EXPECT_EQ(hits({41002, {}}), 2);
  EXPECT_EQ(hits({42001, {}}), 0);
}

TEST_F(Tenants, StrangersAreRefusedWhereTheConfigurationSaysSo) {
  StartOpenDaemon({.server_keys = "strangers = \"refuse\"\n", .more = kTeams});
  if (IsSkipped()) return;
  EXPECT_EQ(ConnectCode({41001, {}}), KVTIER_OK);
  EXPECT_EQ(ConnectCode({43000, {41900}}), KVTIER_OK);
  EXPECT_EQ(ConnectCode({43000, {}}), KVTIER_PERMISSION_DENIED);
  EXPECT_NE(daemon_->Log().find("user 43000 is of no tenant"), std::string::npos);
  EXPECT_EQ(Ctl(*daemon_, "status").exit_code, 0) << "root may still look";
}

TEST_F(Tenants, AdminsAreThoseOfTheConfigurationAndNobodyElse) {
  StartOpenDaemon({.more = std::string(kTeams) + "[admin]\nuids = [44001]\ngids = [44900]\n"});
  if (IsSkipped()) return;
  EXPECT_EQ(Stores({41001, {}}, 1, 2), 2);
  const auto demotes = [&](const User& user) {
    return As(user, [&] { return Ctl(*daemon_, "evict hot 1").exit_code; });
  };
  EXPECT_NE(demotes({41001, {}}), 0) << "of its own tenant's blocks neither";
  EXPECT_NE(demotes({43000, {}}), 0);
  EXPECT_EQ(Finds({41001, {}}, 1, 2), 2);
  EXPECT_EQ(demotes({44001, {}}), 0);
  EXPECT_EQ(demotes({43000, {44900}}), 0);
  EXPECT_EQ(Finds({41001, {}}, 1, 2), 0);
}

}  // namespace
}  // namespace kvtier::e2e
