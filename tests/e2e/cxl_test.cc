// A CXL tier under the real daemon, on a file. libpmem2 is told that its stores are flushed by cache line, so
// that it is persistent wherever the temporary folder is; but for a machine that has DAX (tests/qemu/dax.sh).
#include <gmock/gmock.h>

#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "tests/e2e/e2e.h"

namespace kvtier::e2e {
namespace {

using testing::HasSubstr;

class Cxl : public E2eTest {
 protected:
  static bool OnDaxMachine() { return std::getenv("KVTIER_TEST_DAX") != nullptr; }
  static void SetUpTestSuite() {
    if (!OnDaxMachine()) ::setenv("PMEM2_FORCE_GRANULARITY", "CACHE_LINE", 1);
  }
  static void TearDownTestSuite() { ::unsetenv("PMEM2_FORCE_GRANULARITY"); }

  std::string CxlSection(uint64_t capacity_bytes) const {
    return "[[tier.cold]]\nmedium = \"cxl\"\nsegment = \"1MiB\"\npath = \"" + data_.File("cxl") +
           "\"\ncapacity = " + std::to_string(capacity_bytes) + "\n";
  }
  std::string NvmeSection(uint64_t capacity_bytes) const {
    std::filesystem::create_directory(data_.File("cold"));
    return "[[tier.cold]]\npath = \"" + data_.File("cold") +
           "\"\nsegment = \"8MiB\"\ncapacity = " + std::to_string(capacity_bytes) + "\n";
  }

  static std::string Me() { return "uid:" + std::to_string(::getuid()); }
  static std::string MappedBy(const std::string& tenant) { return "mapped_by = \"" + tenant + "\"\n"; }
  /// Whether this process has the tier's file mapped.
  bool Maps() const {
    std::ostringstream maps;
    maps << std::ifstream("/proc/self/maps").rdbuf();
    return maps.str().find(data_.File("cxl")) != std::string::npos;
  }
  /// For the engine, the first session of each of the daemon's starts: until then its blocks come through
  /// DRAM.
  void WaitUntilMapped(int starts = 1) const {
    const std::string told = " session 1 of " + Me() + " maps tier ";
    ASSERT_TRUE(Eventually(kPatienceMs / 1000.0, [&] {
      const std::string log = daemon_->Log();
      int mapped = 0;
      for (size_t at = 0; (at = log.find(told, at)) != std::string::npos; at += told.size()) ++mapped;
      return mapped == starts;
    })) << daemon_->Log();
  }
  /// Blocks that came up to DRAM.
  double Promoted() {
    const Result<double> moved = daemon_->Metric("kvtier_moved_blocks_total{from=\"cxl\",to=\"hot\"}");
    return moved.ok() ? *moved : 0;
  }
  void Demote() {
    const ProgramResult demoted = Ctl(*daemon_, "--json demote hot");
    ASSERT_EQ(demoted.exit_code, 0) << demoted.output;
  }

