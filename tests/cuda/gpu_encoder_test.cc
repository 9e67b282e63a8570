#include "tiers/cuda/gpu_encoder.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <limits>

#include "tests/cuda/fake_machine.h"
#include "tests/support/blocks.h"

namespace kvtier {
namespace {

/// Blocks in device memory, as a hot tier holds them: raw layers one after the other.
class GpuEncoderTest : public FakeMachineTest {
 protected:
  static constexpr uint32_t kBlocks = 5;

  void TearDown() override {
    Close();
    FakeMachineTest::TearDown();
  }
  void Close() {
    encoder_.reset();
    blocks_.clear();
    transfers_.reset();
    device_.reset();
  }
  /// A machine with kBlocks blocks. A lane of the encoder has room for `images` of them.
  void Open(uint64_t seed, uint32_t images) {
    Close();
    fake_cuda::Reset({.seed = seed});
    device_ = CudaDevice::Make(0, clock_).value();
    transfers_ = GpuTransfers::Make(*device_).value();
    raw_.clear();
    for (uint32_t number = 0; number < kBlocks; ++number) {
      raw_.push_back(RandomRaw(SmallShape(), number));
      blocks_.push_back(device_->Allocate(raw_.back().size()).value());
    }
    const uint64_t room = images * (RawBlockBytes(SmallShape()) + 4096);
    encoder_ = GpuEncoder::Make(*device_, {.image_bytes = room, .layers_per_launch = 64}).value();
  }
  /// What is in raw_, to the device, and an order for each block of it.
  Status Upload() {
    std::vector<GpuUpload> uploads;
    for (uint32_t i = 0; i < kBlocks; ++i) {
      uploads.push_back({.source = raw_[i], .target = blocks_[i].data()});
    }
    return transfers_->Upload(uploads);
  }
  std::vector<GpuEncodeOrder> Orders(CodecId codec) {
    std::vector<GpuEncodeOrder> orders;
    out_.resize(kBlocks);
    for (uint32_t number = 0; number < kBlocks; ++number) {
      GpuEncodeOrder order;
      order.identity = MakeIdentity(number);
      order.codec = FindCodec(codec);
      BlockShape source_shape = StoredShape(CodecId::kRaw16, SmallShape());
      for (uint16_t layer = 0; layer < source_shape.layers; ++layer) {
        const std::byte* const begin = blocks_[number].data() + layer * RawLayerBytes(source_shape);
        order.layers.push_back({.shape = source_shape,
                                .coding = LayerCoding::kRaw,
                                .scales = {},
                                .base = reinterpret_cast<const uint8_t*>(begin)});
      }
      order.out = out_[number].Reserve(RawBlockBytes(SmallShape()) + 4096).value();
      orders.push_back(std::move(order));
    }
    return orders;
  }
  void ExpectAsOnTheHost(const std::vector<GpuEncodeOrder>& orders) {
    for (uint32_t i = 0; i < kBlocks; ++i) {
      const BuiltImage& built = orders[i].built;
      ASSERT_TRUE(built.status.ok()) << i << ": " << built.status.ToString();
      const auto want = EncodeOwned(*orders[i].codec, orders[i].identity, raw_[i]);
      ASSERT_TRUE(want.ok());
      ASSERT_EQ(built.image_bytes, want->bytes.size());
      EXPECT_TRUE(std::ranges::equal(orders[i].out.first(built.image_bytes), want->bytes)) << i;
    }
  }

