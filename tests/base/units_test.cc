#include "tiers/base/units.h"

#include <gtest/gtest.h>

namespace kvtier {
namespace {

TEST(Units, ReadsSizesWithBinaryUnits) {
  EXPECT_EQ(*ParseBytes("1GiB"), uint64_t{1} << 30);
  EXPECT_EQ(*ParseBytes("512 MiB"), uint64_t{512} << 20);
  EXPECT_EQ(*ParseBytes("4KiB"), 4096u);
  EXPECT_EQ(*ParseBytes("2TiB"), uint64_t{2} << 40);
  EXPECT_EQ(*ParseBytes("77B"), 77u);
  EXPECT_EQ(*ParseBytes("123"), 123u);
}

TEST(Units, RefusesWhatIsNoSize) {
  for (const char* text : {"", "MiB", "-1", "1.5GiB", "1GB", "1 gib", "1  GiB", "1GiB ",
                           "99999999999999999999", "16777216TiB"}) {
    EXPECT_EQ(ParseBytes(text).status().message(),
              "\"" + std::string(text) + "\" is not a size (examples: 512MiB, 4GiB, 1048576)");
  }
}

TEST(Units, FormatsSoThatTheSameNumberIsReadBack) {
  for (uint64_t bytes :
       {uint64_t{0}, uint64_t{1}, uint64_t{4096}, uint64_t{4097}, uint64_t{3} << 30, UINT64_MAX}) {
    EXPECT_EQ(*ParseBytes(FormatBytes(bytes)), bytes) << FormatBytes(bytes);
  }
  EXPECT_EQ(FormatBytes(uint64_t{1536} << 20), "1536MiB");
}

TEST(Units, ReadsAddresses) {
  const auto v4 = ParseHostPort("127.0.0.1:9464");
  ASSERT_TRUE(v4.ok());
  EXPECT_EQ(v4->host, "127.0.0.1");
  EXPECT_EQ(v4->port, 9464);
  EXPECT_EQ(ParseHostPort("0.0.0.0:0")->port, 0);
}

TEST(Units, RefusesIpV6BecauseMetricsAreServedOverIpV4Only) {
  for (const std::string text : {"[::1]:9464", "::1:9464", "[::]:0"}) {
    EXPECT_EQ(ParseHostPort(text).status().message(),
              "\"" + text + "\" is an IPv6 address: only IPv4 is served (example: 127.0.0.1:9464)");
  }
}

TEST(Units, RefusesAddressesThatAreNotNumeric) {
  for (const char* text : {"", "9464", "localhost:9464", "[::1:9464", "[127.0.0.1]:1",
                           "127.0.0.1:", "127.0.0.1:70000", "127.0.0.1:-1", "127.0.0.1:1x", ":9464"}) {
    EXPECT_EQ(ParseHostPort(text).status().code(), Code::kInvalidArgument) << text;
  }
}

}  // namespace
}  // namespace kvtier
