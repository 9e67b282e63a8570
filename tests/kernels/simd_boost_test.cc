// Demotion to INT2 gives the bytes of the portable body on every set of vector instructions.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "kernels/simd/boost_simd.h"
#include "kernels/simd/dispatch.h"
#include "kernels/team.h"
#include "tests/codecs/guarded_memory.h"

namespace kvtier {
namespace {

constexpr uint32_t kSeed = 31;

class SimdBoostTest : public testing::TestWithParam<SimdLevel> {
 protected:
  void SetUp() override { LimitSimd(GetParam()); }
  void TearDown() override { LimitSimd(AvailableSimdLevels().back()); }
};

/// Scales: `kinds` different values, so that few kinds mean many ties.
void ExpectPortableBytes(const BlockShape& shape, std::mt19937& random, uint32_t kinds) {
  const size_t heads = shape.kv_heads, rows = heads * PaddedTokens(shape);
  const GuardedMemory scale(2 * heads * shape.k_dim, GuardedEnd::kBack),
      low(rows * shape.k_dim / 4, GuardedEnd::kBack);
  for (size_t c = 0; c < heads * shape.k_dim; ++c)
    Store16(scale.span().data() + 2 * c, static_cast<uint16_t>(0xffff - random() % kinds));
  for (std::byte& byte : low.span()) byte = static_cast<std::byte>(random());

  std::vector<std::byte> results[2];
  for (const int simd : {0, 1}) {
    const GuardedMemory ids(heads * shape.nb, GuardedEnd::kBack),
        bits(rows * shape.nb / 4, GuardedEnd::kBack);
    GatherBoostArgs args = {.shape = shape, .in = {}, .out = {}};
    args.in.k_scale = reinterpret_cast<const uint8_t*>(scale.span().data());
    args.in.k_low = reinterpret_cast<const uint8_t*>(low.span().data());
    args.out.boost_ids = reinterpret_cast<uint8_t*>(ids.span().data());
    args.out.boost_low = reinterpret_cast<uint8_t*>(bits.span().data());
    if (simd == 1) {
      GatherBoostSimd(args);
    } else {
      LaunchSerial(GatherBoostLaunch(shape), [&](const SerialTeam& team) { GatherBoostBits(team, args); });
    }
    results[simd].assign(ids.span().begin(), ids.span().end());
    results[simd].insert(results[simd].end(), bits.span().begin(), bits.span().end());
  }
  ASSERT_EQ(results[0], results[1]) << "Dk " << shape.k_dim << " T " << shape.tokens << " nb "
                                    << int{shape.nb} << " kinds " << kinds;
}

TEST_P(SimdBoostTest, GathersAsThePortableBodyDoes) {
  std::mt19937 random(kSeed);
  for (uint16_t k_dim = 16; k_dim <= kMaxHeadDim; k_dim += 16) {
    for (const uint32_t nb : {4u, k_dim / 8 * 4u, k_dim / 32 * 4u, std::min<uint32_t>(k_dim, 252)}) {
      if (nb == 0) continue;
      const BlockShape shape = {.layers = 1,
                                .kv_heads = 2,
                                .k_dim = k_dim,
                                .v_dim = 16,
                                .tokens = static_cast<uint16_t>(4 + k_dim / 16),
                                .nb = static_cast<uint8_t>(nb)};
      for (const uint32_t kinds : {1u, 3u, 0x10000u}) ExpectPortableBytes(shape, random, kinds);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Levels, SimdBoostTest,
                         testing::ValuesIn(AvailableSimdLevels().begin(), AvailableSimdLevels().end()),
                         [](const auto& info) {
                           std::string name(SimdLevelName(info.param));
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

}  // namespace
}  // namespace kvtier
