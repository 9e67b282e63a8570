#include "tiers/cuda/cuda_status.h"

#include <cuda_runtime_api.h>

#include <string>

namespace kvtier {
namespace {

Code CodeOf(cudaError_t error) {
  switch (error) {
    case cudaErrorMemoryAllocation:
      return Code::kResourceExhausted;
    case cudaErrorInsufficientDriver:
    case cudaErrorNoDevice:
      return Code::kUnavailable;
    case cudaErrorInvalidDevice:
      return Code::kNotFound;
    case cudaErrorMapBufferObjectFailed:
    case cudaErrorDeviceUninitialized:  // a handle of this very process
      return Code::kInvalidArgument;
    case cudaErrorNotPermitted:
      return Code::kPermissionDenied;
    case cudaErrorNotSupported:
      return Code::kUnimplemented;
    default:
      return LosesContext(error) ? Code::kUnavailable : Code::kInternal;
  }
}

}  // namespace

Status StatusFromCuda(int number, std::string_view call) {
  if (number == cudaSuccess) return Status::Ok();
  // Else the next launch, which asks for the last error, would take this one for its own.
  cudaGetLastError();
  const auto error = static_cast<cudaError_t>(number);
  return Status(CodeOf(error),
                std::string(call) + ": " + cudaGetErrorString(error) + " (" + cudaGetErrorName(error) + ")");
}

bool LosesContext(int error) {
  switch (error) {
    case cudaErrorECCUncorrectable:
    case cudaErrorNvlinkUncorrectable:
    case cudaErrorContained:
    case cudaErrorIllegalAddress:
    case cudaErrorLaunchTimeout:
    case cudaErrorContextIsDestroyed:
    case cudaErrorAssert:
    case cudaErrorHardwareStackError:
    case cudaErrorIllegalInstruction:
    case cudaErrorMisalignedAddress:
    case cudaErrorInvalidAddressSpace:
    case cudaErrorInvalidPc:
    case cudaErrorLaunchFailure:
    case cudaErrorTensorMemoryLeak:
    case cudaErrorExternalDevice:
    case cudaErrorUnknown:
      return true;
    default:
      return false;
  }
}

}  // namespace kvtier
