#include "tiers/cuda/cuda_device.h"

#include <cuda_runtime_api.h>

#include <cstring>
#include <string>
#include <thread>

#include "tiers/cuda/cuda_status.h"
#include "tiers/cuda/gpu.h"

namespace kvtier {
namespace {

/// Looks at an event come so close together at first, then apart: most waits are short, and the others are
/// not worth a core.
constexpr int kEagerLooks = 100;
constexpr auto kPause = std::chrono::microseconds(20);

static_assert(sizeof(CudaHandle) == sizeof(cudaIpcMemHandle_t));
static_assert(sizeof(CudaHandle) == sizeof(cudaIpcEventHandle_t));

}  // namespace

template <typename Function>
Status CudaDevice::Do(const char* call, const Function& function) {
  if (lost_.load(std::memory_order_acquire)) return Usable();
  KVTIER_TRY(Check(cudaSetDevice(static_cast<int>(ordinal_)), "cudaSetDevice"));
  return Check(function(), call);
}

Status CudaDevice::Check(int error, const char* call) {
  if (error == cudaSuccess) return Status::Ok();
  Status status = StatusFromCuda(error, call);
  return LosesContext(error) ? Lose(std::move(status)) : status;
}

Status CudaDevice::Lose(Status why) {
  std::lock_guard lock(mutex_);
  if (why_.ok()) why_ = why.WithContext("GPU " + std::to_string(ordinal_) + " is lost");
  lost_.store(true, std::memory_order_release);
  return why_;
}

Status CudaDevice::Usable() const {
  std::lock_guard lock(mutex_);
  return why_;
}

Result<std::unique_ptr<CudaDevice>> CudaDevice::Make(uint32_t ordinal, const Clock& clock) {
  KVTIER_TRY(FindGpu(ordinal).status());
  std::unique_ptr<CudaDevice> device(new CudaDevice(ordinal, clock));
  KVTIER_TRY(device->Memory().status());  // the first call that needs a context makes it
  return device;
}

Result<CudaStream> CudaDevice::MakeStream() {
  cudaStream_t stream = nullptr;
  KVTIER_TRY(Do("cudaStreamCreateWithFlags",
                [&] { return cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking); }));
  return CudaStream(stream, CudaRelease{this});
}

Result<CudaEvent> CudaDevice::MakeEvent(EventSharing sharing) {
  const unsigned shared = sharing == EventSharing::kOtherProcesses ? cudaEventInterprocess : 0;
  cudaEvent_t event = nullptr;
  KVTIER_TRY(Do("cudaEventCreateWithFlags",
                [&] { return cudaEventCreateWithFlags(&event, cudaEventDisableTiming | shared); }));
  return CudaEvent(event, CudaRelease{this});
}

Result<DeviceBuffer> CudaDevice::Allocate(uint64_t bytes) {
  void* data = nullptr;
  KVTIER_TRY(Do("cudaMalloc", [&] { return cudaMalloc(&data, bytes); }));
  return DeviceBuffer(*this, static_cast<std::byte*>(data), bytes);
}

Result<PinnedBuffer> CudaDevice::AllocatePinned(uint64_t bytes) {
  void* data = nullptr;
  KVTIER_TRY(Do("cudaHostAlloc", [&] { return cudaHostAlloc(&data, bytes, cudaHostAllocPortable); }));
  return PinnedBuffer(*this, static_cast<std::byte*>(data), bytes);
}

Result<CudaDevice::MemoryInfo> CudaDevice::Memory() {
  size_t free_bytes = 0, total_bytes = 0;
  KVTIER_TRY(Do("cudaMemGetInfo", [&] { return cudaMemGetInfo(&free_bytes, &total_bytes); }));
  return MemoryInfo{.free_bytes = free_bytes, .total_bytes = total_bytes};
}

Status CudaDevice::CopyToDevice(std::byte* target, std::span<const std::byte> source, CUstream_st* stream) {
  return Do("cudaMemcpyAsync", [&] {
    return cudaMemcpyAsync(target, source.data(), source.size(), cudaMemcpyHostToDevice, stream);
  });
}

Status CudaDevice::CopyToHost(std::span<std::byte> target, const std::byte* source, CUstream_st* stream) {
  return Do("cudaMemcpyAsync", [&] {
    return cudaMemcpyAsync(target.data(), source, target.size(), cudaMemcpyDeviceToHost, stream);
  });
}

