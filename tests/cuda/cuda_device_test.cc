#include "tiers/cuda/cuda_device.h"

#include <cuda_runtime_api.h>
#include <gmock/gmock.h>

#include <cstring>

#include "tests/cuda/fake_machine.h"
#include "tests/support/manual_clock.h"
#include "tiers/cuda/gpu.h"

namespace kvtier {
namespace {

using testing::HasSubstr;

constexpr uint64_t kBytes = 3000;

/// Every look at the clock takes a while.
class ImpatientClock final : public Clock {
 public:
  TimePoint Now() const override { return now_ += std::chrono::milliseconds(100); }

 private:
  mutable TimePoint now_{};
};

class CudaDeviceTest : public FakeMachineTest {
 protected:
  std::unique_ptr<CudaDevice> NewDevice() {
    auto device = CudaDevice::Make(0, clock_);
    EXPECT_TRUE(device.ok()) << device.status().ToString();
    return std::move(device).value();
  }

  SteadyClock clock_;
};

TEST_F(CudaDeviceTest, WithoutADriverThereIsNoGpu) {
  fake_cuda::Reset({.devices = 0});
  const auto found = FindGpu(0);
  EXPECT_EQ(found.status().code(), Code::kUnavailable);
  EXPECT_THAT(found.status().message(), HasSubstr("no GPU: cudaGetDeviceCount: CUDA driver version"));
  EXPECT_EQ(CudaDevice::Make(0, clock_).status().code(), Code::kUnavailable);
}

TEST_F(CudaDeviceTest, AGpuThatIsNotThereIsNotFound) {
  fake_cuda::Reset({.devices = 2});
  EXPECT_TRUE(FindGpu(1).ok());
  EXPECT_EQ(FindGpu(2).status().code(), Code::kNotFound);
}

TEST_F(CudaDeviceTest, LookingForAGpuMakesNoContext) {
  ASSERT_TRUE(FindGpu(0).ok());
  EXPECT_EQ(FindGpu(0)->compute_major, 9);
  EXPECT_FALSE(fake_cuda::HasContext(0));
  const auto device = NewDevice();
  EXPECT_TRUE(fake_cuda::HasContext(0));
}

TEST_F(CudaDeviceTest, OnlyTheGpuThatIsAskedForGetsAContext) {
  fake_cuda::Reset({.devices = 2});
  const auto device = CudaDevice::Make(1, clock_);
  ASSERT_TRUE(device.ok());
  EXPECT_FALSE(fake_cuda::HasContext(0));
  EXPECT_TRUE(fake_cuda::HasContext(1));
}

TEST_F(CudaDeviceTest, WorkOfTwoGpusIsKeptApart) {
  fake_cuda::Reset({.devices = 2});
  const auto first = NewDevice();
  const auto second = CudaDevice::Make(1, clock_).value();
  const auto first_stream = first->MakeStream().value();
  const auto second_stream = second->MakeStream().value();
  const auto first_event = first->MakeEvent(EventSharing::kThisProcess).value();
  // Whichever GPU this thread used last.
  EXPECT_TRUE(first->Record(first_event.get(), first_stream.get()).ok());
  EXPECT_FALSE(second->Record(first_event.get(), second_stream.get()).ok());
  EXPECT_TRUE(first->WaitFor(first_event.get()).ok());
}

TEST_F(CudaDeviceTest, WhatFailsNamesTheCallAndSaysWhatCudaSays) {
  const auto device = NewDevice();
  const auto memory = device->Allocate(uint64_t{1} << 40);
  EXPECT_EQ(memory.status().code(), Code::kResourceExhausted);
  EXPECT_EQ(memory.status().message(), "cudaMalloc: out of memory (cudaErrorMemoryAllocation)");
  EXPECT_TRUE(device->Usable().ok());
  EXPECT_TRUE(device->Allocate(kBytes).ok());
}

TEST_F(CudaDeviceTest, AFailedCallLeavesNoErrorForTheNextLaunch) {
  const auto device = NewDevice();
  const auto stream = device->MakeStream().value();
  EXPECT_FALSE(device->Allocate(uint64_t{1} << 40).ok());
  // A launcher asks for the last error, whoever's it is.
  const Status launched = device->Launch("a kernel", stream.get(), [](void* handle) {
    const int error = fake_cuda::Launch("a kernel", handle, {}, [] {});
    return error != 0 ? error : static_cast<int>(cudaGetLastError());
  });
  EXPECT_TRUE(launched.ok()) << launched.ToString();
}

TEST_F(CudaDeviceTest, BytesGoThereAndBackInEveryOrder) {
  for (uint64_t seed = 1; seed <= kOrders; ++seed) {
    fake_cuda::Reset({.seed = seed});
    {
      const auto device = NewDevice();
      const auto up = device->MakeStream().value(), down = device->MakeStream().value();
      const auto arrived = device->MakeEvent(EventSharing::kThisProcess).value();
      const auto done = device->MakeEvent(EventSharing::kThisProcess).value();
      const auto source = device->AllocatePinned(kBytes).value();
      const auto target = device->AllocatePinned(kBytes).value();
      const auto first = device->Allocate(kBytes).value(), second = device->Allocate(kBytes).value();
      memset(source.data(), 42, kBytes);
      ASSERT_TRUE(device->CopyToDevice(first.data(), source.span(), up.get()).ok());
      ASSERT_TRUE(device->CopyOnDevice(second.data(), first.data(), kBytes, up.get()).ok());
      ASSERT_TRUE(device->Record(arrived.get(), up.get()).ok());
      ASSERT_TRUE(device->Await(down.get(), arrived.get()).ok());
      ASSERT_TRUE(device->CopyToHost(target.span(), second.data(), down.get()).ok());
      ASSERT_TRUE(device->Record(done.get(), down.get()).ok());
      ASSERT_TRUE(device->WaitFor(done.get()).ok());
      EXPECT_EQ(memcmp(target.data(), source.data(), kBytes), 0);
    }
    ExpectClean("seed " + std::to_string(seed));
  }
}

TEST_F(CudaDeviceTest, ALostContextTakesTheDeviceOutAndCudaIsNotAskedAgain) {
  const auto device = NewDevice();
  fake_cuda::Fail({.function = "cudaMalloc", .error = cudaErrorECCUncorrectable, .loses_context = true});
  const Status lost = device->Allocate(kBytes).status();
  EXPECT_EQ(lost.code(), Code::kUnavailable);
  EXPECT_THAT(lost.message(), HasSubstr("GPU 0 is lost: cudaMalloc"));
  const uint64_t calls = fake_cuda::Calls("");
  EXPECT_EQ(device->Allocate(kBytes).status().message(), lost.message());
  EXPECT_EQ(device->MakeStream().status().message(), lost.message());
  EXPECT_EQ(device->Usable().message(), lost.message());
  EXPECT_EQ(fake_cuda::Calls(""), calls);
}

TEST_F(CudaDeviceTest, AKernelThatFailsLaterTakesTheDeviceOutToo) {
  const auto device = NewDevice();
  const auto stream = device->MakeStream().value();
  const auto event = device->MakeEvent(EventSharing::kThisProcess).value();
  fake_cuda::FailWork(0, cudaErrorIllegalAddress);
  ASSERT_TRUE(device
                  ->Launch("a kernel", stream.get(),
                           [](void* handle) { return fake_cuda::Launch("a kernel", handle, {}, [] {}); })
                  .ok());
  ASSERT_TRUE(device->Record(event.get(), stream.get()).ok());
  EXPECT_THAT(device->WaitFor(event.get()).message(), HasSubstr("illegal memory access"));
  EXPECT_EQ(device->Usable().code(), Code::kUnavailable);
  fake_cuda::Reset({});
}

TEST_F(CudaDeviceTest, AGpuThatHangsIsLostAndKeepsTheMemoryThatItMayStillUse) {
  const ImpatientClock clock;
  {
    const auto device = CudaDevice::Make(0, clock).value();
    const auto stream = device->MakeStream().value();
    const auto event = device->MakeEvent(EventSharing::kThisProcess).value();
    const auto source = device->AllocatePinned(kBytes).value();
    const auto target = device->Allocate(kBytes).value();
    fake_cuda::Hang();
    ASSERT_TRUE(device->CopyToDevice(target.data(), source.span(), stream.get()).ok());
    ASSERT_TRUE(device->Record(event.get(), stream.get()).ok());
    EXPECT_EQ(device->WaitFor(event.get()).code(), Code::kUnavailable);
    EXPECT_THAT(device->Usable().message(), HasSubstr("no answer in time"));
  }
  EXPECT_EQ(fake_cuda::Violations(), std::vector<std::string>());
  EXPECT_EQ(fake_cuda::LiveObjects(), 4u);
  fake_cuda::Reset({});
}

TEST_F(CudaDeviceTest, MemoryIsWhatIsLeft) {
  fake_cuda::Reset({.device_bytes = 10 * kBytes});
  const auto device = NewDevice();
  const auto held = device->Allocate(3 * kBytes).value();
  EXPECT_EQ(device->Memory()->free_bytes, 7 * kBytes);
  EXPECT_EQ(device->Memory()->total_bytes, 10 * kBytes);
}

}  // namespace
}  // namespace kvtier
