#include "daemon/service/identity.h"

#include <grp.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <numeric>

#include "tests/service/session_fixture.h"

namespace kvtier {
namespace {

Peer PeerWith(uint32_t uid, std::vector<uint32_t> gids = {}) {
  return {.uid = uid, .gid = uid, .pid = 1, .gids = std::move(gids)};
}

IdentityOptions TwoTeams() {
  return {.tenants = {{.name = "a", .uids = {1000, 1001}, .gids = {50}},
                      {.name = "b", .uids = {2000}, .gids = {60, 61}}},
          .admin_uids = {3000},
          .admin_gids = {70},
          .own_uid = 900,
          .unmapped_id = std::nullopt};
}

std::string TenantIn(const IdentityOptions& options, const Peer& peer) {
  const auto identity = IdentityMap(options).Identify(peer);
  return identity.ok() ? identity->tenant : std::string(CodeName(identity.status().code()));
}

TEST(Identity, AUserIsOfTheTenantThatNamesIt) {
  EXPECT_EQ(TenantIn(TwoTeams(), PeerWith(1001)), "a");
  EXPECT_EQ(TenantIn(TwoTeams(), PeerWith(2000)), "b");
}

TEST(Identity, GroupsSelectForWhomNoTenantNames) {
  EXPECT_EQ(TenantIn(TwoTeams(), PeerWith(5, {7, 61})), "b");
  EXPECT_EQ(TenantIn(TwoTeams(), PeerWith(5, {60, 50})), "a") << "of several the first in the file";
  EXPECT_EQ(TenantIn(TwoTeams(), PeerWith(2000, {50})), "b") << "its uid goes before its groups";
}

TEST(Identity, AStrangerIsATenantOfItsOwnOrRefused) {
  EXPECT_EQ(TenantIn(TwoTeams(), PeerWith(5, {7})), "uid:5");
  IdentityOptions closed = TwoTeams();
  closed.strangers = false;
  const auto refused = IdentityMap(closed).Identify(PeerWith(5, {7}));
  EXPECT_EQ(refused.status().code(), Code::kPermissionDenied);
  EXPECT_EQ(refused.status().message(), "user 5 is of no tenant that this daemon serves");
  EXPECT_EQ(TenantIn(closed, PeerWith(1000)), "a");
  EXPECT_EQ(TenantIn(closed, PeerWith(0)), "uid:0") << "kvtierctl of root";
}

TEST(Identity, AdminsAreRootTheDaemonsUserAndThoseNamed) {
  const IdentityMap map(TwoTeams());
  for (const uint32_t admin : {0u, 900u, 3000u}) EXPECT_TRUE(map.Identify(PeerWith(admin))->admin) << admin;
  EXPECT_TRUE(map.Identify(PeerWith(1000, {70}))->admin);
  EXPECT_EQ(map.Identify(PeerWith(1000, {70}))->tenant, "a") << "an admin's blocks are its tenant's";
  EXPECT_FALSE(map.Identify(PeerWith(1000, {50}))->admin);
  EXPECT_FALSE(map.Identify(PeerWith(1001, {}))->admin);
}

TEST(Identity, WhomTheKernelCannotNameIsNobody) {
  EXPECT_EQ(IdentityMap(TwoTeams()).Identify(PeerWith(UINT32_MAX)).status().code(), Code::kUnauthenticated);
  IdentityOptions options = TwoTeams();
  options.tenants[0].uids.push_back(65534);
  options.tenants[1].gids.push_back(65534);
  options.admin_gids.push_back(65534);
  EXPECT_EQ(TenantIn(options, PeerWith(65534)), "a") << "where every user is known this is one of them";
  options.unmapped_id = 65534;
  EXPECT_EQ(IdentityMap(options).Identify(PeerWith(65534)).status().code(), Code::kUnauthenticated);
  EXPECT_EQ(TenantIn(options, PeerWith(5, {65534})), "uid:5");
  EXPECT_FALSE(IdentityMap(options).Identify(PeerWith(5, {65534}))->admin);
}

TEST(Identity, AUserNamespaceWithAllUsersIsToldFromOneWithFew) {
  EXPECT_TRUE(MapsEveryId("         0          0 4294967295\n"));
  EXPECT_FALSE(MapsEveryId("         0     100000      65536\n"));
  EXPECT_FALSE(MapsEveryId("       900        900          1\n         0          0          1\n"));
  EXPECT_FALSE(MapsEveryId(""));
}

TEST(Identity, GroupsComeFromTheKernel) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root takes groups at will";
  const auto count_in_child = [](size_t count) {
    const pid_t child = ::fork();
    if (child == 0) {
      std::vector<gid_t> groups(count);
      std::iota(groups.begin(), groups.end(), 10'000);
      std::array<int, 2> own;
      // The kernel records who makes the pair.
      const bool made = ::setgroups(groups.size(), groups.data()) == 0 && ::setgid(77) == 0 &&
                        ::socketpair(AF_UNIX, SOCK_SEQPACKET, 0, own.data()) == 0;
      const std::vector<uint32_t> gids = made ? GroupsOf(own[0], PeerOf(own[0])) : std::vector<uint32_t>();
      const bool all = gids.size() == count + 1 && gids.back() == 77 &&
                       std::equal(groups.begin(), groups.end(), gids.begin());
      ::_exit(all ? 0 : 1);
    }
    int status = -1;
    ::waitpid(child, &status, 0);
    return status;
  };
  for (const size_t count : {0, 1, 64, 65, 1000}) EXPECT_EQ(count_in_child(count), 0) << count << " groups";
}

using SessionIdentity = SessionFixture;

TEST_F(SessionIdentity, APeerIsOfTheTenantThatItsUserOrGroupSelects) {
  options_.identity.own_uid = ::geteuid() + 1;
  options_.identity.tenants = {{.name = "team", .uids = {}, .gids = {::getegid()}}};
  Start();
  RawClient client = Open();
  const auto session = registry_.Find(welcome_.session_token());
  ASSERT_NE(session, nullptr);
  EXPECT_EQ(session->tenant_name, "team");
  EXPECT_EQ(session->uid, ::geteuid());
  EXPECT_EQ(session->pid, ::getpid());
  EXPECT_EQ(session->admin, ::geteuid() == 0);
  EXPECT_EQ(engine_->opened().at(0).tenant_name, "team");
}

TEST_F(SessionIdentity, AStrangerIsRefusedWithAReasonWhereTheConfigurationSaysSo) {
  if (::geteuid() == 0) GTEST_SKIP() << "root is no stranger; the end-to-end tests have others";
  options_.identity.own_uid = ::geteuid() + 1;
  options_.identity.strangers = false;
  Start();
  RawClient client = RawClient::Connect(options_.socket_path);
  ASSERT_TRUE(client.Hello());
  EXPECT_NE(RefusalOf(client).find("is of no tenant"), std::string::npos);
}

}  // namespace
}  // namespace kvtier
