#pragma once

#include <cmath>
#include <cstdint>

#include "kernels/batch_encode_k.h"
#include "kernels/batch_rows.h"
#include "kernels/batch_source.h"
#include "kernels/host_device.h"
#include "kernels/quantize.h"
#include "kernels/team.h"

// V of one head into the plane family. Four lanes of a warp share a group of 64 channels; where lanes stand
// alone (SerialTeam), each takes whole groups. quantize.h is the specification.

namespace kvtier::internal {

/// H64 of a group, unscaled, distances 1, 2, 4 .. 32: element 16 r + 4 part + i is y[4 r + i] of the lane
/// that has this part. Called by whole warps.
template <Team T>
KVTIER_HD void HadamardOfColumns(const T& team, uint32_t part, float* y) {
  KVTIER_HD_UNROLLED
  for (uint32_t first = 0; first < kColumn; first += kRun) {
    const float a0 = y[first] + y[first + 1], a1 = y[first] - y[first + 1];
    const float a2 = y[first + 2] + y[first + 3], a3 = y[first + 2] - y[first + 3];
    y[first] = a0 + a2;
    y[first + 1] = a1 + a3;
    y[first + 2] = a0 - a2;
    y[first + 3] = a1 - a3;
  }
  KVTIER_HD_UNROLLED
  for (uint32_t mask = 1; mask < kColumnsPerTile; mask *= 2) {
    const float sign = (part & mask) != 0 ? -1.0f : 1.0f;
    KVTIER_HD_UNROLLED
    for (uint32_t i = 0; i < kColumn; ++i) {
      const float other = team.shfl_xor(y[i], mask);
      y[i] = ExactFma(sign, y[i], other);
    }
  }
  KVTIER_HD_UNROLLED
  for (uint32_t i = 0; i < kRun; ++i) {
    const float a0 = y[i] + y[i + 4], a1 = y[i] - y[i + 4];
    const float a2 = y[i + 8] + y[i + 12], a3 = y[i + 8] - y[i + 12];
    y[i] = a0 + a2;
    y[i + 4] = a1 + a3;
    y[i + 8] = a0 - a2;
    y[i + 12] = a1 - a3;
  }
}

KVTIER_HD inline float Largest(const float* y, uint32_t n) {
  int32_t largest_bits = 0;  // magnitudes order as their bits do
  for (uint32_t i = 0; i < n; ++i) {
    const int32_t magnitude = std::bit_cast<int32_t>(y[i]) & 0x7fffffff;
    largest_bits = magnitude > largest_bits ? magnitude : largest_bits;
  }
  return std::bit_cast<float>(largest_bits);
}

/// Of the four lanes that share a group. Called by whole warps.
template <Team T>
KVTIER_HD float LargestOfGroup(const T& team, const float* y) {
  float largest = Largest(y, kColumn);
  KVTIER_HD_UNROLLED
  for (uint32_t mask = 1; mask < kColumnsPerTile; mask *= 2) {
    const float other = team.shfl_xor(largest, mask);
    largest = other > largest ? other : largest;
  }
  return largest;
}

/// Codes of four values in units of the scale, a byte each, and what they are off by on the grid.
KVTIER_HD inline uint32_t EncodeVRun(const float* steps, float* square, float* int4, float* int2) {
  constexpr float kBelow8 = 7.9999995f;
  uint32_t bits[kRun];
  KVTIER_HD_UNROLLED
  for (uint32_t i = 0; i < kRun; ++i) {
    const float at = Smaller(Larger(steps[i], -8.0f), kBelow8);
    const float floor = FloorSum(at);
    bits[i] = std::bit_cast<uint32_t>(floor);
    const float cell = std::bit_cast<float>(bits[i] & ~3u);  // of four steps
    const float off_int4 = (at - (floor - kFloorRounder)) - 0.5f;
    const float off_int2 = (at - (cell - kFloorRounder)) - 2.0f;
    *square = SumFma(at, at, *square);
    *int4 = SumFma(off_int4, off_int4, *int4);
    *int2 = SumFma(off_int2, off_int2, *int2);
  }
  return BytesOf(bits) & 0x0f0f0f0f;
}

/// What a lane, or four, encode of V at a time.
struct VPlace {
  uint32_t token;         ///< below PaddedTokens
  uint32_t source_token;  ///< below tokens
  uint32_t group;
};

/// One lane's column of a group whose largest magnitude is known, y rotated where groups are.
KVTIER_HD inline void StoreVColumn(const BlockShape& shape, const PlaneSections<uint8_t>& out, uint32_t head,
                                   const VPlace& place, const Column& column, const float* y,
                                   uint8_t scale_byte, LaneErrors& errors, bool& clamps) {
  const float scale = FromHalf(static_cast<uint16_t>(scale_byte << 7));
  const float inverse = scale_byte != 0 ? 1.0f / scale : 0.0f;
  float square = 0, int4 = 0, int2 = 0;
  uint32_t codes[4] = {};
  KVTIER_HD_UNROLLED
  for (uint32_t r = 0; r < 4; ++r) {
    if (place.token < shape.nraw) break;
    float steps[kRun];
    KVTIER_HD_UNROLLED
    for (uint32_t i = 0; i < kRun; ++i) steps[i] = y[r * kRun + i] * inverse;
    codes[r] = EncodeVRun(steps, &square, &int4, &int2);
  }
  if (place.token < shape.tokens && place.token >= shape.nraw) {
    errors.Add(square * scale * scale, int4 * scale * scale, int2 * scale * scale);
    clamps |= scale_byte >= kVScaleClamps;
  }
  const uint64_t row = PlaneRow(shape, head, place.token);
  const uint64_t at = row * (shape.v_dim / 4) + column.PlaneByte();
  const PackedRuns words = PackRuns(codes);
  StoreWord(out.v_high + at, words.high);
  if (out.v_low != nullptr) StoreWord(out.v_low + at, words.low);
  if (column.part == 0) out.v_scale[row * VGroups(shape) + place.group] = scale_byte;
}

/// Scale of a group: three bits of mantissa, rounded up, below the end of fp16's range.
KVTIER_HD inline uint8_t VScaleByte(float largest) {
  const uint32_t rounded_up = (uint32_t{ToHalfUp(largest * 0.125f)} + 127) >> 7;
  return static_cast<uint8_t>(rounded_up < 247 ? rounded_up : 247);
}

/// A column's values, zero past the end of the row; raw rows are stored.
template <typename Source>
KVTIER_HD void LoadVColumn(const Source& source, const BlockShape& shape, const PlaneSections<uint8_t>& out,
                           uint32_t head, const VPlace& place, const Column& column, float* y,
                           LaneErrors& errors) {
  Four x[4];
  KVTIER_HD_UNROLLED
  for (uint32_t r = 0; r < 4; ++r) x[r] = source.LoadV(place.source_token, column.Run(r));
  KVTIER_HD_UNROLLED
  for (uint32_t i = 0; i < kColumn; ++i) {
    y[i] = x[i / kRun].value[i % kRun];
    if constexpr (!Source::kFitsWhereFinite) errors.misfits += 1 - FitsFp16(y[i]);
  }
  if (place.token >= shape.nraw) return;
  uint8_t* const raw = out.v_raw + 2 * (uint64_t{head} * shape.nraw + place.token) * shape.v_dim;
  KVTIER_HD_UNROLLED
  for (uint32_t r = 0; r < 4; ++r) EncodeRawRun(x[r], raw + 2 * column.Run(r), errors);
}

/// V by lanes of warps: a lane has a column of a group. Returns whether a decoder may clamp what it decodes.
template <Team T, typename Source>
KVTIER_HD bool EncodeVByColumns(const T& team, const Source& source, const BlockShape& shape,
                                const PlaneSections<uint8_t>& out, uint32_t head, LaneErrors& errors) {
  const uint32_t dim = shape.v_dim, groups = VGroups(shape), tokens = PaddedTokens(shape);
  const ColumnTasks tasks(team, groups * kColumnsPerTile, kMaxTokens);
  const uint32_t rounds = (tokens + tasks.slices - 1) / tasks.slices;
  bool clamps = false;
  // Lanes without work go along: the others exchange values with them.
  for (uint32_t first = 0; first < tasks.count(); first += team.size()) {
    const uint32_t task = first + team.rank();
    const Column column(tasks.ColumnOf(task), dim);
    const bool is_rotated = column.quarter == kTileBytes;
    KVTIER_HD_ROLLED
    for (uint32_t round = 0; round < rounds; ++round) {
      const uint32_t token = tasks.SliceOf(task) + round * tasks.slices;
      const VPlace place = {.token = token,
                            .source_token = token < shape.tokens ? token : shape.tokens - 1u,
                            .group = tasks.ColumnOf(task) / kColumnsPerTile};
      const bool works = task < tasks.count() && token < tokens && kRun * column.part < column.quarter;
      float y[kColumn] = {};
      if (works) LoadVColumn(source, shape, out, head, place, column, y, errors);
      float rotated[kColumn];
      KVTIER_HD_UNROLLED
      for (uint32_t i = 0; i < kColumn; ++i) rotated[i] = y[i];
      HadamardOfColumns(team, column.part, rotated);
      KVTIER_HD_UNROLLED
      for (uint32_t i = 0; i < kColumn; ++i) y[i] = is_rotated ? rotated[i] * 0.125f : y[i];
      const float largest = LargestOfGroup(team, y);
      if (!works) continue;
      errors.misfits += largest < INFINITY ? 0 : 1;  // where all of a group is finite, so is what it becomes
      const uint8_t scale_byte = token < shape.nraw ? uint8_t{0} : VScaleByte(largest);
      StoreVColumn(shape, out, head, place, column, y, scale_byte, errors, clamps);
    }
  }
  return clamps;
}

/// The same by lanes that stand alone.
template <Team T, typename Source>
KVTIER_HD bool EncodeVByGroups(const T& team, const Source& source, const BlockShape& shape,
                               const PlaneSections<uint8_t>& out, uint32_t head, LaneErrors& errors) {
  const uint32_t dim = shape.v_dim, groups = VGroups(shape);
  bool clamps = false;
  for (uint32_t at = team.rank(); at < groups * PaddedTokens(shape); at += team.size()) {
    const uint32_t token = at / groups, group = at % groups, n = TileCodes(dim, group * kTileCodes);
    const VPlace place = {
        .token = token, .source_token = token < shape.tokens ? token : shape.tokens - 1u, .group = group};
    float y[kTileCodes];  // by columns
    float in_order[kTileCodes];
    for (uint32_t part = 0; part < n / kColumn; ++part) {
      const Column column(group * kColumnsPerTile + part, dim);
      LoadVColumn(source, shape, out, head, place, column, y + part * kColumn, errors);
      KVTIER_HD_UNROLLED
      for (uint32_t i = 0; i < kColumn; ++i)
        in_order[column.Run(i / kRun) - column.tile + i % kRun] = y[part * kColumn + i];
    }
    RotateGroups(in_order, n);
    const float largest = Largest(in_order, n);
    errors.misfits += largest < INFINITY ? 0 : 1;
    const uint8_t scale_byte = token < shape.nraw ? uint8_t{0} : VScaleByte(largest);
    for (uint32_t part = 0; part < n / kColumn; ++part) {
      const Column column(group * kColumnsPerTile + part, dim);
      KVTIER_HD_UNROLLED
      for (uint32_t i = 0; i < kColumn; ++i) y[i] = in_order[column.Run(i / kRun) - column.tile + i % kRun];
      StoreVColumn(shape, out, head, place, column, y, scale_byte, errors, clamps);
    }
  }
  return clamps;
}

/// Adds what the decoder is off by, of one rung: codes come as z = 2c + offset.
template <Team T>
KVTIER_HD double DecodedVError(const T& team, const Column& column, const float* x, const float* z,
                               float scale) {
  float turned[kColumn];
  KVTIER_HD_UNROLLED
  for (uint32_t i = 0; i < kColumn; ++i) turned[i] = z[i];
  HadamardOfColumns(team, column.part, turned);
  const bool is_rotated = column.quarter == kTileBytes;
  double sum = 0;
  KVTIER_HD_UNROLLED
  for (uint32_t i = 0; i < kColumn; ++i) {
    const float value = is_rotated ? turned[i] * (scale / 16) : z[i] * (scale / 2);
    const double off = x[i] - FromHalf(ToHalf(ClampToFp16(value)));
    sum += off * off;
  }
  return sum;
}

/// Errors of V where the grid does not tell them: those of the decoded values. Nothing is written.
template <Team T, typename Source>
KVTIER_HD void MeasureVByColumns(const T& team, const Source& source, const BlockShape& shape,
                                 LaneErrors& errors) {
  const uint32_t columns = VGroups(shape) * kColumnsPerTile;
  KVTIER_HD_ROLLED
  for (uint32_t first = 0; first < columns * shape.tokens; first += team.size()) {
    const uint32_t at = first + team.rank(), token = at / columns;
    const Column column(at % columns, shape.v_dim);
    const bool works = token < shape.tokens && kRun * column.part < column.quarter;
    float x[kColumn] = {}, y[kColumn];
    KVTIER_HD_UNROLLED
    for (uint32_t r = 0; works && r < 4; ++r) {
      const Four four = source.LoadV(token, column.Run(r));
      KVTIER_HD_UNROLLED
      for (uint32_t i = 0; i < kRun; ++i) x[r * kRun + i] = four.value[i];
    }
    KVTIER_HD_UNROLLED
    for (uint32_t i = 0; i < kColumn; ++i) y[i] = x[i];
    HadamardOfColumns(team, column.part, y);
    KVTIER_HD_UNROLLED
    for (uint32_t i = 0; i < kColumn; ++i) y[i] = column.quarter == kTileBytes ? y[i] * 0.125f : x[i];
    const uint8_t scale_byte = VScaleByte(LargestOfGroup(team, y));
    const float scale = VScale(scale_byte);
    float int4[kColumn], int2[kColumn];
    KVTIER_HD_UNROLLED
    for (uint32_t r = 0; r < 4; ++r) {
      float unused = 0, steps[kRun];
      KVTIER_HD_UNROLLED
      for (uint32_t i = 0; i < kRun; ++i) steps[i] = scale_byte != 0 ? y[r * kRun + i] * (1.0f / scale) : 0;
      const uint32_t codes = EncodeVRun(steps, &unused, &unused, &unused);
      KVTIER_HD_UNROLLED
      for (uint32_t i = 0; i < kRun; ++i) {
        const uint32_t code = codes >> 8 * i & 0xf;
        int4[r * kRun + i] = static_cast<float>(2 * code) + kVOffsetInt4;
        int2[r * kRun + i] = static_cast<float>(2 * (code & 0xc)) + kVOffsetInt2;
      }
    }
    double off_int4 = DecodedVError(team, column, x, int4, scale);
    double off_int2 = DecodedVError(team, column, x, int2, scale);
    if (!works) continue;
    if (token < shape.nraw) {
      off_int4 = 0;
      KVTIER_HD_UNROLLED
      for (uint32_t i = 0; i < kColumn; ++i) {
        const double off = x[i] - FromHalf(ToHalf(ClampToFp16(x[i])));
        off_int4 += off * off;
      }
      off_int2 = off_int4;
    }
    KVTIER_HD_UNROLLED
    for (uint32_t i = 0; i < kColumn; ++i) errors.square += double{x[i]} * x[i];
    errors.int4 += off_int4;
    errors.int2 += off_int2;
  }
}

/// The same by lanes that stand alone.
template <Team T, typename Source>
KVTIER_HD void MeasureVByGroups(const T& team, const Source& source, const BlockShape& shape,
                                LaneErrors& errors) {
  const uint32_t groups = VGroups(shape);
  for (uint32_t at = team.rank(); at < groups * shape.tokens; at += team.size()) {
    const uint32_t token = at / groups, first = at % groups * kTileCodes, n = TileCodes(shape.v_dim, first);
    float x[kTileCodes], steps[kTileCodes];
    uint8_t codes[kTileCodes];
    for (uint32_t i = 0; i < n; i += kRun) {
      const Four four = source.LoadV(token, first + i);
      for (uint32_t j = 0; j < kRun; ++j) x[i + j] = four.value[j];
    }
    RowErrorSum sum;
    if (token < shape.nraw) {
      for (uint32_t i = 0; i < n; ++i) steps[i] = x[i] - FromHalf(ToHalf(ClampToFp16(x[i])));
      sum.Add(x, steps, steps, n);
    } else {
      const uint8_t scale_byte = QuantizeVGroup(x, n, steps, codes);
      AddVGroupErrors(x, codes, n, scale_byte, sum);
    }
    const RowErrors row = sum.Sum();
    errors.square += row.square;
    errors.int4 += row.int4;
    errors.int2 += row.int2;
  }
}

}  // namespace kvtier::internal
