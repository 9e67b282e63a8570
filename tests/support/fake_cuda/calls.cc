#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <string_view>

#include "tests/support/fake_cuda/runtime.h"

namespace kvtier::fake_cuda {
namespace {

/// What the host finds where a copy will put its bytes later.
constexpr int kNotYetByte = 0xEE;

size_t Fingerprint(const std::byte* data, uint64_t bytes) {
  return std::hash<std::string_view>{}({reinterpret_cast<const char*>(data), bytes});
}

/// An error that FailWork ordered for this piece of work.
int OrderedFailure(Runtime& runtime) {
  if (!runtime.work_failure.has_value() || runtime.work_failure->first-- > 0) return 0;
  return runtime.work_failure->second;
}

/// Host memory of a copy, which is to stay as it is.
struct Guard {
  size_t fingerprint = 0;
  bool is_kept = true;
};

/// A copy between two allocations, as work. Both are looked up anew when it runs: what is gone was freed too
/// early, which is a violation of its own.
Work CopyWork(Runtime& runtime, void* target, const void* source, uint64_t bytes, const char* name) {
  const auto guard = std::make_shared<Guard>();
  Work work;
  work.name = name;
  work.ranges = {{.data = source, .bytes = bytes}, {.data = target, .bytes = bytes, .is_written = true}};
  const Allocation &from = *runtime.memory.Find(source, bytes), &to = *runtime.memory.Find(target, bytes);
  const bool reads_host = !from.is_on_device(), writes_host = !to.is_on_device();
  // Not where work before it has business: what it does there may be in order.
  const bool is_checked_when_run = writes_host && runtime.work.UserOf(target, bytes) == nullptr;
  if (is_checked_when_run) memset(to.Backing(target), kNotYetByte, bytes);
  if (reads_host || writes_host) {
    work.guarded = {.data = reads_host ? source : target, .bytes = bytes};
    guard->fingerprint = Fingerprint((reads_host ? from : to).Backing(work.guarded.data), bytes);
    work.is_intact = [&runtime, guarded = work.guarded, guard] {
      const Allocation* memory = runtime.memory.Find(guarded.data, guarded.bytes);
      if (memory == nullptr) return true;  // a violation that is written down already
      return guard->is_kept &&
             Fingerprint(memory->Backing(guarded.data), guarded.bytes) == guard->fingerprint;
    };
  }
  work.run = [&runtime, target, source, bytes, guard, writes_host, is_checked_when_run] {
    if (const int error = OrderedFailure(runtime); error != 0) return error;
    const Allocation* from = runtime.memory.Find(source, bytes);
    const Allocation* to = runtime.memory.Find(target, bytes);
    if (from == nullptr || to == nullptr) return 0;
    std::byte* const out = to->Backing(target);
    if (is_checked_when_run) guard->is_kept = Fingerprint(out, bytes) == guard->fingerprint;
    memmove(out, from->Backing(source), bytes);
    if (writes_host) guard->fingerprint = Fingerprint(out, bytes);
    return 0;
  };
  return work;
}

cudaError_t CopyAsync(Runtime& runtime, void* target, const void* source, size_t bytes, cudaMemcpyKind kind,
                      cudaStream_t handle) {
  Stream* stream = runtime.FindStream(handle);
  if (stream == nullptr) return cudaErrorInvalidResourceHandle;
  if (bytes == 0) return cudaSuccess;
  const Allocation *from = runtime.memory.Find(source, bytes), *to = runtime.memory.Find(target, bytes);
  const bool from_device = kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyDeviceToDevice;
  const bool to_device = kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDeviceToDevice;
  if (from == nullptr || to == nullptr) {
    const bool is_host = (from == nullptr && !from_device) || (to == nullptr && !to_device);
    runtime.Violation(is_host ? "an asynchronous copy with host memory that is not pinned"
                              : "a copy with device memory that is not there");
    return cudaErrorInvalidValue;
  }
  if (from->is_on_device() != from_device || to->is_on_device() != to_device) return cudaErrorInvalidValue;
  const char* const name = !from_device ? "a copy to the device"
                           : to_device  ? "a copy on the device"
                                        : "a copy to the host";
  runtime.Add(*stream, CopyWork(runtime, target, source, bytes, name));
  return cudaSuccess;
}

cudaError_t Allocate(Runtime& runtime, void** pointer, size_t bytes, MemoryKind kind) {
  if (bytes == 0) return cudaErrorInvalidValue;
  if (kind == MemoryKind::kDevice &&
      runtime.memory.DeviceBytes(CurrentDevice()) + bytes > runtime.machine.device_bytes) {
    return cudaErrorMemoryAllocation;
  }
  std::unique_ptr<Allocation> made = Allocation::Make(kind, CurrentDevice(), bytes);
  if (made == nullptr) return cudaErrorMemoryAllocation;
  *pointer = runtime.memory.Add(std::move(made));
  return cudaSuccess;
}

cudaError_t Free(Runtime& runtime, void* pointer, MemoryKind kind, const char* name) {
  if (pointer == nullptr) return cudaSuccess;
  const Allocation* memory = runtime.memory.At(pointer);
  if (memory == nullptr || memory->kind() != kind) return cudaErrorInvalidValue;
  runtime.CheckUnused(*memory, name);
  runtime.memory.Remove(pointer);
  return cudaSuccess;
}

template <typename Handle>
Handle NewHandle(Runtime& runtime) {
  return reinterpret_cast<Handle>(++runtime.last_handle);  // never followed
}

cudaError_t Query(Runtime& runtime, cudaEvent_t handle) {
  Event* event = runtime.FindEvent(handle);
  if (event == nullptr) return cudaErrorInvalidResourceHandle;
  // Time passes: a little work is done, there or elsewhere.
  for (uint32_t steps = runtime.work.Draw(3); steps > 0; --steps) {
    runtime.Step(runtime.work.RunsElsewhere() ? std::nullopt : std::optional(event->last));
  }
  if (runtime.lost != cudaSuccess) return runtime.lost;
  const bool others_are_done = event->shared == nullptr || event->done() >= event->recorded();
  if (!others_are_done || !runtime.work.HasRun(event->last)) return cudaErrorNotReady;
  runtime.ViolationLines(runtime.work.Observe(event->last));
  return cudaSuccess;
}

cudaError_t Record(Runtime& runtime, cudaEvent_t event_handle, cudaStream_t stream_handle) {
  Stream* stream = runtime.FindStream(stream_handle);
  Event* event = runtime.FindEvent(event_handle);
  if (stream == nullptr || event == nullptr) return cudaErrorInvalidResourceHandle;
  Work work;
  work.name = "a record";
  if (event->shared != nullptr) {
    const uint64_t number = ++event->recorded();
    work.run = [&runtime, event_handle, number] {
      const auto found = runtime.events.find(event_handle);
      if (found != runtime.events.end()) found->second.done() = number;
      return 0;
    };
  }
  event->last = runtime.Add(*stream, std::move(work));
  return cudaSuccess;
}

cudaError_t WaitEvent(Runtime& runtime, cudaStream_t stream_handle, cudaEvent_t event_handle) {
  Stream* stream = runtime.FindStream(stream_handle);
  const auto event = runtime.events.find(event_handle);  // may be of another device
  if (stream == nullptr || event == runtime.events.end()) return cudaErrorInvalidResourceHandle;
  Work work;
  work.name = "a wait";
  if (event->second.shared != nullptr) {
    work.may_run = [&runtime, event_handle, number = event->second.recorded().load()] {
      const auto found = runtime.events.find(event_handle);
      return found == runtime.events.end() || found->second.done() >= number;
    };
  }
  if (event->second.last != kNoWork) work.after.push_back(event->second.last);
  runtime.Add(*stream, std::move(work));
  return cudaSuccess;
}

}  // namespace

namespace {

/// Device memory that can be touched, as by a kernel.
class KernelAccess {
 public:
  explicit KernelAccess(const MemoryMap& memory) : memory_(memory) {
    memory_.ForEach([](const Allocation& one) { one.SetAccess(true); });
  }
  ~KernelAccess() {
    memory_.ForEach([](const Allocation& one) { one.SetAccess(false); });
  }
  KernelAccess(const KernelAccess&) = delete;
  KernelAccess& operator=(const KernelAccess&) = delete;

