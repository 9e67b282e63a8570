#include "client/src/fetch.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>

#include "tests/support/blocks.h"
#include "tiers/arena_store.h"

namespace kvtier::client {
namespace {

ModelSpec SpecOf(const BlockShape& shape) {
  ModelSpec spec;
  spec.layers = shape.layers;
  return spec;
}

/// Two slots of a real arena; slot 0 holds a block.
class DecodeImageTest : public testing::Test {
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
  /// K and V of all layers one after the other, in fp16.
  kvtier_view ViewOf(std::vector<std::byte>& out) {
    bases_[0] = out.data();
    kvtier_view view{};
    view.struct_size = sizeof(view);
    view.bases = bases_;
    view.n_bases = 1;
    view.head_stride = 64 * 64 * 2;
    view.token_stride = 64 * 2;
    view.v_offset = identity_.shape.kv_heads * view.head_stride;
    view.layer_stride = 2 * view.v_offset;
    view.dtype = KVTIER_FP16;
    return view;
  }
  Result<DecodedErrors> Decode(std::vector<std::byte>& out, LayerRange layers = {.first = 0, .count = 3},
                               uint64_t epoch = 1) {
    return DecodeInto(ViewOf(out), layers, epoch);
  }
  Result<DecodedErrors> DecodeInto(const kvtier_view& destination,
                                   LayerRange layers = {.first = 0, .count = 3}, uint64_t epoch = 1) {
    const View view = View::CheckDestination(&destination, spec_, layers, 64).value();
    const SlotGuard guard{.arena = *arena_, .slot = 0, .epoch = epoch};
    KVTIER_ASSIGN(const std::shared_ptr<CheckedBlock> block,
                  CheckBlock(arena_->At(0, ArenaHeaderBytes(2), image_bytes_).value(), identity_, guard));
    KVTIER_TRY(DecodeImage(block->image(), layers, view, 0, guard));
    return ErrorsOf(block->image(), layers);
  }

