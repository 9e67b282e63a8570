#include "client/src/attend.h"

#include <gtest/gtest.h>

#include <cstring>

#include "tests/support/blocks.h"
#include "tiers/arena_store.h"

namespace kvtier::client {
namespace {

/// Two slots of a real arena; slot 0 holds a block.
class AttendImageTest : public testing::Test {
 protected:
  static constexpr uint64_t kSlotBytes = 256 << 10;

  void SetUp() override {
    const ArenaSpec spec{.id = ArenaId{1}, .tier = {}, .tenant = {}, .slots = 2, .slot_bytes = kSlotBytes};
    ASSERT_TRUE(store_.Create(spec).ok());
    v1::ArenaOffer offer;
    offer.set_arena(1);
    offer.set_slots(spec.slots);
    offer.set_slot_bytes(kSlotBytes);
    offer.set_bytes(ArenaBytes(spec.slots, kSlotBytes));
    arena_ = std::move(map_.Add(offer, store_.Descriptor(ArenaId{1}).value())).value();
    const BlockShape& shape = identity_.shape;
    q_.assign(size_t{2} * shape.kv_heads * shape.k_dim, 0.25f);
    query_ = {.q = q_.data(), .query_heads = 2u * shape.kv_heads, .scale = 0.125f};
  }
  std::span<std::byte> Slot(uint64_t epoch) {
    AlignedBuffer unused;
    return std::move(store_.BeginWrite({.tier = {},
                                        .container = 1,
                                        .slot = 0,
                                        .offset = ArenaHeaderBytes(2),
                                        .bytes = kSlotBytes,
                                        .epoch = epoch},
                                       unused))
        .value();
  }
  void Store(CodecId codec, uint64_t epoch = 1) {
    const Result<OwnedImage> image = EncodeOwned(*FindCodec(codec), identity_, raw_);
    ASSERT_TRUE(image.ok()) << image.status().ToString();
    image_bytes_ = image->bytes.size();
    std::memcpy(Slot(epoch).data(), image->bytes.data(), image_bytes_);
  }
  SlotGuard GuardOf(uint64_t epoch) const { return {.arena = *arena_, .slot = 0, .epoch = epoch}; }
  Result<std::shared_ptr<CheckedBlock>> Check(uint64_t epoch = 1) const {
    return CheckBlock(arena_->At(0, ArenaHeaderBytes(2), image_bytes_).value(), identity_, GuardOf(epoch));
  }
  Result<VForm> Attend(CheckedBlock& block, uint16_t layer = 0, uint64_t epoch = 1) {
    return AttendImage(block, layer, query_, out_.View(), GuardOf(epoch));
  }

  BlockIdentity identity_ = MakeIdentity(1);
  std::vector<std::byte> raw_ = RandomRaw(identity_.shape, 3);
  ArenaStore store_;
  ArenaMap map_{[](uint32_t) {}};
  std::shared_ptr<const Arena> arena_;
  uint64_t image_bytes_ = 0;
  std::vector<float> q_;
  AttentionQuery query_;
  OwnedPartial out_{2u * identity_.shape.kv_heads, identity_.shape.v_dim};
};

TEST_F(AttendImageTest, AnswersWhatTheCodecAnswers) {
  for (const CodecId codec : {CodecId::kRaw16, CodecId::kKv4p, CodecId::kKv2p}) {
    Store(codec);
    const auto block = Check();
    ASSERT_TRUE(block.ok()) << block.status().ToString();
    OwnedPartial expected(query_.query_heads, identity_.shape.v_dim);
    for (uint16_t layer = 0; layer < identity_.shape.layers; ++layer) {
      const auto form = Attend(**block, layer);
      ASSERT_TRUE(form.ok()) << form.status().ToString();
      const ImageView& image = (*block)->image();
      EXPECT_EQ(*form, image.codec->attend(image.identity.shape, image.table[layer].planes,
                                           image.Parts(layer), query_, expected.View()));
      EXPECT_EQ(out_.View().m[0], expected.View().m[0]);
      EXPECT_EQ(out_.View().o[5], expected.View().o[5]);
    }
  }
}

TEST_F(AttendImageTest, S12_AnswersStaleForASlotThatWasGivenAway) {
  Store(CodecId::kKv4p, 1);
  const auto block = Check(1);
  ASSERT_TRUE(block.ok());
  EXPECT_TRUE(Attend(**block, 0, 1).ok());
  Store(CodecId::kKv4p, 2);
  EXPECT_EQ(Attend(**block, 0, 1).status().code(), Code::kStale) << "although the layer was verified before";
  EXPECT_EQ(Check(1).status().code(), Code::kStale);
  EXPECT_TRUE(Check(2).ok());
}

TEST_F(AttendImageTest, S07_NeverCallsAFlippedBitSuccess) {
  for (const CodecId codec : {CodecId::kRaw16, CodecId::kKv4p, CodecId::kKv2p}) {
    Store(codec);
    const std::span<std::byte> slot = Slot(1);
    for (uint64_t at = 0; at < image_bytes_; at += 997) {
      slot[at] ^= std::byte{4};
      const auto block = Check();
      Status found = block.status();
      for (uint16_t layer = 0; found.ok() && layer < identity_.shape.layers; ++layer)
        found = Attend(**block, layer).status();
      EXPECT_TRUE(found.code() == Code::kDataLoss || found.code() == Code::kUnimplemented) << "byte " << at;
      slot[at] ^= std::byte{4};
    }
  }
}

TEST_F(AttendImageTest, VerifiesALayerOnce) {
  Store(CodecId::kKv4p);
  const auto block = Check();
  ASSERT_TRUE(block.ok());
  EXPECT_FALSE((*block)->IsVerified(1));
  EXPECT_TRUE(Attend(**block, 1).ok());
  EXPECT_TRUE((*block)->IsVerified(1));
  EXPECT_FALSE((*block)->IsVerified(0)) << "each for itself";
  CheckedBlocks blocks;
  blocks.Set(3, *block);
  const std::byte* at = (*block)->image().bytes.data();
  EXPECT_EQ(blocks.Find(3, at), *block);
  EXPECT_EQ(blocks.Find(2, at), nullptr);
  EXPECT_EQ(blocks.Find(3, at + 64), nullptr) << "mapped anew";
}

TEST_F(AttendImageTest, RefusesAnImageOfAnotherBlock) {
  Store(CodecId::kRaw16);
  identity_.key.bytes[0] ^= std::byte{1};
  EXPECT_EQ(Check().status().code(), Code::kDataLoss);
}

}  // namespace
}  // namespace kvtier::client