 private:
  const MemoryMap& memory_;
};

bool AreThere(const MemoryMap& memory, const std::vector<Range>& ranges) {
  return std::ranges::all_of(ranges, [&](const Range& range) {
    return range.bytes == 0 || memory.Find(range.data, range.bytes) != nullptr;
  });
}

}  // namespace

int Launch(const std::string& kernel, void* stream_handle, std::vector<Range> ranges,
           std::function<void()> body, std::function<std::vector<Range>()> find_ranges) {
  return Call("cudaLaunchKernel", CallKind::kNeedsContext, [&](Runtime& runtime) {
    Stream* stream = runtime.FindStream(static_cast<cudaStream_t>(stream_handle));
    if (stream == nullptr) return cudaErrorInvalidResourceHandle;
    const auto id = std::make_shared<WorkId>(kNoWork);
    Work work;
    work.name = kernel;
    work.ranges = std::move(ranges);
    work.run = [&runtime, id, body = std::move(body), find_ranges = std::move(find_ranges),
                known = work.ranges] {
      if (const int error = OrderedFailure(runtime); error != 0) return error;
      if (!AreThere(runtime.memory, known)) return static_cast<int>(cudaErrorIllegalAddress);
      const KernelAccess access(runtime.memory);
      if (find_ranges != nullptr) {
        const std::vector<Range> found = find_ranges();
        if (!AreThere(runtime.memory, found)) return static_cast<int>(cudaErrorIllegalAddress);
        runtime.ViolationLines(runtime.work.AddRanges(*id, found));
      }
      body();
      return 0;
    };
    *id = runtime.Add(*stream, std::move(work));
    return cudaSuccess;
  });
}

}  // namespace kvtier::fake_cuda

