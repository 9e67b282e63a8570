#include "daemon/config/config.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <fstream>

namespace kvtier {
namespace {

Result<Config> Parse(std::string_view text) {
  return ParseConfig(text, "kvtier.toml");
}

std::string ErrorOf(std::string_view text) {
  const Result<Config> config = Parse(text);
  return config.ok() ? "accepted" : config.status().message();
}

constexpr char kLadder[] = R"([server]
socket = "/run/kvtier/kvtierd.sock"
[tier.hot]
medium = "host"
capacity = "1GiB"
[tier.warm]
capacity = "4GiB"
[[tier.cold]]
medium = "nvme"
path = "/var/lib/kvtier"
capacity = "64GiB"
tails = "never"
[metrics]
listen = "127.0.0.1:9464"
)";

TEST(Config, ReadsTheWholeLadder) {
  const Result<Config> config = Parse(kLadder);
  ASSERT_TRUE(config.ok()) << config.status().ToString();
  EXPECT_EQ(config->server.socket, "/run/kvtier/kvtierd.sock");
  ASSERT_EQ(config->tiers.size(), 3u);
  EXPECT_EQ(config->tiers[0].name, "hot");
  EXPECT_EQ(config->tiers[0].kind, MediumKind::kHost);
  EXPECT_EQ(config->tiers[0].capacity_bytes, uint64_t{1} << 30);
  EXPECT_EQ(config->tiers[0].codec, CodecId::kRaw16);
  EXPECT_EQ(config->tiers[1].name, "warm");
  EXPECT_EQ(config->tiers[1].codec, CodecId::kKv4p);
  EXPECT_EQ(config->tiers[2].name, "cold");
  EXPECT_EQ(config->tiers[2].kind, MediumKind::kNvme);
  EXPECT_EQ(config->tiers[2].codec, CodecId::kKv2p);
  EXPECT_EQ(config->tiers[2].path, "/var/lib/kvtier");
  EXPECT_EQ(config->limits.keys_per_call, 4096u);
  EXPECT_TRUE(config->metrics.enabled);
  EXPECT_EQ(config->metrics.port, 9464);
}

TEST(Config, ACxlTierIsAPathANodeOrWhatIsThere) {
  const char* const start = "[[tier.cold]]\nmedium = \"cxl\"\ncapacity = \"1GiB\"\n";
  const auto cxl = [&](const std::string& lines) {
    const Result<Config> config = Parse(start + lines);
    EXPECT_TRUE(config.ok()) << config.status().ToString();
    return config.ok() ? config->tiers.at(0) : TierConfig{};
  };
  EXPECT_EQ(cxl("").name, "cxl");
  EXPECT_EQ(cxl("").kind, MediumKind::kCxl);
  EXPECT_EQ(cxl("").cxl_source, CxlKind::kAuto);
  EXPECT_EQ(cxl("path = \"auto\"").path, "");
  EXPECT_EQ(cxl("path = \"/dev/dax0.0\"").path, "/dev/dax0.0");
  EXPECT_EQ(cxl("source = \"fsdax\"\npath = \"/mnt\"").cxl_source, CxlKind::kFsDax);
  EXPECT_EQ(cxl("numa_node = 2").numa_node, 2u);
  EXPECT_EQ(cxl("source = \"numa\"").cxl_source, CxlKind::kNuma);
  EXPECT_EQ(cxl("").mapped_by, "");
  EXPECT_EQ(cxl("mapped_by = \"\"").mapped_by, "");
  EXPECT_EQ(cxl("mapped_by = \"uid:1000\"").mapped_by, "uid:1000");
}

TEST(Config, CxlGoesAboveNvme) {
  const Result<Config> config = Parse(
      "[[tier.cold]]\nmedium = \"cxl\"\npath = \"/x\"\ncapacity = \"1GiB\"\n"
      "[[tier.cold]]\npath = \"/y\"\ncapacity = \"2GiB\"\n");
  ASSERT_TRUE(config.ok()) << config.status().ToString();
  ASSERT_EQ(config->tiers.size(), 2u);
  EXPECT_EQ(config->tiers[0].name, "cxl");
  EXPECT_EQ(config->tiers[1].name, "cold");
}

TEST(Config, TailsAreKeptWhileThereIsRoomUnlessTheFileSaysNever) {
  const std::string cold = "[[tier.cold]]\npath = \"/x\"\ncapacity = \"1GiB\"\n";
  EXPECT_TRUE(Parse(cold)->tiers[0].keep_tails);
  EXPECT_TRUE(Parse(cold + "tails = \"while_room\"\n")->tiers[0].keep_tails);
  EXPECT_FALSE(Parse(cold + "tails = \"never\"\n")->tiers[0].keep_tails);
}

TEST(Config, AHotTierMayBeOnAGpu) {
  const auto config = ParseConfig("[tier.hot]\nmedium = \"gpu:3\"\ncapacity = \"1GiB\"\n", "kvtier.toml");
  ASSERT_TRUE(config.ok()) << config.status().ToString();
  EXPECT_EQ(config->tiers[0].gpu, 3u);
  const auto host = ParseConfig("[tier.hot]\nmedium = \"host\"\ncapacity = \"1GiB\"\n", "kvtier.toml");
  EXPECT_EQ(host.value().tiers[0].gpu, std::nullopt);
}

TEST(Config, AnySingleTierIsEnough) {
  for (const char* text : {"[tier.hot]\ncapacity = \"64MiB\"", "[tier.warm]\ncapacity = 67108864",
                           "[[tier.cold]]\npath = \"/x\"\ncapacity = \"1GiB\""}) {
    const Result<Config> config = Parse(text);
    ASSERT_TRUE(config.ok()) << config.status().ToString();
    EXPECT_EQ(config->tiers.size(), 1u);
  }
}

TEST(Config, TiersComeHighestFirstWhateverTheOrderInTheFile) {
  const Result<Config> config = Parse(
      "[[tier.cold]]\npath = \"/x\"\ncapacity = \"1GiB\"\n[tier.warm]\ncapacity = "
      "\"1GiB\"\n[tier.hot]\ncapacity = \"1GiB\"");
  ASSERT_TRUE(config.ok()) << config.status().ToString();
  ASSERT_EQ(config->tiers.size(), 3u);
  EXPECT_EQ(config->tiers[0].name, "hot");
  EXPECT_EQ(config->tiers[1].name, "warm");
  EXPECT_EQ(config->tiers[2].name, "cold");
}

TEST(Config, EveryKeyArrives) {
  const Result<Config> config = Parse(R"(
[server]
socket = "/s"
workers = 3
staging = "8MiB"
staging_total = "80MiB"
default_deadline_ms = 250
log_level = "debug"
landing = "256MiB"
io = "sync"
[tier.hot]
capacity = "1GiB"
codec = "kv4p"
high_watermark = 0.8
low_watermark = 0.7
[[tier.cold]]
path = "/c"
capacity = "2GiB"
segment = "16MiB"
codec = "kv42"
direct_io = false
scrub_rate = "2MiB"
admission = "frequency"
write_budget = "3GiB"
rewrite_share = 0.25
[limits]
sessions = 5
models_per_session = 6
leases_per_session = 7
lease_share = 0.5
lease_ttl_ms = 800
max_lease_ttl_ms = 900
keys_per_call = 10
block = "11MiB"
command_queue = 64
jobs_in_flight = 13
max_blocks = 14
[metrics]
listen = "off"
)");
  ASSERT_TRUE(config.ok()) << config.status().ToString();
  EXPECT_EQ(config->server.socket, "/s");
  EXPECT_EQ(config->server.workers, 3u);
  EXPECT_EQ(config->server.staging_bytes, uint64_t{8} << 20);
  EXPECT_EQ(config->server.staging_total_bytes, uint64_t{80} << 20);
  EXPECT_EQ(config->server.default_deadline_ms, 250u);
  EXPECT_EQ(config->server.log_level, "debug");
  EXPECT_EQ(config->server.landing_bytes, uint64_t{256} << 20);
  EXPECT_EQ(config->server.io, BlockIoKind::kSync);
  EXPECT_EQ(config->tiers[0].codec, CodecId::kKv4p);
  EXPECT_DOUBLE_EQ(config->tiers[0].high_watermark, 0.8);
  EXPECT_DOUBLE_EQ(config->tiers[0].low_watermark, 0.7);
  EXPECT_EQ(config->tiers[1].codec, CodecId::kKv42);
  EXPECT_EQ(config->tiers[1].segment_bytes, uint64_t{16} << 20);
  EXPECT_FALSE(config->tiers[1].direct_io);
  EXPECT_EQ(config->tiers[1].scrub_bytes_per_second, uint64_t{2} << 20);
  EXPECT_DOUBLE_EQ(config->tiers[1].rewrite_share, 0.25);
  EXPECT_TRUE(config->tiers[1].admission.by_frequency);
  EXPECT_EQ(config->tiers[1].admission.write_bytes_per_day, uint64_t{3} << 30);
  EXPECT_EQ(config->limits.sessions, 5u);
  EXPECT_EQ(config->limits.models_per_session, 6u);
  EXPECT_EQ(config->limits.leases_per_session, 7u);
  EXPECT_DOUBLE_EQ(config->limits.lease_share, 0.5);
  EXPECT_EQ(config->limits.lease_ttl_ms, 800u);
  EXPECT_EQ(config->limits.max_lease_ttl_ms, 900u);
  EXPECT_EQ(config->limits.keys_per_call, 10u);
  EXPECT_EQ(config->limits.block_bytes, uint64_t{11} << 20);
  EXPECT_EQ(config->limits.command_queue, 64u);
  EXPECT_EQ(config->limits.jobs_in_flight, 13u);
  EXPECT_EQ(config->limits.max_blocks, 14u);
  EXPECT_FALSE(config->metrics.enabled);
}

struct BadConfig {
  const char* name;
  std::string text;
  std::string error;
};

class BadConfigs : public testing::TestWithParam<BadConfig> {};

TEST_P(BadConfigs, AreRefusedWithOneClearLine) {
  EXPECT_EQ(ErrorOf(GetParam().text), GetParam().error);
  EXPECT_EQ(GetParam().error.find('\n'), std::string::npos);
}

std::string Hot(const std::string& lines) {
  return "[tier.hot]\ncapacity = \"1GiB\"\n" + lines;
}
std::string Cold(const std::string& lines) {
  return "[[tier.cold]]\npath = \"/c\"\ncapacity = \"1GiB\"\n" + lines;
}
std::string Cxl(const std::string& lines) {
  return "[[tier.cold]]\nmedium = \"cxl\"\ncapacity = \"1GiB\"\n" + lines;
}
std::string Server(const std::string& line) {
  return "[server]\n" + line + "\n" + Hot("");
}
std::string Limits(const std::string& line) {
  return "[limits]\n" + line + "\n" + Hot("");
}

INSTANTIATE_TEST_SUITE_P(
    All, BadConfigs,
    testing::Values(
        BadConfig{"Empty", "",
                  "kvtier.toml: no tier: write at least one of [tier.hot], [tier.warm], [[tier.cold]]"},
        BadConfig{
            "UnknownSection", "[serve]\n",
            "kvtier.toml:1: unknown section or key \"serve\" (known sections: server, tier.hot, tier.warm, "
            "tier.cold, tenant, admin, limits, metrics)"},
        BadConfig{"SectionThatIsAValue", "server = 1\n", "kvtier.toml:1: [server] must be a table"},
        BadConfig{"UnknownKey", "[metrics]\n\nlisten = \"off\"\nport = 1\n",
                  "kvtier.toml:4: [metrics] port: unknown key (known: listen)"},
        BadConfig{"UnknownTier", "[tier.tepid]\ncapacity = 1\n",
                  "kvtier.toml:1: unknown tier [tier.tepid] (known: hot, warm, cold)"},
        BadConfig{"ColdAsOneTable", "[tier.cold]\npath = \"/c\"\n",
                  "kvtier.toml:1: cold tiers are written [[tier.cold]]"},
        BadConfig{"HotAsAnArray", "[[tier.hot]]\ncapacity = 1\n",
                  "kvtier.toml:1: [tier.hot] must be one table"},
        BadConfig{"NulByteInAPath", "[server]\nsocket = \"/s\\u0000x\"\n",
                  "kvtier.toml:2: [server] socket: must not contain a NUL byte"},
        BadConfig{"BlockThatFitsIntoNoSegment", "[limits]\nblock = \"8MiB\"\n" + Cold("segment = \"1MiB\"\n"),
                  "kvtier.toml:2: [limits] block: blocks of 8MiB in kv2p do not fit into segments of 1MiB of "
                  "tier cold"},
        BadConfig{"TwoColdTiers", Cold(Cold("")), "kvtier.toml: two cold tiers of one medium"},
        BadConfig{"CxlBelowNvme", Cold(Cxl("")),
                  "kvtier.toml: a cold tier of medium cxl goes above one of nvme"},
        BadConfig{"NoTenant", Cxl("mapped_by = \"me\""),
                  "kvtier.toml:4: [tier.cold] mapped_by: must be a tenant: \"uid:\" and the number of a "
                  "user, or the "
                  "name of a [[tenant]]"},
        BadConfig{"ATenantSpelledAnotherWay", Cxl("mapped_by = \"uid:01\""),
                  "kvtier.toml:4: [tier.cold] mapped_by: must be a tenant: \"uid:\" and the number of a "
                  "user, or the "
                  "name of a [[tenant]]"},
        BadConfig{"NoCapacity", "[tier.hot]\n", "kvtier.toml:1: [tier.hot] capacity: is required"},
        BadConfig{
            "CapacityThatIsNoSize", "[tier.hot]\ncapacity = \"12XB\"\n",
            "kvtier.toml:2: [tier.hot] capacity: \"12XB\" is not a size (examples: 512MiB, 4GiB, 1048576)"},
        BadConfig{"CapacityOfAnotherType", "[tier.hot]\ncapacity = true\n",
                  "kvtier.toml:2: [tier.hot] capacity: must be a size (examples: 512MiB, 4GiB, 1048576)"},
        BadConfig{"NegativeCapacity", "[tier.hot]\ncapacity = -1\n",
                  "kvtier.toml:2: [tier.hot] capacity: must be a size (examples: 512MiB, 4GiB, 1048576)"},
        BadConfig{"CapacityTooSmall", "[tier.hot]\ncapacity = \"1MiB\"\n",
                  "kvtier.toml:2: [tier.hot] capacity: must be from 16MiB to 64TiB"},
        BadConfig{"GpuWithoutNumber", Hot("medium = \"gpu:\"\n"),
                  "kvtier.toml:3: [tier.hot] medium: must be \"gpu:\" and a number from 0 to 63"},
        BadConfig{"GpuOfNoMachine", Hot("medium = \"gpu:64\"\n"),
                  "kvtier.toml:3: [tier.hot] medium: must be \"gpu:\" and a number from 0 to 63"},
        BadConfig{"WarmOnAGpu", "[tier.warm]\ncapacity = \"64MiB\"\nmedium = \"gpu:0\"\n",
                  "kvtier.toml:3: [tier.warm] medium: unknown medium \"gpu:0\" (known here: host)"},
        BadConfig{"UnknownHostMedium", Hot("medium = \"tape\"\n"),
                  "kvtier.toml:3: [tier.hot] medium: unknown medium \"tape\" (known here: host, gpu:N)"},
        BadConfig{"MediumOfAnotherType", Hot("medium = 3\n"),
                  "kvtier.toml:3: [tier.hot] medium: must be a string"},
        BadConfig{"UnknownCxlSource", Cxl("source = \"tape\"\n"),
                  "kvtier.toml:4: [tier.cold] source: must be \"auto\", \"devdax\", \"fsdax\", \"file\" or "
                  "\"numa\""},
        BadConfig{"CxlPathAndNode", Cxl("path = \"/dev/dax0.0\"\nnuma_node = 1\n"),
                  "kvtier.toml:5: [tier.cold] numa_node: memory of a NUMA node has no path"},
        BadConfig{"CxlFileWithoutPath", Cxl("source = \"file\"\n"),
                  "kvtier.toml:4: [tier.cold] source: a file needs a path"},
        BadConfig{"CxlNodeOfADevice", Cxl("source = \"devdax\"\nnuma_node = 1\n"),
                  "kvtier.toml:5: [tier.cold] numa_node: numa_node is for source = \"numa\""},
        BadConfig{
            "NvmeKeyInCxl", Cxl("direct_io = true\n"),
            "kvtier.toml:4: [tier.cold] direct_io: unknown key (known: medium, source, path, numa_node, "
            "mapped_by, segment, capacity, scrub_rate, rewrite_share, admission, write_budget, codec, "
            "high_watermark, low_watermark)"},
        BadConfig{"UnknownColdMedium", Cold("medium = \"host\"\n"),
                  "kvtier.toml:4: [tier.cold] medium: unknown medium \"host\" (known here: cxl, nvme)"},
        BadConfig{"UnknownAdmission", Cold("admission = \"some\"\n"),
                  "kvtier.toml:4: [tier.cold] admission: must be \"all\" or \"frequency\""},
        BadConfig{"RewriteShareOfAll", Cold("rewrite_share = 1.0\n"),
                  "kvtier.toml:4: [tier.cold] rewrite_share: must be a number from 0 to 0.75"},
        BadConfig{"WriteBudgetThatIsNoSize", Cold("write_budget = \"much\"\n"),
                  "kvtier.toml:4: [tier.cold] write_budget: \"much\" is not a size (examples: 512MiB, 4GiB, "
                  "1048576)"},
        BadConfig{"UnknownTails", Cold("tails = \"sometimes\"\n"),
                  "kvtier.toml:4: [tier.cold] tails: must be \"never\" or \"while_room\""},
        BadConfig{"ColdWithoutPath", "[[tier.cold]]\ncapacity = \"1GiB\"\n",
                  "kvtier.toml:1: [tier.cold] path: is required"},
        BadConfig{"SegmentNotAligned", Cold("segment = 1048577\n"),
                  "kvtier.toml:4: [tier.cold] segment: must be a multiple of 4KiB"},
        BadConfig{"SegmentTooLargeForTheTier", Cold("segment = \"512MiB\"\n"),
                  "kvtier.toml:4: [tier.cold] segment: capacity must hold at least four segments"},
        BadConfig{"HostKeyInCold", Cold("watermark = 1\n"),
                  "kvtier.toml:4: [tier.cold] watermark: unknown key (known: medium, path, direct_io, "
                  "tails, segment, capacity, scrub_rate, rewrite_share, admission, write_budget, codec, "
                  "high_watermark, low_watermark)"},
        BadConfig{"WatermarksCrossed", Hot("high_watermark = 0.5\nlow_watermark = 0.6\n"),
                  "kvtier.toml:4: [tier.hot] low_watermark: low_watermark must be below high_watermark"},
        BadConfig{"WatermarkAboveOne", Hot("high_watermark = 1.5\n"),
                  "kvtier.toml:3: [tier.hot] high_watermark: must be a number above 0 and at most 1"},
        BadConfig{"WatermarkThatIsNoNumber", Hot("high_watermark = nan\n"),
                  "kvtier.toml:3: [tier.hot] high_watermark: must be a number above 0 and at most 1"},
        BadConfig{"LadderGoesUp", Hot("codec = \"kv2p\"\n[tier.warm]\ncapacity = \"1GiB\"\n"),
                  "kvtier.toml: tier warm (codec kv4p) is more exact than tier hot above it (codec kv2p)"},
        BadConfig{
            "SocketPathTooLong", Server("socket = \"/" + std::string(99, 'x') + "\""),
            "kvtier.toml:2: [server] socket: the path has 100 bytes; UNIX sockets allow 99 here (107 less "
            "\".session\")"},
        BadConfig{"SocketEmpty", Server("socket = \"\""),
                  "kvtier.toml:2: [server] socket: must not be empty"},
        BadConfig{"TooManyWorkers", Server("workers = 65"),
                  "kvtier.toml:2: [server] workers: must be a whole number from 0 to 64"},
        BadConfig{"WorkersNegative", Server("workers = -1"),
                  "kvtier.toml:2: [server] workers: must be a whole number from 0 to 64"},
        BadConfig{"WorkersNotWhole", Server("workers = 1.5"),
                  "kvtier.toml:2: [server] workers: must be a whole number from 0 to 64"},
        BadConfig{
            "StagingTotalBelowStaging", Server("staging_total = \"1MiB\""),
            "kvtier.toml:2: [server] staging_total: staging_total is smaller than staging of one session"},
        BadConfig{"StagingNotAligned", Server("staging = 1048577"),
                  "kvtier.toml:2: [server] staging: staging must be a multiple of 4KiB"},
        BadConfig{"DeadlineZero", Server("default_deadline_ms = 0"),
                  "kvtier.toml:2: [server] default_deadline_ms: must be a whole number from 1 to 60000"},
        BadConfig{"LogLevel", Server("log_level = \"loud\""),
                  "kvtier.toml:2: [server] log_level: must be one of trace, debug, info, warn, error, off"},
        BadConfig{"Io", Server("io = \"aio\""),
                  "kvtier.toml:2: [server] io: must be \"auto\", \"io_uring\" or \"sync\""},
        BadConfig{"TooManyKeysPerCall", Limits("keys_per_call = 4097"),
                  "kvtier.toml:2: [limits] keys_per_call: must be a whole number from 1 to 4096"},
        BadConfig{"LeaseTtlAboveItsMaximum", Limits("lease_ttl_ms = 70000"),
                  "kvtier.toml:2: [limits] lease_ttl_ms: lease_ttl_ms is above max_lease_ttl_ms"},
        BadConfig{"LeaseShareZero", Limits("lease_share = 0"),
                  "kvtier.toml:2: [limits] lease_share: must be a number above 0 and at most 1"},
        BadConfig{"ListenByName", "[metrics]\nlisten = \"localhost:9464\"\n" + Hot(""),
                  "kvtier.toml:2: [metrics] listen: \"localhost:9464\" is not an address and port (example: "
                  "127.0.0.1:9464)"}),
    [](const auto& info) { return info.param.name; });

TEST(Config, NamesTheCodecsThereAre) {
  const std::string error = ErrorOf(Hot("codec = \"mp3\"\n"));
  EXPECT_EQ(
      error.find(
          "kvtier.toml:3: [tier.hot] codec: unknown codec \"mp3\" (known: raw16, kv8, kv4p, kv42, kv2p)"),
      0u)
      << error;
}

TEST(Config, TakesEightBitsForATierButNotTheEnginesOwnFp8) {
  const Result<Config> config = Parse(Hot("codec = \"kv8\"\n"));
  ASSERT_TRUE(config.ok()) << config.status().ToString();
  EXPECT_EQ(config->tiers[0].codec, CodecId::kKv8);
  EXPECT_EQ(ErrorOf(Hot("codec = \"raw8\"\n")),
            "kvtier.toml:3: [tier.hot] codec: raw8 is not for tiers: a tier of raw16 or kv8 keeps FP8 blocks "
            "as the "
            "engine gave them");
}

TEST(Config, RefusesEightBitsBelowATierOfFewer) {
  const std::string error =
      ErrorOf(Hot("codec = \"kv4p\"\n[tier.warm]\ncapacity = \"1GiB\"\ncodec = \"kv8\"\n"));
  EXPECT_EQ(error, "kvtier.toml: tier warm (codec kv8) is more exact than tier hot above it (codec kv4p)");
}

TEST(Config, SyntaxErrorsHaveALine) {
  const std::string error = ErrorOf("[server]\nsocket = \n");
  EXPECT_EQ(error.find("kvtier.toml:2: "), 0u) << error;
}

TEST(Config, DuplicateKeysAreSyntaxErrors) {
  const std::string error = ErrorOf("[server]\nworkers = 1\nworkers = 2\n");
  EXPECT_EQ(error.find("kvtier.toml:3: "), 0u) << error;
}

TEST(Config, BytesThatAreNoTextAreRefused) {
  EXPECT_EQ(Parse(std::string_view("\x00\xff\xfe", 3)).status().code(), Code::kInvalidArgument);
}

TEST(Config, AMissingFileIsNamed) {
  const Result<Config> config = LoadConfig("no/such/kvtier.toml");
  EXPECT_EQ(config.status().code(), Code::kNotFound);
  EXPECT_NE(config.status().message().find("no/such/kvtier.toml"), std::string::npos);
}

TEST(Config, TheShippedExampleIsValid) {
  const Result<Config> config = LoadConfig(KVTIER_EXAMPLE_CONFIG);
  ASSERT_TRUE(config.ok()) << config.status().ToString();
  EXPECT_EQ(config->tiers.size(), 3u);
}

TEST(Config, TheShippedExampleDocumentsEveryKey) {
  std::ifstream file(KVTIER_EXAMPLE_CONFIG);
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  for (const char* key : {"socket",
                          "socket_mode",
                          "strangers",
                          "workers",
                          "staging",
                          "staging_total",
                          "default_deadline_ms",
                          "log_level",
                          "landing",
                          "io",
                          "medium",
                          "capacity",
                          "codec",
                          "high_watermark",
                          "low_watermark",
                          "path",
                          "segment",
                          "direct_io",
                          "scrub_rate",
                          "rewrite_share",
                          "admission",
                          "write_budget",
                          "tails",
                          "sessions",
                          "models_per_session",
                          "leases_per_session",
                          "lease_share",
                          "lease_ttl_ms",
                          "max_lease_ttl_ms",
                          "keys_per_call",
                          "block",
                          "command_queue",
                          "jobs_in_flight",
                          "max_blocks",
                          "listen"}) {
    EXPECT_NE(text.find("\n" + std::string(key) + " = "), std::string::npos) << key;
  }
}

}  // namespace
}  // namespace kvtier
