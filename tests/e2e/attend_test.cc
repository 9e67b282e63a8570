// Attention on leased blocks: the library reads what the daemon stores, in every precision, in one sequence.
#include <algorithm>
#include <cmath>
#include <random>

#include "kernels/numerics.h"
#include "tests/e2e/e2e.h"

namespace kvtier::e2e {
namespace {

const DaemonSettings kThreeTiers{.hot_bytes = uint64_t{32} << 20,
                                 .warm_bytes = uint64_t{32} << 20,
                                 .cold_bytes = uint64_t{256} << 20,
                                 .more = {}};
constexpr uint32_t kQueryHeads = 4 * kHeads;
constexpr size_t kBlocks = 12, kTokens = kBlocks * kBlockTokens;

/// Queries and room for results.
struct Step {
  explicit Step(size_t blocks) : results(blocks), mass(blocks) {
    std::mt19937 random(7);
    std::normal_distribution<float> normal(0, 2);
    for (float& x : q) x = normal(random);
    attention.struct_size = sizeof(attention);
    attention.q = q.data();
    attention.query_heads = kQueryHeads;
    attention.scale = 0.125f;
    attention.o = o.data();
    attention.m = m.data();
    attention.l = l.data();
    attention.mass = mass.data();
  }
  std::vector<kvtier_block_result> results;
  std::vector<float> mass;
  std::vector<float> q = std::vector<float>(kQueryHeads * kDim);
  std::vector<float> o = std::vector<float>(kQueryHeads * kDim);
  std::vector<float> m = std::vector<float>(kQueryHeads);
  std::vector<float> l = std::vector<float>(kQueryHeads);
  kvtier_attention attention{};
};

/// The same in double precision, over fetched FP16.
struct Expected {
  std::vector<double> attention = std::vector<double>(kQueryHeads * kDim);
  std::vector<double> mass;
};
Expected AttendToFp16(Kv& kv, uint32_t layer, const Step& step, size_t tokens) {
  Expected expected;
  expected.mass.resize(tokens / kBlockTokens);
  const auto element = [&](uint32_t plane, uint32_t head, size_t token, uint32_t channel) {
    const size_t row = (size_t{layer} * 2 + plane) * kHeads + head;
    return double{Fp32FromFp16(kv.values()[(row * kv.tokens() + token) * kDim + channel])};
  };
  for (uint32_t h = 0; h < kQueryHeads; ++h) {
    const uint32_t head = h / (kQueryHeads / kHeads);
    std::vector<double> p(tokens);
    double sum = 0;
    for (size_t t = 0; t < tokens; ++t) {
      for (uint32_t c = 0; c < kDim; ++c)
        p[t] += double{step.q[h * kDim + c]} * element(0, head, t, c) * 0.125;
      p[t] = std::exp(p[t]);
      sum += p[t];
    }
    for (size_t t = 0; t < tokens; ++t) {
      expected.mass[t / kBlockTokens] += p[t] / sum / kQueryHeads;
      for (uint32_t c = 0; c < kDim; ++c)
        expected.attention[h * kDim + c] += p[t] / sum * element(1, head, t, c);
    }
  }
  return expected;
}

double RelativeDistance(const Step& step, const Expected& expected) {
  double distance = 0, square = 0;
  for (size_t i = 0; i < step.o.size(); ++i) {
    const double off = double{step.o[i]} / step.l[i / kDim] - expected.attention[i];
    distance += off * off;
    square += expected.attention[i] * expected.attention[i];
  }
  return std::sqrt(distance / square);
}

class Attend : public E2eTest {
 protected:
  void Demote(const char* tier) {
    const ProgramResult result = Ctl(*daemon_, std::string("--json demote ") + tier);
    ASSERT_EQ(result.exit_code, 0) << result.output;
  }
  /// Four blocks in the cold tier, four in warm, four in hot.
  void PutOneSequenceIntoAllTiers(const Engine& engine, Kv& kv) {
    const std::vector<int32_t> tokens = Tokens(1, kTokens);
    for (size_t blocks = 4; blocks <= kBlocks; blocks += 4) {
      const api::Sequence front = engine.Keys({tokens.begin(), tokens.begin() + long(blocks * kBlockTokens)});
      for (const kvtier_put_result& result : engine.Put(front, kv))
        ASSERT_TRUE(result.code == KVTIER_OK || result.code == KVTIER_PRESENT);
      if (blocks == 4) Demote("hot"), Demote("warm");
      if (blocks == 8) Demote("hot");
    }
  }
};

TEST_F(Attend, ReadsBlocksOfEveryPrecisionInOneSequence) {
  StartDaemon(kThreeTiers);
  const Engine engine = Connect();
  Kv kv = Kv::Random(1, kTokens);
  PutOneSequenceIntoAllTiers(engine, kv);
  const api::Sequence sequence = engine.Keys(Tokens(1, kTokens));
  auto lease = engine.model.Acquire(sequence.Query());
  ASSERT_TRUE(lease) << api::LastError();
  ASSERT_EQ(lease->count(), kBlocks);
  Kv fetched(kTokens);
  std::vector<kvtier_block_result> results(kBlocks);
  ASSERT_EQ(lease->Fetch(0, fetched.View(), results), KVTIER_OK) << api::LastError();

  Step step(kBlocks);
  for (uint32_t layer = 0; layer < kLayers; ++layer) {
    for (int round = 0; round < 2; ++round) {  // the second one finds checked blocks
      ASSERT_EQ(lease->Attend(0, layer, step.attention, step.results), KVTIER_OK) << api::LastError();
      const Expected expected = AttendToFp16(fetched, layer, step, kTokens);
      EXPECT_LT(RelativeDistance(step, expected), 0.02) << "layer " << layer;
      for (size_t block = 0; block < kBlocks; ++block)
        EXPECT_NEAR(step.mass[block], expected.mass[block], 0.003)
            << "layer " << layer << ", block " << block;
    }
  }
  for (size_t block = 0; block < kBlocks; ++block) {
    EXPECT_EQ(step.results[block].precision, block < 4   ? KVTIER_INT2
                                             : block < 8 ? KVTIER_INT4
                                                         : KVTIER_BITS16);
    EXPECT_EQ(step.results[block].k_error > 0, block < 8);
  }
}

TEST_F(Attend, PartsOfALeaseMergeToTheWhole) {
  StartDaemon({});
  const Engine engine = Connect();
  Kv kv = Kv::Random(2, kTokens);
  const api::Sequence sequence = engine.Keys(Tokens(2, kTokens));
  engine.Put(sequence, kv);
  auto lease = engine.model.Acquire(sequence.Query());
  ASSERT_TRUE(lease) << api::LastError();
  Step all(kBlocks), front(5), back(kBlocks - 5);
  ASSERT_EQ(lease->Attend(0, 2, all.attention, all.results), KVTIER_OK);
  ASSERT_EQ(lease->Attend(0, 2, front.attention, front.results), KVTIER_OK);
  ASSERT_EQ(lease->Attend(5, 2, back.attention, back.results), KVTIER_OK);
  // As kvtier.h tells an engine to do.
  for (uint32_t h = 0; h < kQueryHeads; ++h) {
    const float m = std::max(front.m[h], back.m[h]);
    const float of_front = std::exp(front.m[h] - m), of_back = std::exp(back.m[h] - m);
    EXPECT_EQ(m, all.m[h]);
    EXPECT_NEAR(front.l[h] * of_front + back.l[h] * of_back, all.l[h], 1e-4 * all.l[h]);
    for (uint32_t c = h * kDim; c < (h + 1) * kDim; ++c)
      EXPECT_NEAR(front.o[c] * of_front + back.o[c] * of_back, all.o[c], 1e-4 * all.l[h]);
  }
  EXPECT_LT(RelativeDistance(all, AttendToFp16(kv, 2, all, kTokens)), 1e-5) << "FP16 blocks lose nothing";
}

TEST_F(Attend, BlocksOfAnEndedSessionAreLeftOutAndSayWhy) {
  StartDaemon({});
  const Engine engine = Connect();
  Kv kv = Kv::Random(3, kTokens);
  const api::Sequence sequence = engine.Keys(Tokens(3, kTokens));
  engine.Put(sequence, kv);
  auto lease = engine.model.Acquire(sequence.Query());
  ASSERT_TRUE(lease) << api::LastError();
  daemon_->Kill();
  Step step(kBlocks);
  EXPECT_TRUE(Eventually(20, [&] {
    return lease->Attend(0, 0, step.attention, step.results) == KVTIER_STALE &&
           std::ranges::all_of(step.results, [](const auto& r) { return r.code == KVTIER_STALE; });
  }));
  for (uint32_t h = 0; h < kQueryHeads; ++h) {
    EXPECT_EQ(step.m[h], -INFINITY);
    EXPECT_EQ(step.l[h], 0);
  }
  EXPECT_TRUE(std::ranges::all_of(step.o, [](float x) { return x == 0; }));
  EXPECT_TRUE(std::ranges::all_of(step.mass, [](float x) { return x == 0; }));
}

TEST_F(Attend, WrongArgumentsAreRefusedWithText) {
  StartDaemon({});
  const Engine engine = Connect();
  Kv kv = Kv::Random(4, kBlockTokens);
  const api::Sequence sequence = engine.Keys(Tokens(4, kBlockTokens));
  engine.Put(sequence, kv);
  auto lease = engine.model.Acquire(sequence.Query());
  ASSERT_TRUE(lease) << api::LastError();
  Step step(2);
  const std::span<kvtier_block_result> one(step.results.data(), 1);
  EXPECT_EQ(lease->Attend(0, kLayers, step.attention, one), KVTIER_INVALID_ARGUMENT);
  EXPECT_EQ(lease->Attend(0, 0, step.attention, step.results), KVTIER_INVALID_ARGUMENT);
  for (const auto& spoil :
       {+[](kvtier_attention& a) { a.struct_size = 0; }, +[](kvtier_attention& a) { a.q = nullptr; },
        +[](kvtier_attention& a) { a.l = nullptr; }, +[](kvtier_attention& a) { a.query_heads = 3; },
        +[](kvtier_attention& a) { a.query_heads = 0; }, +[](kvtier_attention& a) { a.scale = NAN; },
        +[](kvtier_attention& a) { a.o = const_cast<float*>(a.q); },
        +[](kvtier_attention& a) { a.m = a.o + kQueryHeads * kDim - 1; },
        +[](kvtier_attention& a) { a.mass = a.l; }}) {
    kvtier_attention wrong = step.attention;
    spoil(wrong);
    EXPECT_EQ(lease->Attend(0, 0, wrong, one), KVTIER_INVALID_ARGUMENT);
    EXPECT_NE(api::LastError()[0], 0);
    EXPECT_NE(one[0].code, KVTIER_OK);
  }
  for (const float wrong : {NAN, INFINITY, -INFINITY}) {
    Step queries(1);
    queries.q.back() = wrong;
    EXPECT_EQ(lease->Attend(0, 0, queries.attention, one), KVTIER_INVALID_ARGUMENT);
    EXPECT_NE(std::string(api::LastError()).find("not finite"), std::string::npos) << api::LastError();
  }
  EXPECT_EQ(lease->Attend(0, 0, step.attention, one), KVTIER_OK) << api::LastError();
}

}  // namespace
}  // namespace kvtier::e2e