  BlockIdentity identity_ = MakeIdentity(1);
  std::vector<std::byte> raw_ = RandomRaw(identity_.shape, 3);
  ArenaStore store_;
  ArenaMap map_{[](uint32_t) {}};
  std::shared_ptr<const Arena> arena_;
  uint64_t image_bytes_ = 0;
  ModelSpec spec_ = SpecOf(identity_.shape);
  void* bases_[1] = {};
};

TEST_F(DecodeImageTest, GivesRawBlocksBackBitForBit) {
  Store(CodecId::kRaw16);
  std::vector<std::byte> out(raw_.size());
  const auto errors = Decode(out);
  ASSERT_TRUE(errors.ok()) << errors.status().ToString();
  EXPECT_EQ(out, raw_);
  EXPECT_EQ(errors->k_error, 0);
}

TEST_F(DecodeImageTest, DecodesTheLayersAskedForAndTouchesNoOther) {
  Store(CodecId::kRaw16);
  std::vector<std::byte> out(raw_.size(), std::byte{0xCD});
  ASSERT_TRUE(Decode(out, {.first = 1, .count = 1}).ok());
  const uint64_t layer = RawLayerBytes(identity_.shape);
  EXPECT_TRUE(std::equal(out.begin() + layer, out.begin() + 2 * layer, raw_.begin() + layer));
  const auto untouched = [](std::byte b) { return b == std::byte{0xCD}; };
  EXPECT_TRUE(std::all_of(out.begin(), out.begin() + layer, untouched));
  EXPECT_TRUE(std::all_of(out.begin() + 2 * layer, out.end(), untouched));
}

TEST_F(DecodeImageTest, ReportsTheErrorOfTheLayersItDecoded) {
  Store(CodecId::kKv4p);
  std::vector<std::byte> out(raw_.size());
  const auto one = Decode(out, {.first = 0, .count = 1});
  const auto all = Decode(out);
  ASSERT_TRUE(one.ok() && all.ok());
  EXPECT_GT(one->k_error, 0.01f);
  EXPECT_LT(one->k_error, 0.2f);
  EXPECT_GT(all->v_error, 0.01f);
  EXPECT_NE(one->v_error, all->v_error);
}

TEST_F(DecodeImageTest, S12_AnswersStaleForASlotThatWasGivenAway) {
  Store(CodecId::kRaw16, 1);
  Store(CodecId::kRaw16, 2);
  std::vector<std::byte> out(raw_.size());
  EXPECT_EQ(Decode(out, {.first = 0, .count = 3}, 1).status().code(), Code::kStale);
  EXPECT_TRUE(Decode(out, {.first = 0, .count = 3}, 2).ok());
}

TEST_F(DecodeImageTest, S07_NeverCallsAFlippedBitSuccess) {
  for (const CodecId codec : {CodecId::kRaw16, CodecId::kKv4p, CodecId::kKv2p}) {
    Store(codec);
    const std::span<std::byte> slot = Slot(1);
    std::vector<std::byte> out(raw_.size());
    for (uint64_t at = 0; at < image_bytes_; at += 997) {
      slot[at] ^= std::byte{4};
      const Code code = Decode(out).status().code();
      EXPECT_TRUE(code == Code::kDataLoss || code == Code::kUnimplemented) << "byte " << at;
      slot[at] ^= std::byte{4};
    }
    EXPECT_TRUE(Decode(out).ok());
  }
}

TEST_F(DecodeImageTest, RefusesAnImageOfAnotherBlock) {
  Store(CodecId::kRaw16);
  std::vector<std::byte> out(raw_.size());
  const BlockIdentity good = identity_;
  identity_.key.bytes[0] ^= std::byte{1};
  EXPECT_EQ(Decode(out).status().code(), Code::kDataLoss);
  identity_ = good;
  identity_.name_space.bytes[0] ^= std::byte{1};
  EXPECT_EQ(Decode(out).status().code(), Code::kDataLoss);
  identity_ = good;
  identity_.first_position += 64;
  EXPECT_EQ(Decode(out).status().code(), Code::kDataLoss);
}

TEST_F(DecodeImageTest, S16_AnotherSettingOnTheReadersSideIsRefused) {
  const std::function<void(BlockIdentity&)> others[] = {
      [](BlockIdentity& i) { i.shape.nb = 16; }, [](BlockIdentity& i) { i.shape.nraw = 2; },
      [](BlockIdentity& i) { i.shape.tokens = 32; }, [](BlockIdentity& i) { i.shape.kv_heads = 1; },
      [](BlockIdentity& i) { i.shape.dtype = DType::kBf16; },
      // Scales of FP8, rotation and whatever else has no field of its own is in the namespace.
      [](BlockIdentity& i) { i.name_space.bytes[31] ^= std::byte{1}; }};
  Store(CodecId::kKv2p);
  std::vector<std::byte> out(raw_.size());
  ASSERT_TRUE(Decode(out).ok());
  const BlockIdentity good = identity_;
  for (const auto& change : others) {
    change(identity_);
    EXPECT_EQ(Decode(out).status().code(), Code::kDataLoss);
    identity_ = good;
  }
}

TEST_F(DecodeImageTest, S16_TheImageSaysWhatCodecItIs) {
  // The reader asks for no codec: each is read right, within the error that it states.
  for (const Codec* codec : AllCodecs()) {
    if (codec->id == CodecId::kRaw8) continue;  // of FP8 models
    Store(codec->id);
    std::vector<std::byte> out(raw_.size());
    const auto errors = Decode(out);
    ASSERT_TRUE(errors.ok()) << codec->name << ": " << errors.status().ToString();
    double squares = 0, off = 0;
    for (size_t at = 0; at < raw_.size(); at += 2) {
      const double x = Fp32FromFp16(Load16(&raw_[at])), y = Fp32FromFp16(Load16(&out[at]));
      squares += x * x;
      off += (x - y) * (x - y);
    }
    EXPECT_LE(std::sqrt(off / squares), 1.01f * std::max(errors->k_error, errors->v_error)) << codec->name;
  }
}

TEST_F(DecodeImageTest, LeavesFp8AsItIsAndMultipliesItByItsScales) {
  identity_.shape.dtype = DType::kE4m3;
  raw_ = RandomRaw(identity_.shape, 3);
  spec_.dtype = DType::kE4m3;
  spec_.k_scales = {0.5f, 0.25f, 2};
  spec_.v_scales = {4, 0.125f, 1};
  Store(CodecId::kRaw8);
  std::vector<std::byte> wide(2 * raw_.size()), same(raw_.size());
  kvtier_view view = ViewOf(wide);
  ASSERT_TRUE(DecodeInto(view).ok());
  for (size_t i = 0; i < raw_.size(); ++i) {
    const size_t layer = i / RawLayerBytes(identity_.shape);
    const bool is_v = i % RawLayerBytes(identity_.shape) >= RawLayerBytes(identity_.shape) / 2;
    const Fp8Scales scales = ScalesOf(spec_, layer);
    const float expected = Fp32FromE4m3(static_cast<uint8_t>(raw_[i])) * (is_v ? scales.v : scales.k);
    ASSERT_EQ(Fp32FromFp16(Load16(&wide[2 * i])), expected) << i;
  }
  bases_[0] = same.data();
  view.dtype = KVTIER_FP8_E4M3;
  view.layer_stride /= 2, view.v_offset /= 2, view.head_stride /= 2, view.token_stride /= 2;
  ASSERT_TRUE(DecodeInto(view).ok());
  EXPECT_EQ(same, raw_);
}

}  // namespace
}  // namespace kvtier::client
