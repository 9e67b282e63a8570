#pragma once

#include <cstdint>
#include <span>
#include <string_view>

namespace kvtier {

/// Sets of vector instructions that the kernels are compiled for, ascending. Portable is the kernel bodies on
/// SerialTeam: what every CPU runs, and the reference that the others equal byte for byte.
enum class SimdLevel : uint8_t { kPortable, kAvx2, kAvx512, kAvx512Vnni, kNeon };

/// Those that this CPU runs, ascending; portable is always among them.
std::span<const SimdLevel> AvailableSimdLevels();
std::string_view SimdLevelName(SimdLevel level);

/// What the kernels use: the widest available, unless limited.
SimdLevel CurrentSimdLevel();
/// For benchmarks and tests: kernels use `level` (an available one) from now on. Not while kernels run.
void LimitSimd(SimdLevel level);

}  // namespace kvtier
