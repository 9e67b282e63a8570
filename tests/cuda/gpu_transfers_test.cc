#include "tiers/cuda/gpu_transfers.h"

#include <cuda_runtime_api.h>

#include <cstring>
#include <random>
#include <vector>

#include "tests/cuda/fake_machine.h"
#include "tests/support/manual_clock.h"

namespace kvtier {
namespace {

constexpr uint64_t kSlotBytes = 8192;
/// Parts that share slots, fill them exactly, and need several.
constexpr std::array<uint64_t, 8> kPartBytes = {8,   1, 300, kSlotBytes, kSlotBytes - 1, 7 * kSlotBytes + 13,
                                                256, 0};

std::vector<std::byte> RandomBytes(uint64_t bytes, uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<std::byte> made(bytes);
  for (std::byte& one : made) one = static_cast<std::byte>(random());
  return made;
}

struct TransfersTest : FakeMachineTest {
  SteadyClock clock;
};

/// One part of each size, in device memory of its own, with neighbours that must stay.
struct Parts {
  explicit Parts(CudaDevice& device) {
    for (const uint64_t bytes : kPartBytes) {
      content.push_back(RandomBytes(bytes, static_cast<uint32_t>(content.size())));
      memory.push_back(device.Allocate(bytes + 1).value());
      back.emplace_back(bytes, std::byte{0});
      uploads.push_back({.source = content.back(), .target = memory.back().data()});
      downloads.push_back({.source = memory.back().data(), .target = back.back()});
    }
  }
  std::vector<std::vector<std::byte>> content, back;
  std::vector<DeviceBuffer> memory;
  std::vector<GpuUpload> uploads;
  std::vector<GpuDownload> downloads;
};

TEST_F(TransfersTest, WhatWentUpComesDownInEveryOrder) {
  for (uint64_t seed = 1; seed <= kOrders; ++seed) {
    fake_cuda::Reset({.seed = seed});
    {
      const auto device = CudaDevice::Make(0, clock).value();
      Parts parts(*device);
      const auto transfers = GpuTransfers::Make(*device, kSlotBytes).value();
      ASSERT_TRUE(transfers->Upload(parts.uploads).ok());
      ASSERT_TRUE(transfers->Download(parts.downloads).ok());
      EXPECT_TRUE(parts.back == parts.content) << "seed " << seed;
    }
    ExpectClean("seed " + std::to_string(seed));
  }
}

TEST_F(TransfersTest, SmallPartsShareASlotAndAnEvent) {
  const auto device = CudaDevice::Make(0, clock).value();
  const auto transfers = GpuTransfers::Make(*device, kSlotBytes).value();
  const auto memory = device->Allocate(kSlotBytes).value();
  const std::vector<std::byte> content = RandomBytes(kSlotBytes, 1);
  std::vector<GpuUpload> uploads;
  for (uint64_t at = 0; at < content.size(); at += 512) {
    uploads.push_back({.source = std::span(content).subspan(at, 512), .target = memory.data() + at});
  }
  ASSERT_TRUE(transfers->Upload(uploads).ok());
  EXPECT_EQ(fake_cuda::Calls("cudaMemcpyAsync"), uploads.size());
  EXPECT_EQ(fake_cuda::Calls("cudaEventRecord"), 1u);
}

TEST_F(TransfersTest, TheHostWorksWhileTheDeviceCopies) {
  {
    const auto device = CudaDevice::Make(0, clock).value();
    const auto transfers = GpuTransfers::Make(*device, kSlotBytes).value();
    const uint64_t bytes = kGpuStagingSlots * kSlotBytes;
    const auto memory = device->Allocate(bytes).value();
    const std::vector<std::byte> content = RandomBytes(bytes, 1);
    fake_cuda::Fail({.function = "cudaEventQuery", .error = cudaErrorInvalidValue});
    const std::array upload = {GpuUpload{.source = content, .target = memory.data()}};
    EXPECT_FALSE(transfers->Upload(upload).ok());
    // Every slot was under way before the first wait, which failed.
    EXPECT_EQ(fake_cuda::Calls("cudaMemcpyAsync"), kGpuStagingSlots);
  }
  fake_cuda::Reset({});  // with what the device, lost, has kept
}

TEST_F(TransfersTest, AWaitThatFailsLosesTheDeviceAndDeliversNothingLater) {
  {
    const auto device = CudaDevice::Make(0, clock).value();
    const auto memory = device->Allocate(kSlotBytes).value();
    const auto transfers = GpuTransfers::Make(*device, kSlotBytes).value();
    std::vector<std::byte> target(kSlotBytes, std::byte{7});
    fake_cuda::Fail({.function = "cudaEventQuery", .error = cudaErrorInvalidValue});
    const std::array download = {GpuDownload{.source = memory.data(), .target = target}};
    EXPECT_FALSE(transfers->Download(download).ok());
    EXPECT_FALSE(device->Usable().ok());
    fake_cuda::RunAll();
    EXPECT_FALSE(transfers->Download({}).ok());
    EXPECT_EQ(target, std::vector<std::byte>(kSlotBytes, std::byte{7}));
  }
  EXPECT_EQ(fake_cuda::Violations(), std::vector<std::string>());
  fake_cuda::Reset({});
}

/// Whichever call fails: the status says so, nothing that is under way is touched or given back, and the
/// transfers work again afterwards or their device is lost.
TEST_F(TransfersTest, AnyCallMayFail) {
  uint64_t failures = 0;
  for (const bool loses_context : {false, true}) {
    for (uint64_t after = 0;; ++after) {
      fake_cuda::Reset({.seed = after + 1});
      const auto device = CudaDevice::Make(0, clock).value();
      {
        Parts parts(*device);
        const auto transfers = GpuTransfers::Make(*device, kSlotBytes).value();
        fake_cuda::Fail({.after = after,
                         .error = loses_context ? cudaErrorLaunchFailure : cudaErrorInvalidValue,
                         .loses_context = loses_context});
        const Status up = transfers->Upload(parts.uploads);
        const Status down = transfers->Download(parts.downloads);
        if (up.ok() && down.ok()) {
          ASSERT_TRUE(parts.back == parts.content);
          break;
        }
        ++failures;
        if (device->Usable().ok()) {
          ASSERT_TRUE(transfers->Upload(parts.uploads).ok()) << after;
          ASSERT_TRUE(transfers->Download(parts.downloads).ok()) << after;
          ASSERT_TRUE(parts.back == parts.content) << after;
        }
      }
      ASSERT_EQ(fake_cuda::Violations(), std::vector<std::string>()) << "call " << after;
    }
  }
  EXPECT_GT(failures, 2 * kPartBytes.size());
  fake_cuda::Reset({});
}

}  // namespace
}  // namespace kvtier
