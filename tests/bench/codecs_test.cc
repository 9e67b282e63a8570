#include "tests/bench/codecs.h"

#include <gtest/gtest.h>

namespace kvtier::bench {
namespace {

TEST(CodecBoundsTest, ADecodeHoldsFromItsRatioOn) {
  CodecLine line = {.bound = SpeedBound{.ratio = 1.3, .aim = 1.75}};
  line.to_memcpy = 1.29;
  EXPECT_FALSE(line.Holds());
  line.to_memcpy = 1.3;
  EXPECT_TRUE(line.Holds());
}

TEST(CodecBoundsTest, InCacheEnoughGigabytesASecondWillDoAsWell) {
  CodecLine line = {.bound = SpeedBound{.ratio = 0.45, .aim = 0.45, .gbps_instead = 25}};
  line.to_memcpy = 0.4;
  line.gbps = 24.9;
  EXPECT_FALSE(line.Holds());
  line.gbps = 25;
  EXPECT_TRUE(line.Holds());
}

TEST(CodecBoundsTest, ChecksumsMayAddAFifth) {
  CodecLine line = {.checksum_share = 0.21};
  EXPECT_FALSE(line.Holds());
  line.checksum_share = 0.19;
  EXPECT_TRUE(line.Holds());
}

TEST(CodecsTest, WordsThatNoLineHasAreAnErrorAndNotAnEmptyTable) {
  CodecsOptions options;
  options.only = "kv4p no-such-word";
  const Result<std::vector<CodecLine>> lines = MeasureCodecs(options);
  EXPECT_EQ(lines.status().code(), Code::kNotFound);
  EXPECT_NE(lines.status().message().find(options.only), std::string::npos) << lines.status().ToString();
}

TEST(CodecBoundsTest, EveryCutOfInt4AndEveryPlaneFamilyDecodeHasABound) {
  const Codec* kv4p = FindCodec(CodecId::kKv4p);
  for (const CodecId id : {CodecId::kKv4p, CodecId::kKv42, CodecId::kKv2p}) {
    const Codec* codec = FindCodec(id);
    EXPECT_TRUE(BoundOf(*codec, {.work = Work::kDecode}, Residency::kDram).has_value());
    EXPECT_TRUE(BoundOf(*codec, {.work = Work::kDecode}, Residency::kCache).has_value());
    if (codec != kv4p) {
      EXPECT_TRUE(BoundOf(*kv4p, {.work = Work::kCut, .to = codec}, Residency::kDram).has_value());
    }
  }
}

}  // namespace
}  // namespace kvtier::bench
