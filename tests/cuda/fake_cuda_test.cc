// The fake runtime finds what it is there to find: users of the API that are wrong on purpose, and one that
// is right.
#include "tests/support/fake_cuda/fake_cuda.h"

#include <cuda_runtime_api.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <set>

namespace kvtier {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr uint64_t kBytes = 5000;
constexpr uint64_t kSeeds = 40;

cudaStream_t NewStream() {
  cudaStream_t stream = nullptr;
  EXPECT_EQ(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
  return stream;
}
cudaEvent_t NewEvent() {
  cudaEvent_t event = nullptr;
  EXPECT_EQ(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), cudaSuccess);
  return event;
}
std::byte* NewDeviceMemory() {
  void* data = nullptr;
  EXPECT_EQ(cudaMalloc(&data, kBytes), cudaSuccess);
  return static_cast<std::byte*>(data);
}
std::byte* NewPinned(int fill) {
  void* data = nullptr;
  EXPECT_EQ(cudaHostAlloc(&data, kBytes, cudaHostAllocPortable), cudaSuccess);
  memset(data, fill, kBytes);
  return static_cast<std::byte*>(data);
}
bool HoldsOnly(const std::byte* data, int value) {
  for (uint64_t i = 0; i < kBytes; ++i) {
    if (data[i] != static_cast<std::byte>(value)) return false;
  }
  return true;
}

/// Two streams, two events, and memory on both sides. Never given back: every test has its own machine.
struct Program {
  cudaStream_t first = NewStream(), second = NewStream();
  cudaEvent_t event = NewEvent(), other_event = NewEvent();
  std::byte *device = NewDeviceMemory(), *other_device = NewDeviceMemory();
  std::byte *source = NewPinned(1), *target = NewPinned(2);