  TemporaryFolder data_;
};

TEST_F(Cxl, WhatWasDurableIsThereAfterAKill) {
  StartDaemon({.more = CxlSection(uint64_t{32} << 20)});
  constexpr uint32_t kBlocks = 20;
  Kv kv = Kv::Random(1, kBlocks * kBlockTokens);
  {
    const Engine engine = Connect();
    for (const auto& result :
         engine.Put(engine.Keys(Tokens(1, kBlocks * kBlockTokens)), kv, KVTIER_DURABLE)) {
      EXPECT_EQ(result.code, KVTIER_OK);
    }
  }
  daemon_->Kill();
  ASSERT_TRUE(daemon_->Start().ok()) << daemon_->Log();
  const Engine engine = Connect();
  const api::Sequence sequence = engine.Keys(Tokens(1, kBlocks * kBlockTokens));
  EXPECT_EQ(engine.Hits(sequence), kBlocks);
  Kv out(kBlocks * kBlockTokens);
  const auto results = engine.Fetch(sequence, out);
  ASSERT_EQ(results.size(), kBlocks);
  for (const auto& result : results) EXPECT_EQ(result.code, KVTIER_OK);
  EXPECT_LT(out.ErrorOver(kv, 0, kBlocks * kBlockTokens), 0.2);
}

TEST_F(Cxl, ItSaysWhatTheMemoryIsAndWhatItSurvives) {
  StartDaemon({.more = CxlSection(uint64_t{32} << 20)});
  EXPECT_THAT(daemon_->Log(), HasSubstr("fsdax, persistent by flushes of cache lines"));
  EXPECT_EQ(*daemon_->Metric("kvtier_tier_persistent{tier=\"cxl\"}"), 1.0);
  EXPECT_EQ(*daemon_->Metric("kvtier_tier_persistent{tier=\"hot\"}"), 0.0);
  EXPECT_EQ(*daemon_->Metric("kvtier_tier_numa_node{tier=\"hot\"}"), -1.0);
  // More than once: kvtierctl gives a connection two seconds, which a slow virtual machine may not do in.
  EXPECT_TRUE(Eventually(kPatienceMs / 1000.0, [&] {
    return Ctl(*daemon_, "tiers").output.find("persistent by flushes of cache lines, NUMA node") !=
           std::string::npos;
  }));
}

/// What an engine gets of a sequence that is on the CXL tier alone.
struct Read {
  static constexpr uint32_t kQueryHeads = 2 * kHeads;
  explicit Read(size_t tokens) : fetched(tokens) {}
  Kv fetched;
  std::vector<float> o = std::vector<float>(kLayers * kQueryHeads * kDim);
  std::vector<float> m = std::vector<float>(kLayers * kQueryHeads);
  std::vector<float> l = std::vector<float>(kLayers * kQueryHeads);

