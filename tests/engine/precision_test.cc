// Which codec a block has where, by what the engine gave and what the tiers say.
#include "tests/engine/ladder_fixture.h"

namespace kvtier {
namespace {

constexpr TierId kHot{0};

ModelSpec Fp8Model() {
  ModelSpec spec = TinyModel("fp8");
  spec.dtype = DType::kE4m3;
  spec.k_scales = {0.5f};
  spec.v_scales = {0.25f};
  return spec;
}

/// A model on two host tiers, the upper one with a codec of choice.
struct Stand {
  Stand(CodecId hot, const ModelSpec& spec)
      : ladder({.tiers = {HostTier("hot", kMiB, hot), HostTier("warm", kMiB, CodecId::kKv4p)}}), spec(spec) {
    model = ladder.harness.Register(ladder.session, spec);
  }
  ~Stand() { ladder.harness.engine().CheckInvariants(); }

  Code PutOne(PutBlock block, Precision floor = Precision::kNone) {
    Put put;
    put.session = ladder.session;
    put.model = model;
    put.ticket = TicketId{ladder.harness.next_ticket++};
    put.floor = floor;
    put.blocks.push_back(std::move(block));
    const Result<PutReply> reply = ladder.harness.Call<PutReply>(std::move(put));
    return reply.ok() ? reply->blocks[0].code : reply.status().code();
  }
  Code PutNumber(uint64_t number, Precision floor = Precision::kNone) {
    return PutOne(ladder.harness.ChainBlock(spec, number), floor);
  }
  CodecId CodecOf(const Key& key) {
    const uint64_t lease = next_lease++;
    const Result<AcquireReply> reply = ladder.harness.AcquireKeys(ladder.session, model, lease, {key});
    if (!reply.ok() || reply->run.size() != 1) return CodecId::kNone;
    EXPECT_TRUE(ladder.harness.ReleaseLease(ladder.session, lease).ok());
    return reply->run[0].codec;
  }
  CodecId CodecOf(uint64_t number) { return CodecOf(ladder.harness.ChainKeysOf(number, 1)[0]); }
  void DemoteAll() { ladder.harness.Call<uint64_t>(AdminDemote{kHot, 100, {}}).value(); }

  LadderFixture ladder;
  ModelSpec spec;
  ModelId model;
  uint64_t next_lease = 1;
};

TEST(PrecisionTest, AKv8TierEncodesWhatIsPutAndPassesItOnAsInt4) {
  Stand stand(CodecId::kKv8, TinyModel());
  ASSERT_EQ(stand.PutNumber(1), Code::kOk);
  EXPECT_EQ(stand.CodecOf(1), CodecId::kKv8);
  stand.DemoteAll();
  EXPECT_EQ(stand.CodecOf(1), CodecId::kKv4p);
}

TEST(PrecisionTest, AKv8TierEncodesTailsToo) {
  Stand stand(CodecId::kKv8, TinyModel());
  PutBlock tail = stand.ladder.harness.ChainBlock(stand.spec, 1);
  tail.tokens = 2;
  tail.source = OwnedSource(stand.spec, 2, 7);
  const Key key = tail.key;
  ASSERT_EQ(stand.PutOne(std::move(tail)), Code::kOk);
  EXPECT_EQ(stand.CodecOf(key), CodecId::kKv8);
  stand.DemoteAll();
  EXPECT_EQ(stand.CodecOf(key), CodecId::kKv8) << "the plane family is not for tails";
}

TEST(PrecisionTest, AFloorOf16BitsKeepsABlockRawInAKv8Tier) {
  Stand stand(CodecId::kKv8, TinyModel());
  ASSERT_EQ(stand.PutNumber(1, Precision::kBits16), Code::kOk);
  EXPECT_EQ(stand.CodecOf(1), CodecId::kRaw16);
}

TEST(PrecisionTest, AFloorOfEightBitsKeepsABlockFromInt4) {
  Stand stand(CodecId::kRaw16, TinyModel());
  ASSERT_EQ(stand.PutNumber(1, Precision::kBits8), Code::kOk);
  EXPECT_EQ(stand.CodecOf(1), CodecId::kRaw16);
  stand.DemoteAll();
  EXPECT_EQ(stand.CodecOf(1), CodecId::kKv8);
}

TEST(PrecisionTest, Fp8StaysAsGivenUntilItLeavesHot) {
  for (const CodecId hot : {CodecId::kRaw16, CodecId::kKv8}) {
    Stand stand(hot, Fp8Model());
    ASSERT_EQ(stand.PutNumber(1), Code::kOk);
    EXPECT_EQ(stand.CodecOf(1), CodecId::kRaw8);
    stand.DemoteAll();
    EXPECT_EQ(stand.CodecOf(1), CodecId::kKv4p);
  }
}

TEST(PrecisionTest, EveryMoveOfAnFp8BlockCarriesTheScalesOfItsModel) {
  Stand stand(CodecId::kRaw16, Fp8Model());
  size_t moves = 0;
  stand.ladder.harness.fake().job_fault = [&](const Job& job) -> std::optional<Status> {
    const auto* move = std::get_if<MoveJob>(&job.work);
    if (move == nullptr) return std::nullopt;
    ++moves;
    EXPECT_NE(move->order.scales, nullptr);
    if (move->order.scales != nullptr) {
      EXPECT_EQ(*move->order.scales, std::vector<Fp8Scales>({{.k = 0.5f, .v = 0.25f}}));
    }
    return std::nullopt;
  };
  ASSERT_EQ(stand.PutNumber(1), Code::kOk);
  stand.DemoteAll();
  EXPECT_EQ(moves, 2u);
}

TEST(PrecisionTest, AFloorAboveWhatFp8HasIsRefused) {
  Stand stand(CodecId::kRaw16, Fp8Model());
  EXPECT_EQ(stand.PutNumber(1, Precision::kBits16), Code::kInvalidArgument);
  EXPECT_EQ(stand.PutNumber(1, Precision::kBits8), Code::kOk);
}

}  // namespace
}  // namespace kvtier