using namespace kvtier::fake_cuda;

cudaError_t cudaGetLastError() {
  return TakeLastError();
}
const char* cudaGetErrorName(cudaError_t error) {
  switch (error) {
    case cudaSuccess:
      return "cudaSuccess";
    case cudaErrorInvalidValue:
      return "cudaErrorInvalidValue";
    case cudaErrorMemoryAllocation:
      return "cudaErrorMemoryAllocation";
    case cudaErrorIllegalAddress:
      return "cudaErrorIllegalAddress";
    case cudaErrorNoDevice:
      return "cudaErrorNoDevice";
    default:
      return "an error of the fake runtime";
  }
}
const char* cudaGetErrorString(cudaError_t error) {
  switch (error) {
    case cudaErrorInvalidValue:
      return "invalid argument";
    case cudaErrorMemoryAllocation:
      return "out of memory";
    case cudaErrorIllegalAddress:
      return "an illegal memory access was encountered";
    case cudaErrorInsufficientDriver:
      return "CUDA driver version is insufficient for CUDA runtime version";
    default:
      return "an error of the fake runtime";
  }
}

cudaError_t cudaGetDeviceCount(int* count) {
  return Call("cudaGetDeviceCount", CallKind::kNeedsNone, [&](Runtime& runtime) {
    *count = runtime.machine.devices;
    return *count > 0 ? cudaSuccess : cudaErrorInsufficientDriver;
  });
}
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attr, int device) {
  return Call("cudaDeviceGetAttribute", CallKind::kNeedsNone, [&](Runtime& runtime) {
    if (device < 0 || device >= runtime.machine.devices) return cudaErrorInvalidDevice;
    *value = attr == cudaDevAttrMultiProcessorCount ? 132 : attr == cudaDevAttrComputeCapabilityMajor ? 9 : 0;
    return cudaSuccess;
  });
}
cudaError_t cudaSetDevice(int device) {
  return Call("cudaSetDevice", CallKind::kNeedsNone, [&](Runtime& runtime) {
    if (runtime.machine.devices == 0) return cudaErrorInsufficientDriver;
    if (device < 0 || device >= runtime.machine.devices) return cudaErrorInvalidDevice;
    SetCurrentDevice(device);
    runtime.contexts.insert(device);
    return cudaSuccess;
  });
}
cudaError_t cudaMemGetInfo(size_t* free, size_t* total) {
  return Call("cudaMemGetInfo", CallKind::kNeedsContext, [&](Runtime& runtime) {
    *total = runtime.machine.device_bytes;
    *free = *total - runtime.memory.DeviceBytes(CurrentDevice());
    return cudaSuccess;
  });
}

