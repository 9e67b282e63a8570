#pragma once

#include <string>
#include <vector>

namespace kvtier {

struct Measured {
  std::string name;
  double value;
  std::string unit;
};

/// Speeds of the current GPU, of the kernels on it, and of an FP16 attention kernel beside them. Throws
/// std::runtime_error with CUDA's words where it fails.
std::vector<Measured> MeasureGpu();

}  // namespace kvtier
