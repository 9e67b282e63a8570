#pragma once

#include <string_view>

#include "tiers/base/status.h"

namespace kvtier {

/// "call: text of CUDA", from a cudaError_t; Ok for cudaSuccess. kResourceExhausted: no memory; kUnavailable:
/// no driver, no device, or a context that is lost; kInvalidArgument: a handle of another process that cannot
/// be opened; kUnimplemented, kPermissionDenied: the system does not do it, or not for us; else kInternal.
/// What CUDA keeps of it for the thread is cleared. Any thread.
Status StatusFromCuda(int error, std::string_view call);

/// Whether nothing works any more on that device in this process: all its memory is gone.
bool LosesContext(int error);

}  // namespace kvtier
