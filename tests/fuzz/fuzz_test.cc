// What the fuzzers do, with seeded inputs and in a few seconds; and that it can fail.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

#include "kernels/simd/dispatch.h"
#include "tests/fuzz/guarded_decode.h"
#include "tests/fuzz/inputs.h"
#include "tests/fuzz/real_images.h"

namespace kvtier {
namespace {

constexpr uint32_t kSeed = 2718;
constexpr int kArbitraryInputs = 800;
constexpr int kMutationsOfAnImage = 100;

using Bytes = std::vector<std::byte>;

TEST(FuzzTest, ArbitraryPartsDecodeWithinTheirMemoryAndTheSameOnEverySimdLevel) {
  SCOPED_TRACE(testing::Message() << "seed " << kSeed);
  std::mt19937 random(kSeed);
  for (int round = 0; round < kArbitraryInputs; ++round) {
    Bytes input(16 + random() % 4096);
    // Now and then bytes that mean something: zeros, all ones, the exponent of infinity.
    const uint32_t tenth = random() % 10;
    for (std::byte& byte : input)
      byte = static_cast<std::byte>(random() % 10 < tenth ? random() : 0x7cff00fc >> random() % 4 * 8);
    for (size_t at = 0; at < 12; ++at) input[at] = static_cast<std::byte>(random());
    DecodeArbitraryParts(input);
  }
}

/// One to four changes: bytes of the header or the table, of the sections, a piece of another image, a cut.
void Mutate(Bytes& image, const std::vector<Bytes>& others, std::mt19937& random) {
  constexpr uint8_t kTelling[] = {0x00, 0x01, 0x7f, 0x80, 0xff, 0x7c, 0xfc, 0x7e, 0xf7, 0xf8};
  for (uint32_t changes = 1 + random() % 4; changes > 0; --changes) {
    const auto value =
        static_cast<std::byte>(random() % 2 == 0 ? random() : kTelling[random() % std::size(kTelling)]);
    const uint32_t kind = random() % 16;
    if (kind == 0) {
      image.resize(random() % image.size() + 1);
    } else if (kind < 3) {
      image[random() % std::min<size_t>(image.size(), 350)] = value;
    } else if (kind < 10) {
      image[random() % image.size()] = value;
    } else {
      const Bytes& other = others[random() % others.size()];
      const size_t from = random() % std::min(other.size(), image.size());
      const size_t bytes = std::min({size_t{1} + random() % 256, other.size() - from, image.size() - from});
      if (kind < 13 && from > 400) {
        std::copy_n(other.begin() + static_cast<ptrdiff_t>(from), bytes,
                    image.begin() + static_cast<ptrdiff_t>(from));
      } else if (from > 400) {
        std::fill_n(image.begin() + static_cast<ptrdiff_t>(from), bytes, value);
      }
    }
  }
}

TEST(FuzzTest, S44_MutatedImagesAreRefusedOrDecodeWithinTheirMemory) {
  SCOPED_TRACE(testing::Message() << "seed " << kSeed);
  std::mt19937 random(kSeed);
  const Result<std::vector<Bytes>> real_images = RealImages();
  ASSERT_TRUE(real_images.ok()) << real_images.status().ToString();
  const std::vector<Bytes>& images = *real_images;
  int parsed = 0, refused = 0;
  for (const Bytes& image : images) {
    for (int round = 0; round < kMutationsOfAnImage; ++round) {
      Bytes mutated = image;
      Mutate(mutated, images, random);
      const Bytes prologue = {static_cast<std::byte>(random()), static_cast<std::byte>(random())};
      mutated.insert(mutated.begin(), prologue.begin(), prologue.end());
      static_assert(kImagePrologueBytes == 2);
      ++(DecodeArbitraryImage(mutated) ? parsed : refused);
    }
  }
  EXPECT_GT(parsed, 100) << "the mutations are too strong to test a decoder";
  EXPECT_GT(refused, 100) << "the mutations are too weak to test the parser";
}

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
