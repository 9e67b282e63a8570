// That the guards around decoders notice what decoders may not do.
#include <gtest/gtest.h>

#include <vector>

#include "kernels/simd/dispatch.h"
#include "tests/fuzz/guarded_decode.h"

namespace kvtier {
namespace {

using Bytes = std::vector<std::byte>;

/// Codecs with a fault.
class FaultyDecodeTest : public testing::Test {
 protected:
  using Decode = void (*)(const BlockShape&, uint8_t, const ConstLayerParts&, const KvLayerView&);

  void Run(Decode decode, const DecodeTarget& target = {}) const {
    Codec codec = *FindCodec("raw16");
    codec.decode = decode;
    const BlockShape shape = {.layers = 1, .kv_heads = 1, .k_dim = 16, .v_dim = 16, .tokens = 4};
    const Bytes part(PartBytes(codec.id, shape, 0, Region::kBase));
    ConstLayerParts parts;
    parts.part[0] = part;
    DecodeGuarded(codec, shape, 0, parts, target);
  }
};

TEST_F(FaultyDecodeTest, ADecoderThatReadsOneByteTooFarDies) {
  EXPECT_DEATH(Run([](const BlockShape&, uint8_t, const ConstLayerParts& in, const KvLayerView& out) {
                 *out.k = *(in.part[0].data() + in.part[0].size());
               }),
               "");
}

TEST_F(FaultyDecodeTest, ADecoderThatWritesOneByteTooFarDies) {
  EXPECT_DEATH(Run([](const BlockShape& s, uint8_t, const ConstLayerParts&, const KvLayerView& out) {
                 out.v[out.Row(0, s.tokens - 1u) + s.v_dim * out.channel_stride] = std::byte{1};
               }),
               "");
}

TEST_F(FaultyDecodeTest, ADecoderThatWritesIntoSomebodyElsesPageDies) {
  constexpr uint32_t kPagesOf16 = 6;
  EXPECT_DEATH(Run([](const BlockShape&, uint8_t, const ConstLayerParts&,
                      const KvLayerView& out) { *out.k = std::byte{1}; },
                   {.layout = kPagesOf16}),
               "check failed");
}

TEST_F(FaultyDecodeTest, ADecoderThatDependsOnTheSimdLevelDies) {
  ASSERT_GT(AvailableSimdLevels().size(), 1u) << "only one level on this CPU: nothing to compare";
  EXPECT_DEATH(Run([](const BlockShape&, uint8_t, const ConstLayerParts&, const KvLayerView& out) {
                 *out.k = static_cast<std::byte>(CurrentSimdLevel());
               }),
               "check failed");
}

}  // namespace
}  // namespace kvtier