  SteadyClock clock_;
  std::unique_ptr<CudaDevice> device_;
  std::unique_ptr<GpuTransfers> transfers_;
  std::vector<std::vector<std::byte>> raw_;
  std::vector<DeviceBuffer> blocks_;
  std::unique_ptr<GpuEncoder> encoder_;
  std::vector<AlignedBuffer> out_;
};

TEST_F(GpuEncoderTest, ImagesAreThoseOfTheHostInEveryOrder) {
  for (const CodecId codec : {CodecId::kKv8, CodecId::kKv4p, CodecId::kKv42, CodecId::kKv2p}) {
    for (uint64_t seed = 1; seed <= kOrders / 4; ++seed) {
      Open(seed, 2);
      ASSERT_TRUE(Upload().ok());
      std::vector<GpuEncodeOrder> orders = Orders(codec);
      encoder_->Encode(orders);
      ExpectAsOnTheHost(orders);
      ASSERT_EQ(fake_cuda::Violations(), std::vector<std::string>()) << "seed " << seed;
    }
  }
}

TEST_F(GpuEncoderTest, OneLaunchEncodesAsManyBlocksAsFit) {
  Open(1, kBlocks);
  ASSERT_TRUE(Upload().ok());
  std::vector<GpuEncodeOrder> orders = Orders(CodecId::kKv4p);
  encoder_->Encode(orders);
  ExpectAsOnTheHost(orders);
  EXPECT_EQ(fake_cuda::Calls("cudaLaunchKernel"), 1u);
}

TEST_F(GpuEncoderTest, LayersThatCannotBeEncodedStayRaw) {
  Open(1, 2);
  const uint64_t layer_bytes = RawLayerBytes(SmallShape());
  const uint16_t infinity = Fp16FromFp32(std::numeric_limits<float>::infinity());
  Store16(raw_[1].data() + layer_bytes + 100, infinity);
  for (uint16_t layer = 0; layer < SmallShape().layers; ++layer) {
    Store16(raw_[3].data() + layer * layer_bytes, infinity);
  }
  ASSERT_TRUE(Upload().ok());
  std::vector<GpuEncodeOrder> orders = Orders(CodecId::kKv2p);
  encoder_->Encode(orders);
  ExpectAsOnTheHost(orders);
}

/// Images of kv8 in device memory, and what the host makes of them.
TEST_F(GpuEncoderTest, Kv8IsEncodedFurtherAndOneWithoutAnEncodingSaysSo) {
  Open(1, 2);
  const BlockShape shape = StoredShape(CodecId::kKv8, SmallShape());
  std::vector<OwnedImage> images;
  std::vector<GpuEncodeOrder> orders = Orders(CodecId::kKv4p);
  for (uint32_t i = 0; i < kBlocks; ++i) {
    images.push_back(EncodeOwned(*FindCodec(CodecId::kKv8), MakeIdentity(i), raw_[i]).value());
    const ImageView view = ParseImage(images[i].bytes).value();
    blocks_[i] = device_->Allocate(images[i].bytes.size()).value();
    for (uint16_t layer = 0; layer < shape.layers; ++layer) {
      const uint64_t offset = view.layout.layers[layer][static_cast<int>(Region::kBase)].offset;
      orders[i].layers[layer] = {.shape = shape,
                                 .coding = LayerCoding::kKv8,
                                 .scales = {},
                                 .base = reinterpret_cast<const uint8_t*>(blocks_[i].data() + offset)};
    }
  }
  // The first token's row is kept as it is: one that is no number, which no encoder of kv8 takes.
  std::ranges::fill(images[3].bytes.last(images[3].bytes.size() / 3), std::byte{0x7e});
  std::vector<GpuUpload> uploads;
  for (uint32_t i = 0; i < kBlocks; ++i) {
    uploads.push_back({.source = images[i].bytes, .target = blocks_[i].data()});
  }
  ASSERT_TRUE(transfers_->Upload(uploads).ok());
  encoder_->Encode(orders);
  for (uint32_t i = 0; i < kBlocks; ++i) {
    if (i == 3) {
      EXPECT_EQ(orders[i].built.status.code(), Code::kFailedPrecondition);
      continue;
    }
    ASSERT_TRUE(orders[i].built.status.ok()) << i << ": " << orders[i].built.status.ToString();
    const auto want = RequantizeOwned(images[i].bytes, *orders[i].codec, orders[i].identity);
    ASSERT_TRUE(want.ok());
    EXPECT_TRUE(std::ranges::equal(orders[i].out.first(orders[i].built.image_bytes), want->bytes)) << i;
  }
}

TEST_F(GpuEncoderTest, AnImageThatDoesNotFitSaysWhatItNeedsAndOthersGoOn) {
  Open(1, 2);
  ASSERT_TRUE(Upload().ok());
  std::vector<GpuEncodeOrder> orders = Orders(CodecId::kKv4p);
  const std::span<std::byte> whole = orders[2].out;
  orders[2].out = whole.first(4096);
  encoder_->Encode(orders);
  EXPECT_EQ(orders[2].built.status.code(), Code::kOutOfRange);
  EXPECT_EQ(orders[2].built.image_bytes, orders[1].built.image_bytes);
  orders[2].out = whole;
  encoder_->Encode(std::span(orders).subspan(2, 1));
  ExpectAsOnTheHost(orders);
}

TEST_F(GpuEncoderTest, ABlockLargerThanTheEncodersMemoryIsRefused) {
  Open(1, 2);
  encoder_ = GpuEncoder::Make(*device_, {.image_bytes = 4096, .layers_per_launch = 64}).value();
  ASSERT_TRUE(Upload().ok());
  std::vector<GpuEncodeOrder> orders = Orders(CodecId::kKv4p);
  encoder_->Encode(orders);
  for (const GpuEncodeOrder& order : orders) {
    EXPECT_EQ(order.built.status.code(), Code::kResourceExhausted);
  }
}

TEST_F(GpuEncoderTest, AnyCallMayFailAndTheNextBatchIsRightOrTheDeviceIsLost) {
  uint64_t failures = 0;
  for (uint64_t after = 0;; ++after) {
    Open(after + 1, 2);
    ASSERT_TRUE(Upload().ok());
    std::vector<GpuEncodeOrder> orders = Orders(CodecId::kKv42);
    fake_cuda::Fail({.after = after, .error = cudaErrorInvalidValue});
    encoder_->Encode(orders);
    fake_cuda::FailNoMore();
    ASSERT_EQ(fake_cuda::Violations(), std::vector<std::string>()) << "call " << after;
    if (std::ranges::all_of(orders, [](const auto& order) { return order.built.status.ok(); })) break;
    ++failures;
    if (!device_->Usable().ok()) continue;
    encoder_->Encode(orders);
    ExpectAsOnTheHost(orders);
  }
  EXPECT_GT(failures, 20u);
}

TEST_F(GpuEncoderTest, AKernelThatFailsLosesTheDeviceAndEveryOrderSaysSo) {
  Open(1, 2);
  ASSERT_TRUE(Upload().ok());
  std::vector<GpuEncodeOrder> orders = Orders(CodecId::kKv4p);
  fake_cuda::FailWork(1, cudaErrorIllegalAddress);
  encoder_->Encode(orders);
  for (const GpuEncodeOrder& order : orders) EXPECT_EQ(order.built.status.code(), Code::kUnavailable);
  EXPECT_EQ(fake_cuda::Violations(), std::vector<std::string>());
  Close();
  fake_cuda::Reset({});
}

}  // namespace
}  // namespace kvtier
