#pragma once

#include <cstddef>

// The part of CUDA's runtime API that kvtier's host code uses, as CUDA 13 declares it, so that this code is
// built and tested where no toolkit is. tests/cuda/header_test.cc holds it to the toolkit's own header.

#ifndef KVTIER_FAKE_CUDA_LINKAGE
#define KVTIER_FAKE_CUDA_LINKAGE extern "C"
#endif

enum cudaError {
  cudaSuccess = 0,
  cudaErrorInvalidValue = 1,
  cudaErrorMemoryAllocation = 2,
  cudaErrorInsufficientDriver = 35,
  cudaErrorNoDevice = 100,
  cudaErrorInvalidDevice = 101,
  cudaErrorDeviceUninitialized = 201,
  cudaErrorMapBufferObjectFailed = 205,
  cudaErrorECCUncorrectable = 214,
  cudaErrorNvlinkUncorrectable = 220,
  cudaErrorContained = 226,
  cudaErrorInvalidResourceHandle = 400,
  cudaErrorNotReady = 600,
  cudaErrorIllegalAddress = 700,
  cudaErrorLaunchTimeout = 702,
  cudaErrorContextIsDestroyed = 709,
  cudaErrorAssert = 710,
  cudaErrorHardwareStackError = 714,
  cudaErrorIllegalInstruction = 715,
  cudaErrorMisalignedAddress = 716,
  cudaErrorInvalidAddressSpace = 717,
  cudaErrorInvalidPc = 718,
  cudaErrorLaunchFailure = 719,
  cudaErrorTensorMemoryLeak = 721,
  cudaErrorNotPermitted = 800,
  cudaErrorNotSupported = 801,
  cudaErrorExternalDevice = 911,
  cudaErrorUnknown = 999
};
typedef enum cudaError cudaError_t;

enum cudaMemcpyKind {
  cudaMemcpyHostToHost = 0,
  cudaMemcpyHostToDevice = 1,
  cudaMemcpyDeviceToHost = 2,
  cudaMemcpyDeviceToDevice = 3,
  cudaMemcpyDefault = 4
};
enum cudaDeviceAttr {
  cudaDevAttrMultiProcessorCount = 16,
  cudaDevAttrComputeCapabilityMajor = 75,
  cudaDevAttrComputeCapabilityMinor = 76
};

#define cudaHostAllocPortable 0x01
#define cudaStreamNonBlocking 0x01
#define cudaEventDisableTiming 0x02
#define cudaEventInterprocess 0x04
#define cudaIpcMemLazyEnablePeerAccess 0x01

typedef struct CUstream_st* cudaStream_t;
typedef struct CUevent_st* cudaEvent_t;
typedef struct cudaIpcMemHandle_st {
  char reserved[64];
} cudaIpcMemHandle_t;
typedef struct cudaIpcEventHandle_st {
  char reserved[64];
} cudaIpcEventHandle_t;

KVTIER_FAKE_CUDA_LINKAGE const char* cudaGetErrorName(cudaError_t error);
KVTIER_FAKE_CUDA_LINKAGE const char* cudaGetErrorString(cudaError_t error);
KVTIER_FAKE_CUDA_LINKAGE cudaError_t cudaGetLastError();

KVTIER_FAKE_CUDA_LINKAGE cudaError_t cudaGetDeviceCount(int* count);
KVTIER_FAKE_CUDA_LINKAGE cudaError_t cudaDeviceGetAttribute(int* value, enum cudaDeviceAttr attr, int device);
KVTIER_FAKE_CUDA_LINKAGE cudaError_t cudaSetDevice(int device);
KVTIER_FAKE_CUDA_LINKAGE cudaError_t cudaMemGetInfo(size_t* free, size_t* total);

KVTIER_FAKE_CUDA_LINKAGE cudaError_t cudaMalloc(void** pointer, size_t bytes);
KVTIER_FAKE_CUDA_LINKAGE cudaError_t cudaFree(void* pointer);
KVTIER_FAKE_CUDA_LINKAGE cudaError_t cudaHostAlloc(void** pointer, size_t bytes, unsigned int flags);
KVTIER_FAKE_CUDA_LINKAGE cudaError_t cudaFreeHost(void* pointer);
KVTIER_FAKE_CUDA_LINKAGE cudaError_t cudaMemcpyAsync(void* target, const void* source, size_t bytes,
                                                     enum cudaMemcpyKind kind, cudaStream_t stream);

KVTIER_FAKE_CUDA_LINKAGE cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned int flags);
KVTIER_FAKE_CUDA_LINKAGE cudaError_t cudaStreamDestroy(cudaStream_t stream);
KVTIER_FAKE_CUDA_LINKAGE cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event,
                                                         unsigned int flags);
KVTIER_FAKE_CUDA_LINKAGE cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned int flags);
KVTIER_FAKE_CUDA_LINKAGE cudaError_t cudaEventDestroy(cudaEvent_t event);
KVTIER_FAKE_CUDA_LINKAGE cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream);
KVTIER_FAKE_CUDA_LINKAGE cudaError_t cudaEventQuery(cudaEvent_t event);

KVTIER_FAKE_CUDA_LINKAGE cudaError_t cudaIpcGetMemHandle(cudaIpcMemHandle_t* handle, void* pointer);
KVTIER_FAKE_CUDA_LINKAGE cudaError_t cudaIpcOpenMemHandle(void** pointer, cudaIpcMemHandle_t handle,
                                                          unsigned int flags);
KVTIER_FAKE_CUDA_LINKAGE cudaError_t cudaIpcCloseMemHandle(void* pointer);
KVTIER_FAKE_CUDA_LINKAGE cudaError_t cudaIpcGetEventHandle(cudaIpcEventHandle_t* handle, cudaEvent_t event);
KVTIER_FAKE_CUDA_LINKAGE cudaError_t cudaIpcOpenEventHandle(cudaEvent_t* event, cudaIpcEventHandle_t handle);
