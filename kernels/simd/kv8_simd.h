#pragma once

#include "kernels/dequantize_kv8.h"
#include "kernels/quantize_kv8.h"

namespace kvtier {

/// QuantizeKv8 and DequantizeKv8 for all blocks of their launch, on the calling thread, with the widest
/// vectors that the CPU has. The bytes are those of SerialTeam.
void QuantizeKv8Simd(const QuantizeKv8Args& args);
void DequantizeKv8Simd(const DequantizeKv8Args& args);

}  // namespace kvtier
