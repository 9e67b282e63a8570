// Killed straight after an acknowledgement.
#include "tests/e2e/e2e.h"

namespace kvtier::e2e {
namespace {

class Durable : public E2eTest, public testing::WithParamInterface<size_t> {};

TEST_P(Durable, S40_EverythingAcknowledgedAsDurableIsThereAfterAKillStraightAfter) {
  const size_t blocks = GetParam(), tokens = blocks * kBlockTokens;
  StartDaemon({.hot_bytes = uint64_t{128} << 20, .cold_bytes = uint64_t{256} << 20, .more = {}});
  Kv kv = Kv::Random(1, tokens);
  {
    const Engine engine = Connect();
    const api::Sequence sequence = engine.Keys(Tokens(1, tokens));
    const auto results = engine.Put(sequence, kv, KVTIER_DURABLE);
    daemon_->Kill();
    for (const auto& result : results) ASSERT_EQ(result.code, KVTIER_OK);
  }
  ASSERT_TRUE(daemon_->Start().ok()) << daemon_->Log();
  const Engine engine = Connect();
  const api::Sequence sequence = engine.Keys(Tokens(1, tokens));
  ASSERT_EQ(engine.Hits(sequence), blocks);
  Kv out(tokens);
  // In pieces that a session may lease at once.
  constexpr size_t kPiece = 32;
  for (size_t first = 0; first < blocks; first += kPiece) {
    const size_t count = std::min(kPiece, blocks - first);
    auto lease = engine.model.Acquire(sequence.Query(first, count));
    ASSERT_TRUE(lease) << kvtier_last_error();
    ASSERT_EQ(lease->count(), count) << first;
    std::vector<kvtier_block_result> results(count);
    ASSERT_EQ(lease->Fetch(0, out.View(first * kBlockTokens), results), KVTIER_OK) << kvtier_last_error();
    for (const auto& result : results) EXPECT_EQ(result.precision, KVTIER_INT4);
  }
  EXPECT_LT(kv.ErrorOver(out, 0, tokens), 0.12);
}
INSTANTIATE_TEST_SUITE_P(Blocks, Durable, testing::Values(20, 256, 512));

}  // namespace
}  // namespace kvtier::e2e
