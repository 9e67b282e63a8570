// Compiles only where the fake runtime's header says what the toolkit's says. Ours is read into a namespace;
// a macro of another value would be a redefinition.
#include <cuda_runtime_api.h>

#include <cstddef>
#include <type_traits>

#define KVTIER_FAKE_CUDA_LINKAGE
namespace ours {
#include "tests/support/fake_cuda/include/cuda_runtime_api.h"
}  // namespace ours

namespace {

/// Whether a caller passes both in the same way.
template <typename Ours, typename Theirs>
constexpr bool SameForm() {
  if constexpr (std::is_pointer_v<Ours> && std::is_pointer_v<Theirs>) {
    return std::is_const_v<std::remove_pointer_t<Ours>> == std::is_const_v<std::remove_pointer_t<Theirs>>;
  } else {
    return std::is_pointer_v<Ours> == std::is_pointer_v<Theirs> && sizeof(Ours) == sizeof(Theirs) &&
           std::is_enum_v<Ours> == std::is_enum_v<Theirs> && std::is_class_v<Ours> == std::is_class_v<Theirs>;
  }
}

template <typename Ours, typename Theirs>
struct SameSignature : std::false_type {};
template <typename R, typename... Ours, typename S, typename... Theirs>
requires(sizeof...(Ours) == sizeof...(Theirs)) struct SameSignature<R(Ours...), S(Theirs...)>
    : std::bool_constant<SameForm<R, S>() && (SameForm<Ours, Theirs>() && ...)> {
};

#define SAME_FUNCTION(name) static_assert(SameSignature<decltype(ours::name), decltype(::name)>::value, #name)
SAME_FUNCTION(cudaGetErrorName);
SAME_FUNCTION(cudaGetErrorString);
SAME_FUNCTION(cudaGetLastError);
SAME_FUNCTION(cudaGetDeviceCount);
SAME_FUNCTION(cudaDeviceGetAttribute);
SAME_FUNCTION(cudaSetDevice);
SAME_FUNCTION(cudaMemGetInfo);
SAME_FUNCTION(cudaMalloc);
SAME_FUNCTION(cudaFree);
SAME_FUNCTION(cudaHostAlloc);
SAME_FUNCTION(cudaFreeHost);
SAME_FUNCTION(cudaMemcpyAsync);
SAME_FUNCTION(cudaStreamCreateWithFlags);
SAME_FUNCTION(cudaStreamDestroy);
SAME_FUNCTION(cudaStreamWaitEvent);
SAME_FUNCTION(cudaEventCreateWithFlags);
SAME_FUNCTION(cudaEventDestroy);
SAME_FUNCTION(cudaEventRecord);
SAME_FUNCTION(cudaEventQuery);
SAME_FUNCTION(cudaIpcGetMemHandle);
SAME_FUNCTION(cudaIpcOpenMemHandle);
SAME_FUNCTION(cudaIpcCloseMemHandle);
SAME_FUNCTION(cudaIpcGetEventHandle);
SAME_FUNCTION(cudaIpcOpenEventHandle);

#define SAME_VALUE(name) static_assert(int{ours::name} == int{::name}, #name)
SAME_VALUE(cudaSuccess);
SAME_VALUE(cudaErrorInvalidValue);
SAME_VALUE(cudaErrorMemoryAllocation);
SAME_VALUE(cudaErrorInsufficientDriver);
SAME_VALUE(cudaErrorNoDevice);
SAME_VALUE(cudaErrorInvalidDevice);
SAME_VALUE(cudaErrorDeviceUninitialized);
SAME_VALUE(cudaErrorMapBufferObjectFailed);
SAME_VALUE(cudaErrorECCUncorrectable);
SAME_VALUE(cudaErrorNvlinkUncorrectable);
SAME_VALUE(cudaErrorContained);
SAME_VALUE(cudaErrorInvalidResourceHandle);
SAME_VALUE(cudaErrorNotReady);
SAME_VALUE(cudaErrorIllegalAddress);
SAME_VALUE(cudaErrorLaunchTimeout);
SAME_VALUE(cudaErrorContextIsDestroyed);
SAME_VALUE(cudaErrorAssert);
SAME_VALUE(cudaErrorHardwareStackError);
SAME_VALUE(cudaErrorIllegalInstruction);
SAME_VALUE(cudaErrorMisalignedAddress);
SAME_VALUE(cudaErrorInvalidAddressSpace);
SAME_VALUE(cudaErrorInvalidPc);
SAME_VALUE(cudaErrorLaunchFailure);
SAME_VALUE(cudaErrorTensorMemoryLeak);
SAME_VALUE(cudaErrorNotPermitted);
SAME_VALUE(cudaErrorNotSupported);
SAME_VALUE(cudaErrorExternalDevice);
SAME_VALUE(cudaErrorUnknown);
SAME_VALUE(cudaMemcpyHostToHost);
SAME_VALUE(cudaMemcpyHostToDevice);
SAME_VALUE(cudaMemcpyDeviceToHost);
SAME_VALUE(cudaMemcpyDeviceToDevice);
SAME_VALUE(cudaMemcpyDefault);
SAME_VALUE(cudaDevAttrMultiProcessorCount);
SAME_VALUE(cudaDevAttrComputeCapabilityMajor);
SAME_VALUE(cudaDevAttrComputeCapabilityMinor);

}  // namespace