Status CudaDevice::CopyOnDevice(std::byte* target, const std::byte* source, uint64_t bytes,
                                CUstream_st* stream) {
  return Do("cudaMemcpyAsync",
            [&] { return cudaMemcpyAsync(target, source, bytes, cudaMemcpyDeviceToDevice, stream); });
}

Status CudaDevice::Launch(const char* kernel, CUstream_st* stream, const std::function<int(void*)>& launch) {
  return Do(kernel, [&] { return launch(stream); });
}

Status CudaDevice::Record(CUevent_st* event, CUstream_st* stream) {
  return Do("cudaEventRecord", [&] { return cudaEventRecord(event, stream); });
}

Status CudaDevice::Await(CUstream_st* stream, CUevent_st* event) {
  return Do("cudaStreamWaitEvent", [&] { return cudaStreamWaitEvent(stream, event, 0); });
}

Status CudaDevice::WaitFor(CUevent_st* event) {
  const TimePoint deadline = clock_.Now() + kCudaPatience;
  for (int looks = 0;; ++looks) {
    bool is_done = true;
    KVTIER_TRY(Do("cudaEventQuery", [&] {
      const cudaError_t error = cudaEventQuery(event);
      is_done = error != cudaErrorNotReady;
      return is_done ? error : cudaSuccess;
    }));
    if (is_done) return Status::Ok();
    if (clock_.Now() >= deadline) return Lose(Status(Code::kUnavailable, "no answer in time"));
    if (looks >= kEagerLooks) std::this_thread::sleep_for(kPause);
  }
}

Result<CudaHandle> CudaDevice::Export(const DeviceBuffer& memory) {
  cudaIpcMemHandle_t opaque;
  KVTIER_TRY(Do("cudaIpcGetMemHandle", [&] { return cudaIpcGetMemHandle(&opaque, memory.data()); }));
  CudaHandle handle;
  std::memcpy(handle.data(), &opaque, sizeof(opaque));
  return handle;
}

Result<CudaHandle> CudaDevice::Export(CUevent_st* event) {
  cudaIpcEventHandle_t opaque;
  KVTIER_TRY(Do("cudaIpcGetEventHandle", [&] { return cudaIpcGetEventHandle(&opaque, event); }));
  CudaHandle handle;
  std::memcpy(handle.data(), &opaque, sizeof(opaque));
  return handle;
}

Result<ImportedBuffer> CudaDevice::ImportMemory(const CudaHandle& handle, uint64_t bytes) {
  cudaIpcMemHandle_t opaque;
  std::memcpy(&opaque, handle.data(), sizeof(opaque));
  void* data = nullptr;
  KVTIER_TRY(Do("cudaIpcOpenMemHandle",
                [&] { return cudaIpcOpenMemHandle(&data, opaque, cudaIpcMemLazyEnablePeerAccess); }));
  return ImportedBuffer(*this, static_cast<std::byte*>(data), bytes);
}

Result<CudaEvent> CudaDevice::ImportEvent(const CudaHandle& handle) {
  cudaIpcEventHandle_t opaque;
  std::memcpy(&opaque, handle.data(), sizeof(opaque));
  cudaEvent_t event = nullptr;
  KVTIER_TRY(Do("cudaIpcOpenEventHandle", [&] { return cudaIpcOpenEventHandle(&event, opaque); }));
  return CudaEvent(event, CudaRelease{this});
}

void CudaDevice::Free(std::byte* data, CudaMemoryKind kind) {
  const char* const call = kind == CudaMemoryKind::kDevice   ? "cudaFree"
                           : kind == CudaMemoryKind::kPinned ? "cudaFreeHost"
                                                             : "cudaIpcCloseMemHandle";
  Do(call, [&] {
    return kind == CudaMemoryKind::kDevice   ? cudaFree(data)
           : kind == CudaMemoryKind::kPinned ? cudaFreeHost(data)
                                             : cudaIpcCloseMemHandle(data);
  }).IgnoreBecause("a lost context shows at the next call, and nothing else can be done about it");
}

void CudaRelease::operator()(CUstream_st* stream) const {
  device->Do("cudaStreamDestroy", [&] { return cudaStreamDestroy(stream); }).IgnoreBecause("see Free");
}

void CudaRelease::operator()(CUevent_st* event) const {
  device->Do("cudaEventDestroy", [&] { return cudaEventDestroy(event); }).IgnoreBecause("see Free");
}

}  // namespace kvtier
