#include <gtest/gtest.h>

#include <fstream>

#include "daemon/config/config.h"

namespace kvtier {
namespace {

Result<Config> Parse(const std::string& text) {
  return ParseConfig(text, "kvtier.toml");
}

std::string ErrorOf(const std::string& text) {
  const Result<Config> config = Parse(text);
  return config.ok() ? "accepted" : config.status().message();
}

constexpr char kHot[] = "[tier.hot]\ncapacity = \"1GiB\"\n";

TEST(ConfigTenants, TenantsAreUsersAndGroupsWithAName) {
  const Result<Config> config = Parse(std::string(kHot) +
                                      "[[tenant]]\nname = \"team-a\"\nuids = [1000, 1001]\ngids = [50]\n"
                                      "[[tenant]]\nname = \"uid:7\"\n"
                                      "[admin]\nuids = [990]\ngids = [4, 27]\n");
  ASSERT_TRUE(config.ok()) << config.status().ToString();
  ASSERT_EQ(config->tenants.size(), 2u);
  EXPECT_EQ(config->tenants[0].name, "team-a");
  EXPECT_EQ(config->tenants[0].uids, (std::vector<uint32_t>{1000, 1001}));
  EXPECT_EQ(config->tenants[0].gids, std::vector<uint32_t>{50});
  EXPECT_EQ(config->tenants[1].name, "uid:7");
  EXPECT_EQ(config->admin.uids, std::vector<uint32_t>{990});
  EXPECT_EQ(config->admin.gids, (std::vector<uint32_t>{4, 27}));
  EXPECT_TRUE(config->server.strangers);
  EXPECT_EQ(config->server.socket_mode, 0600u);
}

TEST(ConfigTenants, MistakesAboutTenantsAreToldWithTheirLine) {
  const auto error = [](const std::string& lines) { return ErrorOf(kHot + lines); };
  EXPECT_EQ(error("[[tenant]]\nuids = [1]\n"),
            "kvtier.toml:3: [tenant] name: must be 1 to 64 letters, digits, '.', '_' or '-'; or \"uid:\" and "
            "the number of a user");
  EXPECT_EQ(error("[[tenant]]\nname = \"a\"\n"),
            "kvtier.toml:4: [tenant] name: nobody is of this tenant: it needs uids or gids");
  EXPECT_EQ(error("[[tenant]]\nname = \"a b\"\nuids = [1]\n").substr(0, 35),
            "kvtier.toml:4: [tenant] name: must ");
  EXPECT_EQ(error("[[tenant]]\nname = \"uid:07\"\n").substr(0, 35), "kvtier.toml:4: [tenant] name: must ");
  EXPECT_EQ(error("[[tenant]]\nname = \"other\"\nuids = [1]\n"),
            "kvtier.toml:4: [tenant] name: \"other\" is what metrics call all tenants without a name");
  EXPECT_EQ(
      error("[[tenant]]\nname = \"uid:7\"\nuids = [8]\n"),
      "kvtier.toml:4: [tenant] name: is the tenant of that one user: uids and gids are for tenants with "
      "another name");
  EXPECT_EQ(error("[[tenant]]\nname = \"a\"\nuids = [1]\n[[tenant]]\nname = \"a\"\nuids = [2]\n"),
            "kvtier.toml:7: [tenant] name: another tenant is called \"a\"");
  EXPECT_EQ(error("[[tenant]]\nname = \"a\"\nuids = [1]\n[[tenant]]\nname = \"b\"\nuids = [2, 1]\n"),
            "kvtier.toml:8: [tenant] uids: 1 is of tenant \"a\" already");
  EXPECT_EQ(error("[[tenant]]\nname = \"a\"\ngids = [1]\n[[tenant]]\nname = \"b\"\ngids = [1]\n"),
            "kvtier.toml:8: [tenant] gids: 1 is of tenant \"a\" already");
  EXPECT_EQ(error("[[tenant]]\nname = \"a\"\nuids = [1, 1]\n"),
            "kvtier.toml:5: [tenant] uids: 1 is there twice");
  EXPECT_EQ(error("[[tenant]]\nname = \"a\"\nuids = [4294967295]\n"),
            "kvtier.toml:5: [tenant] uids: must be whole numbers from 0 to 4294967294");
  EXPECT_EQ(error("[[tenant]]\nname = \"a\"\nuids = 1\n"),
            "kvtier.toml:5: [tenant] uids: must be a list of numbers, as [1000, 1001]");
  EXPECT_EQ(error("[[tenant]]\nname = \"a\"\nuid = [1]\n"),
            "kvtier.toml:5: [tenant] uid: unknown key (known: name, uids, gids)");
  EXPECT_EQ(error("[tenant]\nname = \"a\"\n"), "kvtier.toml:3: tenants are written [[tenant]]");
  EXPECT_EQ(error("[admin]\nnames = [\"root\"]\n"),
            "kvtier.toml:4: [admin] names: unknown key (known: uids, gids)");
  EXPECT_EQ(
      ErrorOf("[[tier.cold]]\nmedium = \"cxl\"\ncapacity = \"1GiB\"\nmapped_by = \"a\"\n"),
      "kvtier.toml:4: [tier.cold] mapped_by: must be a tenant: \"uid:\" and the number of a user, or the "
      "name of a [[tenant]]");
  EXPECT_TRUE(Parse("[[tenant]]\nname = \"a\"\nuids = [1]\n[[tier.cold]]\nmedium = \"cxl\"\ncapacity = "
                    "\"1GiB\"\nmapped_by = \"a\"\n")
                  .ok());
  std::string many;
  for (size_t i = 0; i <= kMaxNamedTenants; ++i)
    many += "[[tenant]]\nname = \"t" + std::to_string(i) + "\"\nuids = [" + std::to_string(i) + "]\n";
  EXPECT_EQ(error(many), "kvtier.toml:771: there may be 256 tenants with a name");
}

TEST(ConfigTenants, SocketsAreTheDaemonsUsersUnlessAskedFor) {
  const auto server = [](const std::string& lines) { return Parse("[server]\n" + lines + kHot); };
  EXPECT_EQ(server("socket_mode = \"0660\"\n")->server.socket_mode, 0660u);
  EXPECT_EQ(server("socket_mode = \"0666\"\n")->server.socket_mode, 0666u);
  EXPECT_FALSE(server("strangers = \"refuse\"\n")->server.strangers);
  EXPECT_EQ(
      server("socket_mode = \"0777\"\n").status().message(),
      "kvtier.toml:2: [server] socket_mode: must be \"0600\" (the daemon's user), \"0660\" (and its group) "
      "or \"0666\" (everybody)");
  EXPECT_EQ(server("strangers = true\n").status().message(),
            "kvtier.toml:2: [server] strangers: must be a string");
}

TEST(ConfigTenants, WhatTheShippedExampleShowsCommentedOutWorks) {
  std::ifstream file(KVTIER_EXAMPLE_CONFIG);
  std::string text, line;
  bool shown = false;
  while (std::getline(file, line)) {
    if (line == "# [[tenant]]") shown = true;
    if (line == "[limits]") shown = false;
    const bool is_key = line.find(" = ") != std::string::npos || line.starts_with("# [");
    text += (shown && is_key ? line.substr(2) : line) + "\n";
  }
  const Result<Config> config = Parse(text);
  ASSERT_TRUE(config.ok()) << config.status().ToString();
  ASSERT_EQ(config->tenants.size(), 1u);
  EXPECT_EQ(config->tenants[0].name, "team-a");
  EXPECT_EQ(config->tenants[0].gids, std::vector<uint32_t>{2000});
  EXPECT_EQ(config->admin.gids, std::vector<uint32_t>{990});
}

}  // namespace
}  // namespace kvtier