  void Up(cudaStream_t stream) const {
    EXPECT_EQ(cudaMemcpyAsync(device, source, kBytes, cudaMemcpyHostToDevice, stream), cudaSuccess);
  }
  void Down(cudaStream_t stream) const {
    EXPECT_EQ(cudaMemcpyAsync(target, device, kBytes, cudaMemcpyDeviceToHost, stream), cudaSuccess);
  }
  void Record(cudaStream_t stream) const { EXPECT_EQ(cudaEventRecord(event, stream), cudaSuccess); }
  static void WaitFor(cudaEvent_t event) {
    while (cudaEventQuery(event) == cudaErrorNotReady) {
    }
  }
};

/// What fake_cuda says of use(program), in every order of its work.
template <typename Use>
void ExpectInEveryOrder(const testing::Matcher<const std::vector<std::string>&>& violations, const Use& use) {
  for (uint64_t seed = 1; seed <= kSeeds; ++seed) {
    fake_cuda::Reset({.seed = seed});
    use(Program());
    EXPECT_THAT(fake_cuda::Violations(), violations) << "seed " << seed;
  }
}

TEST(FakeCuda, AProgramThatOrdersItsWorkIsRightInEveryOrder) {
  ExpectInEveryOrder(IsEmpty(), [](const Program& p) {
    p.Up(p.first);
    p.Record(p.first);
    EXPECT_EQ(cudaStreamWaitEvent(p.second, p.event, 0), cudaSuccess);
    p.Down(p.second);
    EXPECT_EQ(cudaEventRecord(p.other_event, p.second), cudaSuccess);
    Program::WaitFor(p.other_event);
    EXPECT_TRUE(HoldsOnly(p.target, 1));
    memset(p.source, 3, kBytes);  // its copy is known to have run
    EXPECT_EQ(cudaFree(p.device), cudaSuccess);
    EXPECT_EQ(cudaFreeHost(p.source), cudaSuccess);
  });
}

TEST(FakeCuda, AMissingWaitBetweenStreamsIsFound) {
  ExpectInEveryOrder(ElementsAre(HasSubstr("a copy to the host is not ordered after a copy to the device")),
                     [](const Program& p) {
                       p.Up(p.first);
                       p.Down(p.second);
                     });
}

TEST(FakeCuda, AWaitForAnEventThatWasRecordedTooEarlyIsFound) {
  ExpectInEveryOrder(ElementsAre(HasSubstr("is not ordered after")), [](const Program& p) {
    p.Record(p.first);
    p.Up(p.first);
    EXPECT_EQ(cudaStreamWaitEvent(p.second, p.event, 0), cudaSuccess);
    p.Down(p.second);
  });
}

TEST(FakeCuda, AHostThatDoesNotWaitReadsWhatIsNotThereYet) {
  ExpectInEveryOrder(IsEmpty(), [](const Program& p) {
    p.Up(p.first);
    p.Down(p.first);
    EXPECT_FALSE(HoldsOnly(p.target, 1));
  });
}

TEST(FakeCuda, StagingThatIsFilledAgainTooEarlyIsFound) {
  ExpectInEveryOrder(ElementsAre(HasSubstr("written by the host while it was under way")),
                     [](const Program& p) {
                       p.Up(p.first);
                       memset(p.source, 3, kBytes);
                       p.Record(p.first);
                       Program::WaitFor(p.event);
                     });
}

TEST(FakeCuda, AHostThatWritesWhereACopyIsGoingIsFound) {
  ExpectInEveryOrder(ElementsAre(HasSubstr("written by the host while it was under way")),
                     [](const Program& p) {
                       p.Down(p.first);
                       p.target[7] = std::byte{9};
                       p.Record(p.first);
                       Program::WaitFor(p.event);
                     });
}

TEST(FakeCuda, AHostThatWritesWhereACopyHasGoneByLuckIsFound) {
  ExpectInEveryOrder(ElementsAre(HasSubstr("written by the host while it was under way")),
                     [](const Program& p) {
                       p.Down(p.first);
                       p.Record(p.first);
                       fake_cuda::RunAll();  // but nobody waited
                       p.target[7] = std::byte{9};
                       Program::WaitFor(p.event);
                     });
}

TEST(FakeCuda, MemoryThatIsFreedTooEarlyIsFound) {
  ExpectInEveryOrder(
      ElementsAre(HasSubstr("cudaFree gives back memory"), HasSubstr("cudaFreeHost gives back")),
      [](const Program& p) {
        p.Up(p.first);
        EXPECT_EQ(cudaFree(p.device), cudaSuccess);
        EXPECT_EQ(cudaFreeHost(p.source), cudaSuccess);
        fake_cuda::RunAll();
      });
}

TEST(FakeCuda, MemoryThatIsFreedByLuckAfterItsWorkIsFound) {
  ExpectInEveryOrder(ElementsAre(HasSubstr("cudaFree gives back memory")), [](const Program& p) {
    p.Up(p.first);
    fake_cuda::RunAll();  // but nobody waited
    EXPECT_EQ(cudaFree(p.device), cudaSuccess);
  });
}

TEST(FakeCuda, ACopyFromMemoryThatIsNotPinnedIsFound) {
  ExpectInEveryOrder(ElementsAre(HasSubstr("not pinned")), [](const Program& p) {
    const std::vector<std::byte> pageable(kBytes);
    EXPECT_EQ(cudaMemcpyAsync(p.device, pageable.data(), kBytes, cudaMemcpyHostToDevice, p.first),
              cudaErrorInvalidValue);
  });
}

TEST(FakeCuda, WorkOnTheDefaultStreamIsFound) {
  ExpectInEveryOrder(ElementsAre(HasSubstr("default stream")), [](const Program& p) {
    EXPECT_EQ(cudaMemcpyAsync(p.device, p.source, kBytes, cudaMemcpyHostToDevice, nullptr),
              cudaErrorInvalidResourceHandle);
  });
}

TEST(FakeCuda, AKernelThatNothingOrdersIsFound) {
  ExpectInEveryOrder(
      ElementsAre(HasSubstr("a kernel is not ordered after a copy to the device")), [](const Program& p) {
        p.Up(p.first);
        EXPECT_EQ(fake_cuda::Launch("a kernel", p.second, {{p.device, kBytes, false}}, [] {}), cudaSuccess);
      });
}

/// Launches a kernel on `stream` that learns only from `device` what memory it uses: other_device.
void LaunchIndirect(const Program& p, cudaStream_t stream) {
  const auto find = [p]() -> std::vector<fake_cuda::Range> { return {{p.other_device, kBytes, true}}; };
  EXPECT_EQ(fake_cuda::Launch(
                "a kernel", stream, {{p.device, kBytes, false}}, [] {}, find),
            cudaSuccess);
}

TEST(FakeCuda, MemoryThatAKernelFindsWhenItRunsIsKeptInOrderToo) {
  ExpectInEveryOrder(ElementsAre(HasSubstr("not ordered")), [](const Program& p) {
    EXPECT_EQ(cudaMemcpyAsync(p.other_device, p.source, kBytes, cudaMemcpyHostToDevice, p.second),
              cudaSuccess);
    LaunchIndirect(p, p.first);
    fake_cuda::RunAll();
  });
  ExpectInEveryOrder(IsEmpty(), [](const Program& p) {
    LaunchIndirect(p, p.first);
    EXPECT_EQ(cudaMemcpyAsync(p.other_device, p.source, kBytes, cudaMemcpyHostToDevice, p.first),
              cudaSuccess);
    fake_cuda::RunAll();
  });
}

TEST(FakeCuda, AKernelSeesDeviceMemoryAndWritesIt) {
  ExpectInEveryOrder(IsEmpty(), [](const Program& p) {
    p.Up(p.first);
    const auto add = [device = p.device] {
      for (uint64_t i = 0; i < kBytes; ++i)
        device[i] = static_cast<std::byte>(static_cast<int>(device[i]) + 4);
    };
    EXPECT_EQ(fake_cuda::Launch("add", p.first, {{p.device, kBytes, true}}, add), cudaSuccess);
    p.Down(p.first);
    p.Record(p.first);
    Program::WaitFor(p.event);
    EXPECT_TRUE(HoldsOnly(p.target, 5));
  });
}

TEST(FakeCuda, AKernelOnFreedMemoryLosesTheContext) {
  fake_cuda::Reset({});
  const Program p;
  EXPECT_EQ(cudaFree(p.device), cudaSuccess);
  EXPECT_EQ(fake_cuda::Launch("a kernel", p.first, {{p.device, kBytes, true}}, [] {}), cudaSuccess);
  p.Record(p.first);
  fake_cuda::RunAll();
  EXPECT_EQ(cudaEventQuery(p.event), cudaErrorIllegalAddress);
  EXPECT_EQ(cudaGetLastError(), cudaErrorIllegalAddress);
  EXPECT_EQ(cudaGetLastError(), cudaErrorIllegalAddress);  // it stays
}

TEST(FakeCudaDeathTest, AHostThatTouchesDeviceMemoryDies) {
  fake_cuda::Reset({});
  const Program p;
  EXPECT_DEATH(p.device[0] = std::byte{1}, "");
  EXPECT_DEATH(EXPECT_NE(p.device[1], std::byte{1}), "");
}

TEST(FakeCuda, StreamsRunLateAndInEveryOrder) {
  std::set<std::string> orders;
  for (uint64_t seed = 1; seed <= kSeeds; ++seed) {
    fake_cuda::Reset({.seed = seed});
    const Program p;
    std::string order;
    EXPECT_EQ(fake_cuda::Launch("a", p.first, {}, [&] { order += 'a'; }), cudaSuccess);
    EXPECT_EQ(fake_cuda::Launch("b", p.second, {}, [&] { order += 'b'; }), cudaSuccess);
    EXPECT_EQ(order, "");
    p.Record(p.first);
    Program::WaitFor(p.event);
    fake_cuda::RunAll();
    orders.insert(order);
  }
  EXPECT_THAT(orders, ElementsAre("ab", "ba"));
}

TEST(FakeCuda, ACallFailsWhenItIsTold) {
  fake_cuda::Reset({});
  fake_cuda::Fail({.function = "cudaMalloc", .after = 1, .error = cudaErrorMemoryAllocation});
  void* data = nullptr;
  EXPECT_EQ(cudaMalloc(&data, kBytes), cudaSuccess);
  EXPECT_EQ(cudaMalloc(&data, kBytes), cudaErrorMemoryAllocation);
  EXPECT_EQ(cudaGetLastError(), cudaErrorMemoryAllocation);
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);
  EXPECT_EQ(cudaMalloc(&data, kBytes), cudaSuccess);
}

TEST(FakeCuda, ALostContextAnswersEveryCall) {
  fake_cuda::Reset({});
  fake_cuda::Fail({.error = cudaErrorECCUncorrectable, .loses_context = true});
  void* data = nullptr;
  EXPECT_EQ(cudaMalloc(&data, kBytes), cudaErrorECCUncorrectable);
  EXPECT_EQ(cudaHostAlloc(&data, kBytes, 0), cudaErrorECCUncorrectable);
}

TEST(FakeCuda, TheMemoryOfADeviceEnds) {
  fake_cuda::Reset({.device_bytes = 2 * kBytes});
  void* data = nullptr;
  EXPECT_EQ(cudaMalloc(&data, kBytes), cudaSuccess);
  EXPECT_EQ(cudaMalloc(&data, kBytes + 1), cudaErrorMemoryAllocation);
  EXPECT_EQ(cudaMalloc(&data, kBytes), cudaSuccess);
}

}  // namespace
}  // namespace kvtier