cudaError_t cudaMalloc(void** pointer, size_t bytes) {
  return Call("cudaMalloc", CallKind::kNeedsContext,
              [&](Runtime& runtime) { return Allocate(runtime, pointer, bytes, MemoryKind::kDevice); });
}
cudaError_t cudaFree(void* pointer) {
  return Call("cudaFree", CallKind::kNeedsContext,
              [&](Runtime& runtime) { return Free(runtime, pointer, MemoryKind::kDevice, "cudaFree"); });
}
cudaError_t cudaHostAlloc(void** pointer, size_t bytes, unsigned int /*flags*/) {
  return Call("cudaHostAlloc", CallKind::kNeedsContext,
              [&](Runtime& runtime) { return Allocate(runtime, pointer, bytes, MemoryKind::kPinned); });
}
cudaError_t cudaFreeHost(void* pointer) {
  return Call("cudaFreeHost", CallKind::kNeedsContext,
              [&](Runtime& runtime) { return Free(runtime, pointer, MemoryKind::kPinned, "cudaFreeHost"); });
}
cudaError_t cudaMemcpyAsync(void* target, const void* source, size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t stream) {
  return Call("cudaMemcpyAsync", CallKind::kNeedsContext,
              [&](Runtime& runtime) { return CopyAsync(runtime, target, source, bytes, kind, stream); });
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned int flags) {
  return Call("cudaStreamCreateWithFlags", CallKind::kNeedsContext, [&](Runtime& runtime) {
    if (flags != cudaStreamNonBlocking) runtime.Violation("a stream that waits for the default stream");
    *stream = NewHandle<cudaStream_t>(runtime);
    runtime.streams[*stream] = {.device = CurrentDevice()};
    return cudaSuccess;
  });
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  return Call("cudaStreamDestroy", CallKind::kNeedsContext, [&](Runtime& runtime) {
    return runtime.streams.erase(stream) > 0 ? cudaSuccess : cudaErrorInvalidResourceHandle;
  });
}
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned int /*flags*/) {
  return Call("cudaStreamWaitEvent", CallKind::kNeedsContext,
              [&](Runtime& runtime) { return WaitEvent(runtime, stream, event); });
}
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned int flags) {
  return Call("cudaEventCreateWithFlags", CallKind::kNeedsContext, [&](Runtime& runtime) {
    Event made;
    made.device = CurrentDevice();
    if (flags & cudaEventInterprocess) {
      if (!(flags & cudaEventDisableTiming)) return cudaErrorInvalidValue;
      made.shared = Allocation::Make(MemoryKind::kPinned, CurrentDevice(), sizeof(SharedEvent));
      if (made.shared == nullptr) return cudaErrorMemoryAllocation;
      made.recorded() = made.done() = 0;
    }
    *event = NewHandle<cudaEvent_t>(runtime);
    runtime.events.emplace(*event, std::move(made));
    return cudaSuccess;
  });
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  return Call("cudaEventDestroy", CallKind::kNeedsContext, [&](Runtime& runtime) {
    return runtime.events.erase(event) > 0 ? cudaSuccess : cudaErrorInvalidResourceHandle;
  });
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  return Call("cudaEventRecord", CallKind::kNeedsContext,
              [&](Runtime& runtime) { return Record(runtime, event, stream); });
}
cudaError_t cudaEventQuery(cudaEvent_t event) {
  return Call("cudaEventQuery", CallKind::kNeedsContext,
              [&](Runtime& runtime) { return Query(runtime, event); });
}
