#pragma once

#include <cstdint>

#include "kernels/host_device.h"
#include "kernels/numerics.h"

// The errors that an image states (codecs/FORMAT.md, "Stated errors").

namespace kvtier {

/// Sums over some elements: of x^2, and of (x - x^)^2 at both precisions.
struct RowErrors {
  double square = 0, int4 = 0, int2 = 0;
};

/// What x^ is. On the grid: K before the decoder's last rounding, V where it was cut to codes, rotated. That
/// is cheap (V need not be rotated back), and as good as the decoded values as long as TrustsGrid says so of
/// the elements that it is asked about.
enum class ErrorMeasure : uint8_t { kOnGrid, kDecoded };

/// Whether the sums of some elements, measured on the grid, tell the error of the decoded values to the last
/// place of the fp16 that states it. Not when the error is so small that the rounding to fp16 is a part of it
/// (K far from zero), nor when everything is far below a step or below what fp32 squares hold (BF16 alone).
KVTIER_HD inline bool TrustsGrid(const RowErrors& sum) {
  constexpr double kRatioSquaredMax = 1024, kSquareMin = 0x1p-60;
  return sum.square >= kSquareMin && sum.int4 * kRatioSquaredMax >= sum.square &&
         sum.int4 <= sum.square * kRatioSquaredMax;
}

/// Error sums of a row in eight lanes: element i goes to lane i mod 8, lanes are added in pairs at the end.
class RowErrorSum {
 public:
  /// `n` is a multiple of 8; off = x - x^.
  KVTIER_HD void Add(const float* x, const float* off_int4, const float* off_int2, uint32_t n) {
    for (uint32_t i = 0; i < n; i += kLanes) {
      for (uint32_t lane = 0; lane < kLanes; ++lane) {
        const double value = x[i + lane], int4 = off_int4[i + lane], int2 = off_int2[i + lane];
        square_[lane] += value * value;
        int4_[lane] += int4 * int4;
        int2_[lane] += int2 * int2;
      }
    }
  }
  KVTIER_HD void Add(const RowErrors& sum) {
    square_[0] += sum.square;
    int4_[0] += sum.int4;
    int2_[0] += sum.int2;
  }
  KVTIER_HD RowErrors Sum() const {
    return {.square = Fold(square_), .int4 = Fold(int4_), .int2 = Fold(int2_)};
  }

 private:
  static constexpr uint32_t kLanes = 8;
  KVTIER_HD static double Fold(const double* lane) {
    return ((lane[0] + lane[4]) + (lane[2] + lane[6])) + ((lane[1] + lane[5]) + (lane[3] + lane[7]));
  }
  double square_[kLanes] = {}, int4_[kLanes] = {}, int2_[kLanes] = {};
};

/// Positions on the grid of V are counted in this many parts of a step: then they fit 16 bits.
inline constexpr int32_t kVGridParts = 2048;
/// From this scale byte on (a scale of 1024) a decoder may clamp: such groups are measured decoded.
inline constexpr uint8_t kVScaleClamps = 0x6400 >> 7;

/// Errors of one V group on the grid. INT4 decodes to the middle of a step, INT2 to that of four; where a
/// code was clamped (steps = 8) the distance to the middle of the next cell is the same.
KVTIER_HD inline RowErrors VGridErrors(const float* steps, uint32_t n, float scale) {
  int64_t square = 0, int4 = 0, int2 = 0;
  for (uint32_t i = 0; i < n; ++i) {
    const int32_t position = FloorToInt(steps[i] * kVGridParts);
    const int32_t off_int4 = (position & (kVGridParts - 1)) - kVGridParts / 2;
    const int32_t off_int2 = (position & (4 * kVGridParts - 1)) - 2 * kVGridParts;
    square += int64_t{position} * position;
    int4 += int64_t{off_int4} * off_int4;
    int2 += int64_t{off_int2} * off_int2;
  }
  const double part = double{scale} / kVGridParts;
  return {.square = static_cast<double>(square) * part * part,
          .int4 = static_cast<double>(int4) * part * part,
          .int2 = static_cast<double>(int2) * part * part};
}

}  // namespace kvtier
