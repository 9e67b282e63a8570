#pragma once

#include "kernels/dequantize_kv8.h"
#include "kernels/quantize_kv8.h"

namespace kvtier {

struct Kv8LayerErrors {
  Kv8RowErrors k, v;
};

/// QuantizeKv8 and DequantizeKv8 for all blocks of their launch, on the calling thread, with the widest
/// vectors that the CPU has. The bytes are those of SerialTeam. The encoder returns the sums over all rows;
/// pointers to errors in `args` are not looked at.
Kv8LayerErrors QuantizeKv8Simd(const QuantizeKv8Args& args);
void DequantizeKv8Simd(const DequantizeKv8Args& args);

}  // namespace kvtier
