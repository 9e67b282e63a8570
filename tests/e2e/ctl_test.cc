// kvtierctl against a real daemon.
#include <unistd.h>

#include <algorithm>
#include <fstream>

#include "tests/e2e/e2e.h"

namespace kvtier::e2e {
namespace {

class CtlTest : public E2eTest {};

TEST_F(CtlTest, ShowsWhatIsThereForPeopleAndAsJson) {
  StartDaemon(
      {.hot_bytes = uint64_t{64} << 20, .warm_bytes = uint64_t{32} << 20, .cold_bytes = 0, .more = {}});
  const Engine engine = Connect();
  Kv kv = Kv::Random(1, 3 * kBlockTokens);
  engine.Put(engine.Keys(Tokens(1, 3 * kBlockTokens)), kv);

  const ProgramResult status = Ctl(*daemon_, "status");
  EXPECT_EQ(status.exit_code, 0);
  EXPECT_NE(status.output.find("3 blocks of 1 models"), std::string::npos) << status.output;
  const ProgramResult json = Ctl(*daemon_, "--json status");
  EXPECT_NE(json.output.find("\"blocks\":3,\"models\":1"), std::string::npos) << json.output;
  EXPECT_NE(json.output.find("\"name\":\"warm\""), std::string::npos) << json.output;
  const ProgramResult tiers = Ctl(*daemon_, "tiers --json");
  EXPECT_NE(tiers.output.find("\"blocks\":{\"int2\":0,\"k4v2\":0,\"int4\":0,\"bits8\":0,\"bits16\":3}"),
            std::string::npos)
      << tiers.output;
  const ProgramResult models = Ctl(*daemon_, "models");
  EXPECT_NE(models.output.find("4 layers x 2 heads x 64+64"), std::string::npos) << models.output;
  EXPECT_NE(models.output.find("uid:"), std::string::npos) << models.output;
  const size_t number = Ctl(*daemon_, "--json models").output.find("\"model\":");
  ASSERT_NE(number, std::string::npos);

  const std::string model = Ctl(*daemon_, "--json models").output.substr(number + 8, 1);
  const ProgramResult blocks = Ctl(*daemon_, "blocks " + model);
  EXPECT_EQ(blocks.exit_code, 0);
  EXPECT_EQ(std::ranges::count(blocks.output, '\n'), 1 + 3) << blocks.output;
  const ProgramResult limited = Ctl(*daemon_, "blocks " + model + " --limit 2");
  EXPECT_EQ(std::ranges::count(limited.output, '\n'), 1 + 2) << limited.output;
}

TEST_F(CtlTest, ExplainsABlockByTheBeginningOfItsKey) {
  StartDaemon(
      {.hot_bytes = uint64_t{64} << 20, .warm_bytes = uint64_t{32} << 20, .cold_bytes = 0, .more = {}});
  const Engine engine = Connect();
  Kv kv = Kv::Random(1, 3 * kBlockTokens);
  engine.Put(engine.Keys(Tokens(1, 3 * kBlockTokens)), kv);
  ASSERT_EQ(Ctl(*daemon_, "demote hot 1").exit_code, 0);
  const std::string listed = Ctl(*daemon_, "--json blocks 0").output;
  size_t explained = 0;
  for (size_t at = 0; (at = listed.find("{\"key\":\"", at)) != std::string::npos; ++at) {
    const std::string key = listed.substr(at + 8, 64);
    const ProgramResult block = Ctl(*daemon_, "explain " + key.substr(0, 16));
    EXPECT_EQ(block.exit_code, 0) << block.output;
    EXPECT_NE(block.output.find("block " + key + "\n"), std::string::npos) << block.output;
    const bool demoted = block.output.find("a reader gets int4 from warm") != std::string::npos;
    EXPECT_NE(block.output.find("a reader gets bits16 from hot") != std::string::npos, demoted);
    const ProgramResult json = Ctl(*daemon_, "explain --json " + key);
    EXPECT_NE(json.output.find("\"key\":\"" + key + "\""), std::string::npos) << json.output;
    ++explained;
  }
  EXPECT_EQ(explained, 3u);
  EXPECT_EQ(Ctl(*daemon_, "explain xyz").exit_code, 1);
  const ProgramResult unknown = Ctl(*daemon_, "explain " + std::string(64, '0'));
  EXPECT_EQ(unknown.exit_code, 1);
  EXPECT_NE(unknown.output.find("NOT_FOUND"), std::string::npos) << unknown.output;
}

TEST_F(CtlTest, TopShowsFramesOfARunningDaemonAndSaysWhenThereIsNone) {
  StartDaemon({});
  const Engine engine = Connect();
  Kv kv = Kv::Random(1, 3 * kBlockTokens);
  engine.Put(engine.Keys(Tokens(1, 3 * kBlockTokens)), kv);
  const std::string metrics = "top --metrics 127.0.0.1:" + std::to_string(daemon_->metrics_port());
  const ProgramResult top = Ctl(*daemon_, metrics + " --interval 0.1 --frames 2");
  EXPECT_EQ(top.exit_code, 0) << top.output;
  size_t frames = 0;
  for (size_t at = 0; (at = top.output.find("nothing is wrong\n", at)) != std::string::npos; ++at) ++frames;
  EXPECT_EQ(frames, 2u) << top.output;
  EXPECT_NE(top.output.find("3 blocks  1 sessions"), std::string::npos) << top.output;
  EXPECT_NE(top.output.find("bits16 100.0 %"), std::string::npos) << top.output;
  EXPECT_EQ(top.output.find('\x1b'), std::string::npos) << "no terminal";
  daemon_->Kill();
  const ProgramResult none = Ctl(*daemon_, metrics + " --frames 1");
  EXPECT_EQ(none.exit_code, 1);
  EXPECT_NE(none.output.find("UNAVAILABLE"), std::string::npos) << none.output;
}

TEST_F(CtlTest, MovesChecksAndDropsBlocks) {
  StartDaemon({.hot_bytes = uint64_t{64} << 20,
               .warm_bytes = uint64_t{32} << 20,
               .cold_bytes = uint64_t{128} << 20,
               .more = {}});
  const Engine engine = Connect();
  const api::Sequence sequence = engine.Keys(Tokens(1, 4 * kBlockTokens));
  Kv kv = Kv::Random(1, 4 * kBlockTokens);
  engine.Put(sequence, kv);
  EXPECT_EQ(Ctl(*daemon_, "demote hot 1").output, "demoted 1 block\n");
  for (const char* count : {"0", "1.5", "many", "18446744073709551616"}) {
    const ProgramResult refused = Ctl(*daemon_, std::string("demote hot ") + count);
    EXPECT_EQ(refused.exit_code, 2) << refused.output;
    EXPECT_NE(refused.output.find("is not a whole number of at least 1"), std::string::npos)
        << refused.output;
  }
  EXPECT_EQ(Ctl(*daemon_, "demote 0").output, "demoted 3 blocks\n");
  EXPECT_EQ(Ctl(*daemon_, "verify warm").output, "checked 4, corrupt 0\n");
  EXPECT_EQ(Ctl(*daemon_, "verify").output, "checked 4, corrupt 0\n");
  EXPECT_EQ(Ctl(*daemon_, "verify --json").output, "{\"corrupt_keys\":[],\"checked\":4,\"corrupt\":0}\n");
  EXPECT_EQ(Ctl(*daemon_, "evict warm 1").output, "evicted 1 block\n");
  const std::string by = " by uid:" + std::to_string(::getuid()) + ", session ", log = daemon_->Log();
  for (const char* asked : {"demote up to 1 blocks of tier 0", "demote all blocks of tier 0", "verify tier 1",
                            "evict up to 1 blocks of tier 1"}) {
    EXPECT_NE(log.find(std::string("admin: ") + asked + by), std::string::npos) << asked << '\n' << log;
  }
  EXPECT_EQ(engine.Stats().blocks, 3u);
}

TEST_F(CtlTest, ADrainedDaemonTakesNoPutsAndKeepsSessionsAndLeases) {
  StartDaemon({.hot_bytes = uint64_t{64} << 20,
               .warm_bytes = uint64_t{32} << 20,
               .cold_bytes = uint64_t{128} << 20,
               .more = {}});
  const Engine engine = Connect();
  const api::Sequence sequence = engine.Keys(Tokens(1, 4 * kBlockTokens));
  Kv kv = Kv::Random(1, 4 * kBlockTokens);
  engine.Put(sequence, kv);
  auto lease = engine.model.Acquire(sequence.Query());
  ASSERT_TRUE(lease) << kvtier_last_error();
  EXPECT_TRUE(daemon_->Get("/readyz").ok());
  EXPECT_EQ(Ctl(*daemon_, "drain").output, "drained 4 blocks\n");
  EXPECT_FALSE(daemon_->Get("/readyz").ok());
  EXPECT_TRUE(daemon_->Get("/healthz").ok());
  for (int i = 0; i < 20; ++i) {
    for (const auto& result : engine.Put(engine.Keys(Tokens(2, 4 * kBlockTokens)), kv)) {
      EXPECT_EQ(result.code, KVTIER_UNAVAILABLE);
    }
  }
  std::vector<kvtier_block_result> fetched(4);
  Kv out(4 * kBlockTokens);
  EXPECT_EQ(lease->Fetch(0, out.View(), fetched), KVTIER_OK) << kvtier_last_error();
  EXPECT_TRUE(out.SameOver(kv, 0, 4 * kBlockTokens));
}

TEST_F(CtlTest, ChecksAndRepairsTheFolderOfAColdTierThatNoDaemonUses) {
  StartDaemon({.hot_bytes = uint64_t{64} << 20, .cold_bytes = uint64_t{64} << 20, .more = {}});
  Kv kv = Kv::Random(1, 4 * kBlockTokens);
  {
    const Engine engine = Connect();
    engine.Put(engine.Keys(Tokens(1, 4 * kBlockTokens)), kv, KVTIER_DURABLE);
  }
  const std::string folder = daemon_->folder().File("cold"), store = " --store " + folder;
  const ProgramResult in_use = Ctl(*daemon_, "verify" + store);
  EXPECT_EQ(in_use.exit_code, 1);
  EXPECT_NE(in_use.output.find("a daemon uses it"), std::string::npos) << in_use.output;
  EXPECT_EQ(Ctl(*daemon_, "repair" + store).exit_code, 1);
  daemon_->Kill();
  const ProgramResult killed = Ctl(*daemon_, "verify" + store);
  EXPECT_EQ(killed.exit_code, 0) << killed.output;
  EXPECT_NE(killed.output.find("1 segments, 4 live records, 4 index entries, 1 models\n"), std::string::npos)
      << killed.output;

  const std::string segment = folder + "/segments/00000000.seg";
  std::fstream file(segment, std::ios::in | std::ios::out | std::ios::binary);
  constexpr std::streamoff kInTheFirstImage = 4096 + 5000;
  file.seekg(kInTheFirstImage);
  const int byte = file.get();
  file.seekp(kInTheFirstImage);
  file.put(static_cast<char>(byte ^ 1));
  file.close();
  const ProgramResult damaged = Ctl(*daemon_, "verify" + store);
  EXPECT_EQ(damaged.exit_code, 1);
  EXPECT_NE(damaged.output.find(segment + ": record at 4096: block "), std::string::npos) << damaged.output;
  const ProgramResult json = Ctl(*daemon_, "verify --json" + store);
  EXPECT_EQ(json.exit_code, 1);
  EXPECT_NE(json.output.find("{\"sound\":false,\"segments\":1,\"live\":3,\"damaged\":1,"), std::string::npos)
      << json.output;
  const ProgramResult repaired = Ctl(*daemon_, "repair" + store);
  EXPECT_EQ(repaired.exit_code, 0);
  EXPECT_NE(repaired.output.find("3 blocks are there; 1 records marked dead"), std::string::npos)
      << repaired.output;
  EXPECT_EQ(Ctl(*daemon_, "verify" + store).exit_code, 0);
  ASSERT_TRUE(daemon_->Start().ok()) << daemon_->Log();
  EXPECT_EQ(Connect().Stats().blocks, 3u);
  EXPECT_EQ(Ctl(*daemon_, "repair").exit_code, 2);
  EXPECT_EQ(Ctl(*daemon_, "verify --store /nowhere").exit_code, 1);
}

TEST_F(CtlTest, SaysWhatIsWrong) {
  StartDaemon({});
  const ProgramResult tier = Ctl(*daemon_, "demote nowhere");
  EXPECT_EQ(tier.exit_code, 1);
  EXPECT_EQ(tier.output, "kvtierctl: INVALID_ARGUMENT: no tier \"nowhere\"; there are hot\n");
  const ProgramResult json = Ctl(*daemon_, "--json demote nowhere");
  EXPECT_EQ(json.exit_code, 1);
  EXPECT_EQ(json.output,
            "{\"error\":\"INVALID_ARGUMENT\",\"message\":\"no tier \\\"nowhere\\\"; there are hot\"}\n");
  for (const char* unnamed : {"verify ''", "evict ''", "verify --store ''", "repair --store ''"}) {
    EXPECT_EQ(Ctl(*daemon_, unnamed).exit_code, 2) << unnamed;
  }
  const std::string size = "size --layers 4 --kv-heads 2 --head-dim 64 ";
  EXPECT_EQ(Ctl(*daemon_, size + "--hot 1GiB --tokens-per-second 5").exit_code, 0);
  for (const char* wrong : {"--hot -1", "--hot 1GX", "--hot 1GiB --tokens-per-second nan"}) {
    EXPECT_EQ(Ctl(*daemon_, size + wrong).exit_code, 2) << wrong;
  }
  EXPECT_EQ(Ctl(*daemon_, "top --interval nan --frames 1").exit_code, 2);
  EXPECT_NE(Ctl(*daemon_, "--json top").output.find("{\"error\":\"INVALID_ARGUMENT\""), std::string::npos);
  EXPECT_EQ(Ctl(*daemon_, "blocks 4711").exit_code, 1);
  EXPECT_EQ(Ctl(*daemon_, "").exit_code, 2);
  EXPECT_EQ(Ctl(*daemon_, "explode").exit_code, 2);
  EXPECT_EQ(Ctl(*daemon_, "demote hot minus").exit_code, 2);
  EXPECT_EQ(Ctl(*daemon_, "--help").exit_code, 0);
  daemon_->Kill();
  const ProgramResult dead = Ctl(*daemon_, "status");
  EXPECT_EQ(dead.exit_code, 1);
  EXPECT_NE(dead.output.find("kvtierctl: UNAVAILABLE: no daemon at "), std::string::npos) << dead.output;
}

}  // namespace
}  // namespace kvtier::e2e
