#include "client/ctl/size.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "daemon/policy/model_spec.h"
#include "tiers/arena_allocator.h"

namespace kvtier::ctl {
namespace {

constexpr uint64_t kMiB = uint64_t{1} << 20, kGiB = uint64_t{1} << 30;

SizeRequest Request() {
  return {
      .block =
          {.layers = 28, .kv_heads = 2, .k_dim = 128, .v_dim = 128, .tokens = 128, .nb = DefaultBoost(128)},
      .hot_bytes = 4 * kGiB,
      .warm_bytes = 24 * kGiB,
      .cold_bytes = 256 * kGiB,
      .tokens_per_second = 1000};
}

const TierSize& Find(const std::vector<TierSize>& tiers, std::string_view name, Precision precision) {
  const auto found = std::ranges::find_if(
      tiers, [&](const TierSize& tier) { return tier.tier == name && tier.precision == precision; });
  KVTIER_CHECK(found != tiers.end());
  return *found;
}

TEST(Size, EachTierHoldsBlocksInItsPrecision) {
  const SizeRequest request = Request();
  const std::vector<TierSize> tiers = SizeLadder(request).value();
  ASSERT_EQ(tiers.size(), 4u);
  const TierSize& hot = Find(tiers, "hot", Precision::kBits16);
  const TierSize& warm = Find(tiers, "warm", Precision::kInt4);
  const TierSize& whole = Find(tiers, "cold", Precision::kInt4);
  const TierSize& base = Find(tiers, "cold", Precision::kInt2);
  const double raw = static_cast<double>(RawBlockBytes(request.block));
  EXPECT_NEAR(static_cast<double>(hot.block_bytes) / raw, 1, 0.01);
  // 4.2 and 2.7 bits a number, and some for records and alignment.
  EXPECT_NEAR(16 * static_cast<double>(warm.block_bytes) / raw, 4.2, 0.2);
  EXPECT_NEAR(16 * static_cast<double>(base.block_bytes) / raw, 2.7, 0.2);
  EXPECT_GT(whole.block_bytes, warm.block_bytes) << "the boost is stored as well";
  for (const TierSize& tier : tiers) {
    const double filled = static_cast<double>(tier.blocks * tier.block_bytes);
    EXPECT_LE(tier.blocks * tier.block_bytes, tier.capacity_bytes) << tier.tier;
    EXPECT_GT(filled, 0.95 * static_cast<double>(tier.capacity_bytes)) << tier.tier;
  }
}

TEST(Size, AHostTierHoldsWhatItsAllocatorHandsOut) {
  for (const uint64_t capacity : {3 * kMiB, 16 * kMiB, 100 * kMiB + 12'345, 1111 * kMiB}) {
    SizeRequest request = Request();
    request.block.layers = 4;
    request.hot_bytes = capacity;
    request.warm_bytes = request.cold_bytes = 0;
    const TierSize size = SizeLadder(request).value().at(0);
    ArenaAllocator allocator(TierId{0}, capacity);
    uint64_t slots = 0;
    for (uint32_t id = 1;; ++id) {
      const auto arena = allocator.Plan(ArenaId{id}, {TenantId{0}, size.block_bytes});
      if (!arena) break;
      slots += arena->slots;
    }
    EXPECT_EQ(size.blocks, slots) << capacity;
  }
}

TEST(Size, TailsTakeTheirRoomAndCanBeLeftOut) {
  SizeRequest request = Request();
  request.keep_tails = false;
  const std::vector<TierSize> without = SizeLadder(request).value();
  ASSERT_EQ(without.size(), 3u);
  request.keep_tails = true;
  EXPECT_GT(Find(without, "cold", Precision::kInt2).blocks,
            Find(SizeLadder(request).value(), "cold", Precision::kInt2).blocks);
}

TEST(Size, ABlockIsInOneSegment) {
  SizeRequest request = Request();
  request.hot_bytes = request.warm_bytes = 0;
  request.keep_tails = false;
  request.cold_bytes = kGiB;
  const uint64_t base = SizeLadder(request).value().at(0).block_bytes;
  request.segment_bytes = 2 * base;  // one of them, with the header: the rest is too small for another
  const uint64_t segments = request.cold_bytes / request.segment_bytes;
  EXPECT_LE(SizeLadder(request).value().at(0).blocks, segments);
  request.segment_bytes = base;
  EXPECT_EQ(SizeLadder(request).status().code(), Code::kInvalidArgument);
}

TEST(Size, TellsHowLongATierLasts) {
  SizeRequest request = Request();
  request.warm_bytes = request.cold_bytes = 0;
  const uint64_t tokens = SizeLadder(request).value().at(0).blocks * 128;
  ASSERT_EQ(tokens / 60'000, 2u) << "at 1,000 a second";
  EXPECT_THAT(SizeReport(request, Format::kHuman).value(), testing::HasSubstr("2.5 min"));
  EXPECT_THAT(SizeReport(request, Format::kJson).value(),
              testing::HasSubstr("\"tokens\":" + std::to_string(tokens)));
}

TEST(Size, SaysWhatCannotWork) {
  SizeRequest request = Request();
  request.hot_bytes = request.warm_bytes = request.cold_bytes = 0;
  EXPECT_EQ(SizeLadder(request).status().code(), Code::kInvalidArgument);
  request.hot_bytes = kMiB;  // less than a block
  EXPECT_EQ(SizeLadder(request).status().code(), Code::kInvalidArgument);
  request = Request();
  request.block.k_dim = 100;
  EXPECT_EQ(SizeLadder(request).status().code(), Code::kInvalidArgument);
}

}  // namespace
}  // namespace kvtier::ctl