  void From(const Engine& engine, const api::Sequence& sequence, size_t blocks) {
    auto lease = engine.model.Acquire(sequence.Query());
    ASSERT_TRUE(lease) << api::LastError();
    ASSERT_EQ(lease->count(), blocks);
    std::vector<kvtier_block_result> results(blocks);
    ASSERT_EQ(lease->Fetch(0, fetched.View(), results), KVTIER_OK) << api::LastError();
    for (const kvtier_block_result& result : results) EXPECT_EQ(result.precision, KVTIER_INT2);
    std::vector<float> q(kQueryHeads * kDim);
    for (size_t i = 0; i < q.size(); ++i) q[i] = static_cast<float>(i % 13) - 6;
    kvtier_attention attention{};
    attention.struct_size = sizeof(attention);
    attention.q = q.data();
    attention.query_heads = kQueryHeads;
    attention.scale = 0.125f;
    for (uint32_t layer = 0; layer < kLayers; ++layer) {
      attention.o = o.data() + layer * kQueryHeads * kDim;
      attention.m = m.data() + layer * kQueryHeads;
      attention.l = l.data() + layer * kQueryHeads;
      ASSERT_EQ(lease->Attend(0, layer, attention, results), KVTIER_OK) << api::LastError();
    }
  }
};

TEST_F(Cxl, WhatIsReadStraightFromTheMemoryIsWhatTheWayThroughDramGives) {
  constexpr uint32_t kBlocks = 16;
  const std::vector<int32_t> tokens = Tokens(1, kBlocks * kBlockTokens);
  Kv kv = Kv::Random(1, kBlocks * kBlockTokens);
  Read straight(kBlocks * kBlockTokens), through_dram(kBlocks * kBlockTokens);
  StartDaemon({.more = CxlSection(uint64_t{32} << 20) + MappedBy(Me())});
  EXPECT_THAT(daemon_->Log(), HasSubstr("mapped by clients of " + Me()));
  {
    const Engine engine = Connect();
    WaitUntilMapped();
    const api::Sequence sequence = engine.Keys(tokens);
    for (const auto& result : engine.Put(sequence, kv)) ASSERT_EQ(result.code, KVTIER_OK);
    Demote();
    straight.From(engine, sequence, kBlocks);
    EXPECT_EQ(Promoted(), 0.0);
    EXPECT_TRUE(Maps());
    EXPECT_LT(straight.fetched.ErrorOver(kv, 0, kBlocks * kBlockTokens), 0.5);
  }
  EXPECT_FALSE(Maps()) << "it goes with the session";
  EXPECT_EQ(daemon_->Stop(), 0);
  StartDaemon({.more = CxlSection(uint64_t{32} << 20)});
  EXPECT_THAT(daemon_->Log(), HasSubstr("mapped_by is not set; it takes blocks of " + Me() + " alone"));
  const Engine engine = Connect();
  through_dram.From(engine, engine.Keys(tokens), kBlocks);
  EXPECT_EQ(Promoted(), double{kBlocks});
  EXPECT_FALSE(Maps());
  EXPECT_TRUE(straight.fetched.SameOver(through_dram.fetched, 0, kBlocks * kBlockTokens));
  EXPECT_EQ(straight.o, through_dram.o);
  EXPECT_EQ(straight.m, through_dram.m);
  EXPECT_EQ(straight.l, through_dram.l);
}

TEST_F(Cxl, S70_MemoryOfAnotherTenantIsNotMappedAndTakesNoBlock) {
  StartDaemon({.more = CxlSection(uint64_t{32} << 20) + MappedBy("uid:4000000000")});
  const Engine engine = Connect();
  Kv kv = Kv::Random(1, 4 * kBlockTokens);
  const api::Sequence sequence = engine.Keys(Tokens(1, 4 * kBlockTokens));
  EXPECT_EQ(engine.Put(sequence, kv, KVTIER_DURABLE)[0].code, KVTIER_FAILED_PRECONDITION);
  for (const auto& result : engine.Put(sequence, kv)) EXPECT_EQ(result.code, KVTIER_OK);
  Demote();
  EXPECT_EQ(*daemon_->Metric("kvtier_tier_used_bytes{tier=\"cxl\"}"), 0.0);
  EXPECT_FALSE(Maps());
}

TEST_F(Cxl, AStoreThatWasMadeForEverybodyIsNotMapped) {
  StartDaemon({.more = CxlSection(uint64_t{32} << 20)});
  EXPECT_EQ(daemon_->Stop(), 0);
  StartDaemon({.more = CxlSection(uint64_t{32} << 20) + MappedBy(Me())});
  EXPECT_THAT(daemon_->Log(),
              HasSubstr("clients do not map it but read through DRAM: it was made for everybody"));
  const Engine engine = Connect();
  Kv kv = Kv::Random(1, kBlockTokens);
  EXPECT_EQ(engine.Put(engine.Keys(Tokens(1, kBlockTokens)), kv, KVTIER_DURABLE)[0].code, KVTIER_OK);
  EXPECT_FALSE(Maps());
}

TEST_F(Cxl, APlainFileIsMappedWhereTheConfigurationSaysSo) {
  if (OnDaxMachine()) GTEST_SKIP() << "its files are no plain ones";
  ::unsetenv("PMEM2_FORCE_GRANULARITY");
  for (const bool named : {false, true}) {
    const std::string source = named ? "source = \"file\"\n" : "";
    StartDaemon({.more = CxlSection(uint64_t{32} << 20) + source + MappedBy(Me())});
    EXPECT_EQ(daemon_->Log().find("source = \"file\" asks for it all the same") == std::string::npos, named);
    const Engine engine = Connect();
    if (named) WaitUntilMapped();
    Kv kv = Kv::Random(1, kBlockTokens), out(kBlockTokens);
    const api::Sequence sequence = engine.Keys(Tokens(1, kBlockTokens));
    for (const auto& result : engine.Put(sequence, kv)) EXPECT_EQ(result.code, KVTIER_OK);
    Demote();
    ASSERT_EQ(engine.Fetch(sequence, out).size(), 1u);
    EXPECT_EQ(Promoted(), named ? 0.0 : 1.0);
    EXPECT_EQ(Maps(), named);
    daemon_.reset();
    std::filesystem::remove(data_.File("cxl"));
  }
  SetUpTestSuite();
}

TEST_F(Cxl, S51_AClientOfADaemonThatWasKilledMapsTheNextOnesMemory) {
  StartDaemon({.more = CxlSection(uint64_t{32} << 20) + MappedBy(Me())});
  const Engine engine = Connect();
  WaitUntilMapped();
  constexpr uint32_t kBlocks = 8;
  Kv kv = Kv::Random(1, kBlocks * kBlockTokens), before(kBlocks * kBlockTokens),
     after(kBlocks * kBlockTokens);
  const api::Sequence sequence = engine.Keys(Tokens(1, kBlocks * kBlockTokens));
  for (const auto& result : engine.Put(sequence, kv)) ASSERT_EQ(result.code, KVTIER_OK);
  Demote();
  auto lease = engine.model.Acquire(sequence.Query());
  ASSERT_TRUE(lease) << api::LastError();
  std::vector<kvtier_block_result> results(kBlocks);
  ASSERT_EQ(lease->Fetch(0, before.View(), results), KVTIER_OK) << api::LastError();
  daemon_->Kill();
  ASSERT_TRUE(daemon_->Start().ok()) << daemon_->Log();
  ASSERT_TRUE(Eventually(kPatienceMs / 1000.0, [&] { return engine.Hits(sequence) == kBlocks; }));
  WaitUntilMapped(2);
  ASSERT_EQ(engine.Fetch(sequence, after).size(), kBlocks);
  EXPECT_EQ(Promoted(), 0.0);
  EXPECT_TRUE(before.SameOver(after, 0, kBlocks * kBlockTokens));
  // The lease was the first daemon's, though the bytes are there.
  EXPECT_NE(lease->Fetch(0, before.View(), results), KVTIER_OK);
  for (const kvtier_block_result& result : results) EXPECT_NE(result.code, KVTIER_OK);
}

TEST_F(Cxl, S43_ADamagedBlockThatIsReadInPlaceIsOneMissAndQuarantined) {
  StartDaemon({.more = CxlSection(uint64_t{32} << 20) + "scrub_rate = 0\n" + MappedBy(Me())});
  const Engine engine = Connect();
  WaitUntilMapped();
  constexpr uint32_t kBlocks = 4, kLast = kBlocks - 1;
  Kv kv = Kv::Random(1, kBlocks * kBlockTokens), out(kBlocks * kBlockTokens);
  const api::Sequence sequence = engine.Keys(Tokens(1, kBlocks * kBlockTokens));
  for (const auto& result : engine.Put(sequence, kv)) ASSERT_EQ(result.code, KVTIER_OK);
  Demote();
  {
    // In the middle of the last block's image: its key, nobody's parent, stands in its headers alone.
    std::fstream file(data_.File("cxl"), std::ios::in | std::ios::out | std::ios::binary);
    std::ostringstream bytes;
    bytes << file.rdbuf();
    const std::string all = bytes.str();
    auto lease = engine.model.Acquire(sequence.Query());
    ASSERT_TRUE(lease) << api::LastError();
    const kvtier_block_info info = *lease->Block(kLast);
    const size_t at = all.find(std::string(reinterpret_cast<const char*>(info.key), sizeof(info.key)));
    ASSERT_NE(at, std::string::npos);
    const size_t middle = at + info.image_bytes / 2;
    file.clear();
    file.seekp(static_cast<std::streamoff>(middle));
    file.put(static_cast<char>(~all[middle]));
  }
  const auto results = engine.Fetch(sequence, out);
  ASSERT_EQ(results.size(), kBlocks);
  for (uint32_t i = 0; i < kBlocks; ++i)
    EXPECT_EQ(results[i].code, i == kLast ? KVTIER_CORRUPT : KVTIER_OK) << "block " << i;
  EXPECT_TRUE(Eventually(kPatienceMs / 1000.0, [&] { return engine.Hits(sequence) == kLast; }));
  EXPECT_EQ(*daemon_->Metric("kvtier_quarantined_blocks_total"), 1.0);
  for (const auto& result : engine.Fetch(sequence, out)) EXPECT_EQ(result.code, KVTIER_OK);
}

TEST_F(Cxl, S38_WithoutTheMemoryTheDaemonRunsOnWhatElseThereIs) {
  StartDaemon({.more = "[[tier.cold]]\nmedium = \"cxl\"\nnuma_node = 1000\ncapacity = \"1GiB\"\n"});
  EXPECT_THAT(daemon_->Log(), HasSubstr("tier cxl is left out: NUMA node 1000 has no memory"));
  const Engine engine = Connect();
  Kv kv = Kv::Random(1, kBlockTokens);
  EXPECT_EQ(engine.Put(engine.Keys(Tokens(1, kBlockTokens)), kv)[0].code, KVTIER_OK);
}

TEST_F(Cxl, MemoryOfANodeWithoutProcessorsIsATier) {
  if (!OnDaxMachine()) GTEST_SKIP() << "no machine with such a node; see tests/qemu/dax.sh";
  constexpr uint32_t kFarNode = 1;
  StartDaemon({.hot_bytes = uint64_t{16} << 20,
               .more = "[[tier.cold]]\nmedium = \"cxl\"\nsource = \"numa\"\nsegment = \"1MiB\"\n"
                       "capacity = \"32MiB\"\n"});
  EXPECT_EQ(*daemon_->Metric("kvtier_tier_numa_node{tier=\"cxl\"}"), double{kFarNode});
  EXPECT_EQ(*daemon_->Metric("kvtier_tier_persistent{tier=\"cxl\"}"), 0.0);
  const Engine engine = Connect();
  constexpr uint32_t kBlocks = 160;  // more than hot holds
  Kv kv = Kv::Random(1, kBlocks * kBlockTokens), out(kBlocks * kBlockTokens);
  const api::Sequence sequence = engine.Keys(Tokens(1, kBlocks * kBlockTokens));
  for (const auto& result : engine.Put(sequence, kv)) EXPECT_EQ(result.code, KVTIER_OK);
  EXPECT_EQ(engine.Hits(sequence), kBlocks);
  EXPECT_GT(*daemon_->Metric("kvtier_moved_blocks_total{from=\"hot\",to=\"cxl\"}"), 0.0);
  const auto results = engine.Fetch(sequence, out);
  EXPECT_GT(results.size(), 0u);
  for (const auto& result : results) EXPECT_EQ(result.code, KVTIER_OK);
  EXPECT_LT(out.ErrorOver(kv, 0, results.size() * kBlockTokens), 0.5);
}

TEST_F(Cxl, S53_ASecondDaemonOnTheSameFileIsRefusedAndTheFirstGoesOn) {
  StartDaemon({.more = CxlSection(uint64_t{32} << 20)});
  TemporaryFolder other;
  std::ofstream(other.File("kvtier.toml"))
      << "[server]\nsocket = \"" << other.File("s") << "\"\n"
      << CxlSection(uint64_t{32} << 20) << "[metrics]\nlisten = \"off\"\n";
  const ProgramResult second = RunProgram("kvtierd", "--config " + other.File("kvtier.toml"));
  EXPECT_EQ(second.exit_code, 1);
  EXPECT_THAT(second.output, HasSubstr(data_.File("cxl") + ": another daemon uses it"));
  const Engine engine = Connect();
  Kv kv = Kv::Random(1, kBlockTokens);
  EXPECT_EQ(engine.Put(engine.Keys(Tokens(1, kBlockTokens)), kv, KVTIER_DURABLE)[0].code, KVTIER_OK);
}

TEST_F(Cxl, S44_VerifyOfTheFileFindsDamageAndAStartMendsIt) {
  StartDaemon({.more = CxlSection(uint64_t{32} << 20)});
  constexpr uint32_t kBlocks = 4;
  Kv kv = Kv::Random(1, kBlocks * kBlockTokens);
  {
    const Engine engine = Connect();
    for (const auto& result :
         engine.Put(engine.Keys(Tokens(1, kBlocks * kBlockTokens)), kv, KVTIER_DURABLE)) {
      EXPECT_EQ(result.code, KVTIER_OK);
    }
  }
  const std::string file = data_.File("cxl"), store = " --store " + file;
  const ProgramResult in_use = Ctl(*daemon_, "verify" + store);
  EXPECT_EQ(in_use.exit_code, 1);
  EXPECT_THAT(in_use.output, HasSubstr("a daemon uses it"));
  daemon_->Kill();
  const ProgramResult killed = Ctl(*daemon_, "verify" + store);
  EXPECT_EQ(killed.exit_code, 0) << killed.output;
  EXPECT_EQ(
      killed.output,
      "1 segments, 4 live records, 1 models\nit was not closed: the next start reads all of it\nsound\n");
  {
    std::fstream bytes(file, std::ios::in | std::ios::out | std::ios::binary);
    constexpr std::streamoff kInTheFirstImage = (2 << 20) + 4096 + 5000;
    bytes.seekg(kInTheFirstImage);
    const int byte = bytes.get();
    bytes.seekp(kInTheFirstImage);
    bytes.put(static_cast<char>(byte ^ 1));
  }
  const ProgramResult damaged = Ctl(*daemon_, "verify" + store);
  EXPECT_EQ(damaged.exit_code, 1);
  EXPECT_THAT(damaged.output, HasSubstr(file + ": segment 0: record at 4096: block "));
  EXPECT_THAT(damaged.output, HasSubstr("damaged; the next start of the daemon saves what can be saved\n"));
  const ProgramResult json = Ctl(*daemon_, "verify --json" + store);
  EXPECT_EQ(json.exit_code, 1);
  EXPECT_THAT(json.output, HasSubstr("{\"sound\":false,\"segments\":1,\"live\":3,\"damaged\":1,"));
  const ProgramResult repair = Ctl(*daemon_, "repair" + store);
  EXPECT_EQ(repair.exit_code, 1);
  EXPECT_THAT(repair.output, HasSubstr("is the memory of a CXL tier, which the daemon itself repairs"));
  ASSERT_TRUE(daemon_->Start().ok()) << daemon_->Log();
  EXPECT_EQ(Connect().Stats().blocks, kBlocks - 1);
  EXPECT_EQ(daemon_->Stop(), 0);
  const ProgramResult mended = Ctl(*daemon_, "verify" + store);
  EXPECT_EQ(mended.exit_code, 0) << mended.output;
  EXPECT_EQ(mended.output, "1 segments, 3 live records, 1 models\nsound\n");
  std::ofstream(data_.File("letter")) << "dear";
  const ProgramResult letter = Ctl(*daemon_, "verify --store " + data_.File("letter"));
  EXPECT_EQ(letter.exit_code, 1);
  EXPECT_THAT(letter.output, HasSubstr("CXL store " + data_.File("letter") + ": holds something else\n"));
}

TEST_F(Cxl, AboveNvmeAFullTierLosesNothing) {
  StartDaemon({.hot_bytes = uint64_t{16} << 20,
               .more = CxlSection(uint64_t{16} << 20) + NvmeSection(uint64_t{256} << 20)});
  const Engine engine = Connect();
  constexpr uint32_t kSequences = 12, kBlocks = 64;  // 96 MiB raw, some 20 MiB as INT2
  for (uint32_t seed = 1; seed <= kSequences; ++seed) {
    Kv kv = Kv::Random(seed, kBlocks * kBlockTokens);
    for (const auto& result : engine.Put(engine.Keys(Tokens(seed, kBlocks * kBlockTokens)), kv)) {
      EXPECT_EQ(result.code, KVTIER_OK);
    }
  }
  for (uint32_t seed = 1; seed <= kSequences; ++seed) {
    EXPECT_EQ(engine.Hits(engine.Keys(Tokens(seed, kBlocks * kBlockTokens))), kBlocks) << seed;
  }
  EXPECT_GT(*daemon_->Metric("kvtier_moved_blocks_total{from=\"cxl\",to=\"cold\"}"), 0.0);
  const uint32_t seed = 1;
  Kv kv = Kv::Random(seed, kBlocks * kBlockTokens), out(kBlocks * kBlockTokens);
  const auto results = engine.Fetch(engine.Keys(Tokens(seed, kBlocks * kBlockTokens)), out);
  ASSERT_GT(results.size(), 0u);
  EXPECT_LT(out.ErrorOver(kv, 0, results.size() * kBlockTokens), 0.5);
}

}  // namespace
}  // namespace kvtier::e2e
