#pragma once

#include <cstdint>

#include "kernels/batch.h"

namespace kvtier::cuda {

/// A cudaStream_t, so that whoever includes this needs no CUDA header. Null: the default stream.
using StreamHandle = void*;

/// What CUDA said of a launch: a cudaError_t, 0 is success. That a kernel failed shows later, at the stream.
using LaunchError = int;

// Asynchronous on `stream` of the current device: for the whole batch one kernel, where items may have
// several codings one for each of `codings` (encoding to planes takes two: the second measures errors again).
// A batch without items launches nothing. The arguments go by value; the arrays that they point at must stay
// until the kernels have run. Sizes are preconditions (codecs/codec.h says which shapes a codec supports).
// Any thread. No memory is allocated.

/// Paged, strided K and V of an engine into encoded layers: gathered and encoded in one pass.
[[nodiscard]] LaunchError LaunchEncode(const EncodeBatchArgs& batch, StreamHandle stream);
/// Raw or kv8 layers into kv8 or the plane family.
[[nodiscard]] LaunchError LaunchRequantize(const RequantizeBatchArgs& batch, StreamHandle stream);
/// kv4p to kv42 to kv2p.
[[nodiscard]] LaunchError LaunchCut(const CutBatchArgs& batch, StreamHandle stream);
/// Encoded layers into paged, strided K and V of an engine.
[[nodiscard]] LaunchError LaunchDecode(const DecodeBatchArgs& batch, StreamHandle stream);
/// Decode attention: the part of every split, then (in a launch of its own, on the same stream) the results.
[[nodiscard]] LaunchError LaunchAttend(const AttendBatchArgs& batch, StreamHandle stream);
[[nodiscard]] LaunchError LaunchCombine(const CombineBatchArgs& batch, StreamHandle stream);

}  // namespace kvtier::cuda
