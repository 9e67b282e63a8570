#pragma once

#include <string>
#include <vector>

namespace kvtier {

struct Measured {
  std::string name;
  double value;
  std::string unit;
};

/// Speeds of the current GPU, of the kernels on it, and of FP16 attention beside them. Throw
/// std::runtime_error with CUDA's words where they fail.
std::vector<Measured> MeasureGpu();        ///< all of it
std::vector<Measured> MeasureAttention();  ///< a part of that

}  // namespace kvtier
