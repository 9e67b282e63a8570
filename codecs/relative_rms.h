#pragma once

#include <algorithm>
#include <cmath>

#include "kernels/numerics.h"

namespace kvtier {

/// The error that an image states, from sums of squares; 0/0 = 0, and what fp16 can hold.
inline float RelativeRms(double error, double square) {
  if (error == 0) return 0;
  return static_cast<float>(std::min(std::sqrt(error / square), double{kFp16Max}));
}

}  // namespace kvtier
