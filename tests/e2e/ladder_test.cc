// Blocks on their way down the ladder and over restarts: same keys, right bytes, honest errors.
#include <algorithm>

#include "tests/e2e/e2e.h"

namespace kvtier::e2e {
namespace {

const DaemonSettings kThreeTiers{.hot_bytes = uint64_t{32} << 20,
                                 .warm_bytes = uint64_t{32} << 20,
                                 .cold_bytes = uint64_t{256} << 20,
                                 .more = {}};

class Ladder : public E2eTest {
 protected:
  void Demote(const char* tier, size_t blocks) {
    const ProgramResult result = Ctl(*daemon_, std::string("--json demote ") + tier);
    ASSERT_EQ(result.exit_code, 0) << result.output;
    ASSERT_EQ(result.output, "{\"demoted\":" + std::to_string(blocks) + "}\n");
  }
};

TEST_F(Ladder, EveryRungComesBackWithinTheErrorThatItReports) {
  StartDaemon(kThreeTiers);
  const Engine engine = Connect();
  const size_t blocks = 8, tokens = blocks * kBlockTokens;
  const api::Sequence sequence = engine.Keys(Tokens(1, tokens));
  Kv kv = Kv::Random(1, tokens);
  for (const auto& result : engine.Put(sequence, kv)) EXPECT_EQ(result.code, KVTIER_OK);

  const auto expect_rung = [&](kvtier_precision precision, double least, double most) {
    Kv out(tokens);
    const auto results = engine.Fetch(sequence, out);
    ASSERT_EQ(results.size(), blocks);
    for (size_t i = 0; i < blocks; ++i) {
      EXPECT_EQ(results[i].code, KVTIER_OK);
      EXPECT_EQ(results[i].precision, precision);
      const double error = kv.ErrorOver(out, i * kBlockTokens, kBlockTokens);
      EXPECT_GE(error, least);
      EXPECT_LE(error, most);
      EXPECT_LE(error, std::max(results[i].k_error, results[i].v_error) * 1.01 + 1e-6);
    }
  };
  expect_rung(KVTIER_BITS16, 0, 0);
  Demote("hot", blocks);
  expect_rung(KVTIER_INT4, 0.03, 0.2);
  Demote("warm", blocks);
  EXPECT_EQ(engine.Hits(sequence), blocks) << "found in the cold tier too";
  expect_rung(KVTIER_INT2, 0.1, 0.6);
}

TEST_F(Ladder, S71_AColdBlockWithItsTailsComesBackAsExactInt4AndAsLessWhereLessIsAskedFor) {
  DaemonSettings settings = kThreeTiers;
  settings.tails = "while_room";
  StartDaemon(settings);
  const size_t blocks = 6, tokens = blocks * kBlockTokens;
  Kv kv = Kv::Random(7, tokens), int4(tokens);
  {
    const Engine engine = Connect();
    const api::Sequence sequence = engine.Keys(Tokens(7, tokens));
    for (const auto& result : engine.Put(sequence, kv, KVTIER_DURABLE)) EXPECT_EQ(result.code, KVTIER_OK);
    Demote("hot", blocks);
    for (const auto& result : engine.Fetch(sequence, int4)) EXPECT_EQ(result.precision, KVTIER_INT4);
  }
  daemon_->Kill();
  ASSERT_TRUE(daemon_->Start().ok()) << daemon_->Log();
  const Engine engine = Connect();
  const api::Sequence sequence = engine.Keys(Tokens(7, tokens));
  const auto read = [&](uint64_t max_block_bytes, kvtier_precision least, Kv& out) {
    kvtier_acquire_options options = api::AcquireOptions(kPatienceMs);
    options.max_block_bytes = max_block_bytes;
    options.min_precision = least;
    auto lease = engine.model.Acquire(sequence.Query(), options);
    EXPECT_TRUE(lease) << api::LastError();
    std::vector<kvtier_block_result> results(blocks);
    EXPECT_EQ(lease->Fetch(0, out.View(), results), KVTIER_OK);
    return results;
  };
  Kv out(tokens);
  for (const auto& result : read(1, KVTIER_PRECISION_ANY, out)) EXPECT_EQ(result.precision, KVTIER_INT2);
  EXPECT_FALSE(int4.SameOver(out, 0, tokens));
  for (const auto& result : read(1, KVTIER_INT4, out)) EXPECT_EQ(result.precision, KVTIER_INT4);
  EXPECT_TRUE(int4.SameOver(out, 0, tokens)) << "the planes are those that were left out";
}

TEST_F(Ladder, S20_KeysAndColdBlocksSurviveAKillAndTwoRestarts) {
  StartDaemon(kThreeTiers);
  const size_t tokens = 16 * kBlockTokens;
  Kv kv = Kv::Random(2, tokens);
  std::vector<uint8_t> first_keys;
  Kv before(tokens);
  {
    const Engine engine = Connect();
    const api::Sequence sequence = engine.Keys(Tokens(2, tokens));
    for (const auto& ref : sequence.refs())
      first_keys.insert(first_keys.end(), ref.key, ref.key + KVTIER_KEY_BYTES);
    for (const auto& result : engine.Put(sequence, kv, KVTIER_DURABLE)) EXPECT_EQ(result.code, KVTIER_OK);
  }
  for (int restart = 0; restart < 2; ++restart) {
    daemon_->Kill();
    ASSERT_TRUE(daemon_->Start().ok()) << daemon_->Log();
    const Engine engine = Connect();
    const api::Sequence sequence = engine.Keys(Tokens(2, tokens));
    std::vector<uint8_t> keys;
    for (const auto& ref : sequence.refs()) keys.insert(keys.end(), ref.key, ref.key + KVTIER_KEY_BYTES);
    EXPECT_EQ(keys, first_keys);
    EXPECT_EQ(engine.Hits(sequence), sequence.blocks());
    Kv out(tokens);
    const auto results = engine.Fetch(sequence, out);
    ASSERT_EQ(results.size(), sequence.blocks());
    for (const auto& result : results) {
      EXPECT_EQ(result.code, KVTIER_OK);
      EXPECT_GE(result.precision, KVTIER_INT2);
    }
    EXPECT_LT(kv.ErrorOver(out, 0, tokens), 0.6);
    if (restart > 0) {
      EXPECT_TRUE(before.SameOver(out, 0, tokens)) << "a restart changes no byte";
    }
    before.values() = out.values();
  }
}

TEST_F(Ladder, S21_AnyOtherModelFieldHitsNothingOfDataThatExists) {
  StartDaemon({});
  const size_t tokens = 2 * kBlockTokens;
  const Engine engine = Connect();
  Kv kv = Kv::Random(3, tokens);
  engine.Put(engine.Keys(Tokens(3, tokens)), kv);
  ASSERT_EQ(engine.Hits(engine.Keys(Tokens(3, tokens))), 2u);

  std::vector<kvtier_model_spec> others(11, TestSpec());
  others[0].lora = "adapter:1";
  others[1].lora = "adapter:2";
  others[2].revision = "other";
  others[3].config_digest = "rope";
  others[4].kv_scales = "scales";
  others[5].layout_id = "other";
  others[6].dtype = KVTIER_BF16;
  others[7].tp_rank = 1, others[7].tp_size = 2;
  others[8].pp_size = 2;
  others[9].layer_group = 1;
  others[10].boost_channels = 8;
  for (size_t i = 0; i < others.size(); ++i) {
    const auto other = engine.client.RegisterModel(others[i]);
    ASSERT_TRUE(other) << i << ": " << api::LastError();
    const auto sequence = other->Keys(Tokens(3, tokens));
    EXPECT_EQ(other->Lookup(sequence->Query())->tokens, 0u) << i;
    EXPECT_EQ(other->Acquire(sequence->Query()).code(), KVTIER_NOT_FOUND) << i;
    // Nor do the first model's keys open its blocks under another model.
    EXPECT_EQ(other->Lookup(engine.Keys(Tokens(3, tokens)).Query())->tokens, 0u) << i;
  }
}

TEST_F(Ladder, PutOfAPresentBlockKeepsItsImage) {
  StartDaemon(kThreeTiers);
  const Engine engine = Connect();
  const size_t tokens = 2 * kBlockTokens;
  const api::Sequence sequence = engine.Keys(Tokens(4, tokens));
  Kv kv = Kv::Random(4, tokens);
  engine.Put(sequence, kv);
  Demote("hot", 2);
  Kv other = Kv::Random(5, tokens);
  for (const auto& result : engine.Put(sequence, other)) {
    EXPECT_EQ(result.code, KVTIER_PRESENT);
    EXPECT_EQ(result.precision, KVTIER_INT4);
    EXPECT_EQ(result.tier, 1u);
  }
  Kv out(tokens);
  engine.Fetch(sequence, out);
  EXPECT_LT(kv.ErrorOver(out, 0, tokens), 0.2);
}

TEST_F(Ladder, S30_ABlockThatLookupReportedMayBeGoneAndAcquireSaysSo) {
  StartDaemon({});
  const Engine engine = Connect();
  const api::Sequence sequence = engine.Keys(Tokens(6, 4 * kBlockTokens));
  Kv kv = Kv::Random(6, 4 * kBlockTokens);
  engine.Put(sequence, kv);
  ASSERT_EQ(engine.Hits(sequence), 4u);
  auto held = engine.model.Acquire(sequence.Query());
  ASSERT_TRUE(held);
  ASSERT_EQ(*engine.model.Remove(sequence.Query(2, 1)), 1u);

  EXPECT_EQ(engine.Hits(sequence), 2u);
  auto later = engine.model.Acquire(sequence.Query());
  ASSERT_TRUE(later);
  EXPECT_EQ(later->count(), 2u);
  EXPECT_EQ(engine.model.Acquire(sequence.Query(2, 1)).code(), KVTIER_NOT_FOUND);
  // What was acquired is there until it is released.
  Kv out(4 * kBlockTokens);
  std::vector<kvtier_block_result> results(4);
  EXPECT_EQ(held->Fetch(0, out.View(), results), KVTIER_OK);
  EXPECT_EQ(out.values(), kv.values());
}

TEST_F(Ladder, S31_EveryAcknowledgedPutIsFoundFarOverCapacity) {
  StartDaemon({.hot_bytes = uint64_t{16} << 20,
               .warm_bytes = uint64_t{16} << 20,
               .cold_bytes = uint64_t{128} << 20,
               .more = {}});
  const Engine engine = Connect();
  const size_t sequences = 200, blocks = 4, tokens = blocks * kBlockTokens;  // 100 MiB raw
  size_t stored = 0, refused = 0, found = 0;
  std::vector<bool> acknowledged;
  for (uint32_t i = 0; i < sequences; ++i) {
    Kv kv = Kv::Random(i, tokens);
    for (const auto& result : engine.Put(engine.Keys(Tokens(i, tokens)), kv)) {
      acknowledged.push_back(result.code == KVTIER_OK);
      (result.code == KVTIER_OK ? stored : refused) += 1;
    }
  }
  EXPECT_EQ(stored + refused, sequences * blocks);
  EXPECT_EQ(refused, 0u) << "the cold tier has room for all";
  for (uint32_t i = 0; i < sequences; ++i) {
    const api::Sequence sequence = engine.Keys(Tokens(i, tokens));
    for (size_t b = 0; b < blocks; ++b) {
      const bool hit = engine.model.Lookup(sequence.Query(b, 1))->blocks == 1;
      EXPECT_TRUE(hit || !acknowledged[i * blocks + b])
          << "block " << b << " of sequence " << i << " is lost";
      found += hit ? 1 : 0;
    }
  }
  EXPECT_EQ(found, stored);
  EXPECT_EQ(daemon_->Metric("kvtier_put_offered_blocks_total").value(), sequences * blocks);
  EXPECT_EQ(daemon_->Metric("kvtier_put_blocks_total{outcome=\"stored\"}").value(), stored);
}

TEST_F(Ladder, S48_ALookupHitFetchesValidBytesOrSaysWhyNot) {
  StartDaemon(kThreeTiers);
  const Engine engine = Connect();
  const size_t tokens = 4 * kBlockTokens;
  const api::Sequence sequence = engine.Keys(Tokens(7, tokens));
  Kv kv = Kv::Random(7, tokens);
  engine.Put(sequence, kv);
  Demote("hot", 4);
  Demote("warm", 4);
  for (int round = 0; round < 20; ++round) {
    ASSERT_EQ(engine.Hits(sequence), 4u);
    Kv out(tokens);
    const auto results = engine.Fetch(sequence, out);
    ASSERT_EQ(results.size(), 4u) << api::LastError();
    EXPECT_LT(kv.ErrorOver(out, 0, tokens), 0.6);
  }
}

TEST_F(Ladder, PrefetchMovesColdBlocksUp) {
  StartDaemon(kThreeTiers);
  const Engine engine = Connect();
  const size_t tokens = 4 * kBlockTokens;
  const api::Sequence sequence = engine.Keys(Tokens(8, tokens));
  Kv kv = Kv::Random(8, tokens);
  engine.Put(sequence, kv);
  Demote("hot", 4);
  Demote("warm", 4);
  const kvtier_query query = sequence.Query();
  kvtier_ticket ticket = 0;
  uint32_t started = 0;
  ASSERT_EQ(kvtier_prefetch(engine.model.get(), &query, 1, 0, &ticket, &started), KVTIER_OK)
      << api::LastError();
  EXPECT_EQ(started, 4u);
  ASSERT_EQ(engine.client.Wait(ticket, {}, kPatienceMs), KVTIER_OK) << api::LastError();
  std::vector<kvtier_match> matches(4);
  kvtier_lookup_result result{};
  kvtier_lookup(engine.model.get(), &query, matches.data(), &result, 0);
  EXPECT_EQ(result.blocks, 4u);
  EXPECT_TRUE(std::ranges::all_of(matches, [](const kvtier_match& m) { return m.tier == 1; }));
  EXPECT_EQ(engine.client.Wait(ticket), KVTIER_STALE);
  EXPECT_EQ(engine.client.Cancel(ticket), KVTIER_STALE);
}

TEST_F(Ladder, AFloorThatNoCopyMeetsIsAMiss) {
  StartDaemon(kThreeTiers);
  const Engine engine = Connect();
  const api::Sequence sequence = engine.Keys(Tokens(9, kBlockTokens));
  Kv kv = Kv::Random(9, kBlockTokens);
  engine.Put(sequence, kv);
  Demote("hot", 1);
  kvtier_acquire_options options = api::AcquireOptions();
  options.min_precision = KVTIER_BITS16;
  EXPECT_EQ(engine.model.Acquire(sequence.Query(), options).code(), KVTIER_NOT_FOUND);
  options.min_precision = KVTIER_INT4;
  EXPECT_TRUE(engine.model.Acquire(sequence.Query(), options));
}

TEST_F(Ladder, S69_AConversationReturnsAndRecomputesOnlyItsNewTokens) {
  StartDaemon({});
  const Engine engine = Connect();
  // Shorter than a block, then longer, then with a sealed block, each time with the whole history and new
  // text.
  const std::vector<int32_t> whole = Tokens(10, 200);
  Kv kv = Kv::Random(10, 200);
  size_t before = 0;
  for (const size_t length : {20u, 50u, 100u, 190u}) {
    const api::Sequence sequence = engine.Keys({whole.begin(), whole.begin() + static_cast<long>(length)});
    const auto found = engine.model.Lookup(sequence.Query());
    ASSERT_TRUE(found);
    EXPECT_EQ(found->tokens, before) << "every old token hits, at " << length;
    if (before > 0) {
      auto lease = engine.model.Acquire(sequence.Query());
      ASSERT_TRUE(lease) << api::LastError();
      EXPECT_EQ(lease->tokens(), before);
      Kv out(200);
      std::vector<kvtier_block_result> results(lease->count());
      ASSERT_EQ(lease->Fetch(0, out.View(), results), KVTIER_OK);
      EXPECT_TRUE(kv.SameOver(out, 0, before));
    }
    for (const auto& result : engine.Put(sequence, kv)) {
      EXPECT_TRUE(result.code == KVTIER_OK || result.code == KVTIER_PRESENT) << kvtier_code_name(result.code);
    }
    before = length;
  }
  // A tail that a longer tail or its sealed block covers is gone.
  EXPECT_EQ(engine.Stats().blocks, 3u) << "two full blocks and the newest tail";

  std::vector<int32_t> diverged = whole;
  diverged[150] += 1;
  EXPECT_EQ(engine.model.Lookup(engine.Keys(diverged).Query())->tokens, 2 * kBlockTokens)
      << "a diverging tail hits up to the last full block";
  const api::Sequence returning = engine.Keys({whole.begin(), whole.begin() + 190});
  kvtier_query query = returning.Query();
  query.before_last_token = 1;
  EXPECT_EQ(engine.model.Lookup(query)->tokens, 2 * kBlockTokens) << "the tail reaches the last token";
}

}  // namespace
}  // namespace kvtier::e2e
