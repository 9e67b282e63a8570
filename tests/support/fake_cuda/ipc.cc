#include <cuda_runtime_api.h>
#include <fcntl.h>
#include <unistd.h>

#include <cstring>
#include <string>

#include "tests/support/fake_cuda/runtime.h"

// Handles name a memory file of the process that exports, which the other opens under /proc: nothing stays
// behind when both are gone.

namespace kvtier::fake_cuda {
namespace {

constexpr uint64_t kHandleMagic = 0x6B76746965724750;

struct Handle {
  uint64_t magic;
  int64_t process;
  int64_t file;
  uint64_t bytes;
};
static_assert(sizeof(Handle) <= sizeof(cudaIpcMemHandle_t) && sizeof(Handle) <= sizeof(cudaIpcEventHandle_t));

template <typename Opaque>
void Export(const Allocation& memory, Opaque* out) {
  const Handle handle = {
      .magic = kHandleMagic, .process = getpid(), .file = memory.file(), .bytes = memory.bytes()};
  memset(out, 0, sizeof(*out));
  memcpy(out, &handle, sizeof(handle));
}

template <typename Opaque>
cudaError_t Import(const Opaque& in, std::unique_ptr<Allocation>& out) {
  Handle handle;
  memcpy(&handle, &in, sizeof(handle));
  if (handle.magic != kHandleMagic) return cudaErrorInvalidValue;
  if (handle.process == getpid()) return cudaErrorDeviceUninitialized;  // as CUDA answers
  const std::string path = "/proc/" + std::to_string(handle.process) + "/fd/" + std::to_string(handle.file);
  const int file = open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (file < 0) return cudaErrorMapBufferObjectFailed;
  out = Allocation::Import(CurrentDevice(), file, handle.bytes);
  return out == nullptr ? cudaErrorMapBufferObjectFailed : cudaSuccess;
}

}  // namespace
}  // namespace kvtier::fake_cuda

using namespace kvtier::fake_cuda;

cudaError_t cudaIpcGetMemHandle(cudaIpcMemHandle_t* handle, void* pointer) {
  return Call("cudaIpcGetMemHandle", CallKind::kNeedsContext, [&](Runtime& runtime) {
    const Allocation* memory = runtime.memory.At(pointer);
    if (memory == nullptr || memory->kind() != MemoryKind::kDevice) return cudaErrorInvalidValue;
    Export(*memory, handle);
    return cudaSuccess;
  });
}
cudaError_t cudaIpcOpenMemHandle(void** pointer, cudaIpcMemHandle_t handle, unsigned int /*flags*/) {
  return Call("cudaIpcOpenMemHandle", CallKind::kNeedsContext, [&](Runtime& runtime) {
    std::unique_ptr<Allocation> memory;
    if (const cudaError_t error = Import(handle, memory); error != cudaSuccess) return error;
    *pointer = runtime.memory.Add(std::move(memory));
    return cudaSuccess;
  });
}
cudaError_t cudaIpcCloseMemHandle(void* pointer) {
  return Call("cudaIpcCloseMemHandle", CallKind::kNeedsContext, [&](Runtime& runtime) {
    const Allocation* memory = runtime.memory.At(pointer);
    if (memory == nullptr || memory->kind() != MemoryKind::kImported) return cudaErrorInvalidValue;
    runtime.CheckUnused(*memory, "cudaIpcCloseMemHandle");
    runtime.memory.Remove(pointer);
    return cudaSuccess;
  });
}
cudaError_t cudaIpcGetEventHandle(cudaIpcEventHandle_t* handle, cudaEvent_t event) {
  return Call("cudaIpcGetEventHandle", CallKind::kNeedsContext, [&](Runtime& runtime) {
    const Event* found = runtime.FindEvent(event);
    if (found == nullptr || found->shared == nullptr) return cudaErrorInvalidResourceHandle;
    Export(*found->shared, handle);
    return cudaSuccess;
  });
}
cudaError_t cudaIpcOpenEventHandle(cudaEvent_t* event, cudaIpcEventHandle_t handle) {
  return Call("cudaIpcOpenEventHandle", CallKind::kNeedsContext, [&](Runtime& runtime) {
    Event made;
    made.device = CurrentDevice();
    if (const cudaError_t error = Import(handle, made.shared); error != cudaSuccess) return error;
    *event = reinterpret_cast<cudaEvent_t>(++runtime.last_handle);
    runtime.events.emplace(*event, std::move(made));
    return cudaSuccess;
  });
}
