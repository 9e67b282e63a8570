#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <utility>

#include "tiers/base/clock.h"
#include "tiers/base/status.h"

struct CUstream_st;
struct CUevent_st;

namespace kvtier {

class CudaDevice;

/// Gives back what a device made. On a device that is lost nothing is given back: work that nobody can wait
/// for may still use it.
struct CudaRelease {
  CudaDevice* device = nullptr;
  void operator()(CUstream_st* stream) const;
  void operator()(CUevent_st* event) const;
};
/// Work in one stream runs in order; streams run beside each other, and only events order them.
using CudaStream = std::unique_ptr<CUstream_st, CudaRelease>;
/// A point in a stream. Made by one device, which outlives it, as all below.
using CudaEvent = std::unique_ptr<CUevent_st, CudaRelease>;

/// kDevice: not for the host to touch. kPinned: of the host, to copy from and to. kImported: another
/// process's device memory.
enum class CudaMemoryKind : uint8_t { kDevice, kPinned, kImported };

/// Owns memory of a kind. Move-only. Its owner knows that no work uses it any more when it goes.
template <CudaMemoryKind kKind>
class CudaMemory {
 public:
  CudaMemory() = default;
  CudaMemory(CudaDevice& device, std::byte* data, uint64_t bytes) : device_(&device), span_(data, bytes) {}
  CudaMemory(CudaMemory&& other) noexcept
      : device_(other.device_), span_(std::exchange(other.span_, std::span<std::byte>())) {}
  CudaMemory& operator=(CudaMemory&& other) noexcept {
    std::swap(device_, other.device_);
    std::swap(span_, other.span_);
    return *this;
  }
  ~CudaMemory();

  std::byte* data() const { return span_.data(); }
  uint64_t size() const { return span_.size(); }
  std::span<std::byte> span() const { return span_; }

 private:
  CudaDevice* device_ = nullptr;
  std::span<std::byte> span_;
};
using DeviceBuffer = CudaMemory<CudaMemoryKind::kDevice>;
using PinnedBuffer = CudaMemory<CudaMemoryKind::kPinned>;
using ImportedBuffer = CudaMemory<CudaMemoryKind::kImported>;

/// How another process on this machine opens memory or an event. Whoever has it can write the memory.
using CudaHandle = std::array<std::byte, 64>;

enum class EventSharing : uint8_t { kThisProcess, kOtherProcesses };

/// Waits are polled for so long; a device that does not answer by then is lost.
inline constexpr Duration kCudaPatience = std::chrono::seconds(10);

/// One GPU. Every error of CUDA becomes a Status that names the call. One that loses the context takes the
/// device out: it and all later calls answer kUnavailable, without asking CUDA, until the process ends.
/// Threads: any; a stream, an event or memory by one thread at a time.
/// Errors: as StatusFromCuda.
class CudaDevice {
 public:
  /// Makes the context. The clock outlives the device. Errors: also those of FindGpu.
  static Result<std::unique_ptr<CudaDevice>> Make(uint32_t ordinal, const Clock& clock);

  Result<CudaStream> MakeStream();
  Result<CudaEvent> MakeEvent(EventSharing sharing);
  Result<DeviceBuffer> Allocate(uint64_t bytes);
  Result<PinnedBuffer> AllocatePinned(uint64_t bytes);
  struct MemoryInfo {
    uint64_t free_bytes = 0;
    uint64_t total_bytes = 0;
  };
  Result<MemoryInfo> Memory();

  /// Queued on `stream`: source and target stay as they are until it has run. Host memory is pinned.
  Status CopyToDevice(std::byte* target, std::span<const std::byte> source, CUstream_st* stream);
  Status CopyToHost(std::span<std::byte> target, const std::byte* source, CUstream_st* stream);
  Status CopyOnDevice(std::byte* target, const std::byte* source, uint64_t bytes, CUstream_st* stream);
  /// launch(stream) is a launcher of kernels/cuda/launch.h and returns what that does.
  Status Launch(const char* kernel, CUstream_st* stream, const std::function<int(void*)>& launch);

  /// `event` is where `stream` is now.
  Status Record(CUevent_st* event, CUstream_st* stream);
  /// What is queued on `stream` from now on runs after the last Record of `event`.
  Status Await(CUstream_st* stream, CUevent_st* event);
  /// The calling thread waits for the last Record. Errors: also kUnavailable after kCudaPatience, the device
  /// is lost then.
  Status WaitFor(CUevent_st* event);

  /// Memory of Allocate, whole, and events for other processes.
  Result<CudaHandle> Export(const DeviceBuffer& memory);
  Result<CudaHandle> Export(CUevent_st* event);
  /// Of another process, which keeps it until this one has given it back. `bytes` is what that process says.
  Result<ImportedBuffer> ImportMemory(const CudaHandle& handle, uint64_t bytes);
  Result<CudaEvent> ImportEvent(const CudaHandle& handle);

  uint32_t ordinal() const { return ordinal_; }
  /// Ok, or why the device is out.
  Status Usable() const;
  /// Takes the device out: nobody can tell any more what its work still uses.
  Status Lose(Status why);

 private:
  friend struct CudaRelease;
  template <CudaMemoryKind kKind>
  friend class CudaMemory;

  CudaDevice(uint32_t ordinal, const Clock& clock) : ordinal_(ordinal), clock_(clock) {}
  /// Makes this the device of the thread, then calls(); for whatever gives a cudaError_t.
  template <typename Function>
  Status Do(const char* call, const Function& function);
  Status Check(int error, const char* call);
  void Free(std::byte* data, CudaMemoryKind kind);

  const uint32_t ordinal_;
  const Clock& clock_;
  std::atomic<bool> lost_{false};
  mutable std::mutex mutex_;  ///< of why_
  Status why_;
};

template <CudaMemoryKind kKind>
CudaMemory<kKind>::~CudaMemory() {
  if (span_.data() != nullptr) device_->Free(span_.data(), kKind);
}

}  // namespace kvtier
