#pragma once

#include <cstdint>

#include "kernels/batch_encode_v.h"
#include "kernels/batch_numbers.h"
#include "kernels/batch_planes.h"
#include "kernels/batch_rows.h"
#include "kernels/batch_target.h"
#include "kernels/host_device.h"
#include "kernels/quantize_errors.h"
#include "kernels/target_rows.h"
#include "kernels/team.h"

// V of one head out of the plane family. dequantize.h is the specification.

namespace kvtier::internal {

/// H64 of a group's codes, in halves of z: elements 4 r + 2 p and the next one are pair[2 r + p] of the lane
/// that has this part of the group. Called by whole warps.
///
/// Sums of small integers are exact in any order, so four of the six stages are done on bytes, four elements
/// at a time: a stage doubles the range of 0..15 that codes have, and 240 is where four of them end. What a
/// stage subtracts is biased, so that no byte borrows from the next. The others are done on pairs of fp16.
template <Team T>
KVTIER_HD void TurnVCodes(const T& team, uint32_t part, const RunCodes& codes, bool has_low, uint32_t* pair) {
  constexpr uint32_t k15 = 0x0f0f0f0f, k30 = 0x1e1e1e1e;
  const uint32_t* c = codes.of;
  // Distances 16 and 32, between runs. Codes count from 7.5: sums and differences of two have 0 at 15.
  const uint32_t a0 = c[0] + c[1], a1 = c[0] + k15 - c[1], a2 = c[2] + c[3], a3 = c[2] + k15 - c[3];
  uint32_t bytes[4] = {a0 + a2, a1 + a3, a0 + k30 - a2, a1 + k30 - a3};  // 0 at 30
  // Distances 4 and 8, between lanes: the upper of two subtracts what it has, as 63 - x and 127 - x.
  const uint32_t flip4 = (part & 1) != 0 ? 0x3f3f3f3f : 0, flip8 = (part & 2) != 0 ? 0x7f7f7f7f : 0;
  KVTIER_HD_UNROLLED
  for (uint32_t r = 0; r < 4; ++r) bytes[r] = team.shfl_xor(bytes[r], 1) + (bytes[r] ^ flip4);
  KVTIER_HD_UNROLLED
  for (uint32_t r = 0; r < 4; ++r) bytes[r] = team.shfl_xor(bytes[r], 2) + (bytes[r] ^ flip8);
  const uint32_t zero4 = (part & 1) != 0 ? 63 : 60, zero = (part & 2) != 0 ? 127 : 2 * zero4;
  // Codes of INT2 are 0, 4, 8, 12 and count from 6: 1.5 more each, which only the first element sees.
  const uint32_t first_zero = zero - (part == 0 && !has_low ? 24 : 0);
  KVTIER_HD_UNROLLED
  for (uint32_t r = 0; r < 4; ++r) {
    const uint32_t bias = (0x6400 + (r == 0 ? first_zero : zero)) * 0x10001u;  // fp16 of 1024 + zero
    const uint32_t x01 = HalvesSub(HalvesOfBytes(bytes[r], 0), bias);
    const uint32_t x23 = HalvesSub(HalvesOfBytes(bytes[r], 2), bias);
    // Distance 2, then 1: (x + y, x - y) of a pair (x, y).
    constexpr uint32_t kPlusMinus = 0xbc003c00;
    const uint32_t sum = HalvesAdd(x01, x23), difference = HalvesSub(x01, x23);
    pair[2 * r] = HalvesFma(sum, kPlusMinus, Swapped(sum));
    pair[2 * r + 1] = HalvesFma(difference, kPlusMinus, Swapped(difference));
  }
}

/// A column of a turned group: z / 2 of its 16 elements times s / 8.
template <Stored stored>
KVTIER_HD void StoreTurned(const RowTarget<stored>& target, uint32_t token, const Column& column,
                           uint8_t scale_byte, const uint32_t* pair) {
  const float scale = VScale(scale_byte) * 0.125f;  // three bits of mantissa: an fp16
  std::byte* const to = target.VRow(token);
  if constexpr (stored == Stored::kHalves) {
    const uint32_t scales = ToHalf(scale) * 0x10001u;
    uint32_t value[kColumn / 2];
    // What is added makes +0 of -0. Products have 14 bits, so this rounds as fp32 and then fp16 do.
    KVTIER_HD_UNROLLED
    for (uint32_t i = 0; i < kColumn / 2; ++i) value[i] = HalvesFma(pair[i], scales, 0);
    if (scale_byte >= kVScaleClamps) {
      KVTIER_HD_UNROLLED
      for (uint32_t i = 0; i < kColumn / 2; ++i) value[i] = HalvesClamp(value[i]);
    }
    KVTIER_HD_UNROLLED
    for (uint32_t r = 0; r < 4; ++r) target.StoreHalves(to, column.Run(r), value[2 * r], value[2 * r + 1]);
  } else {
    KVTIER_HD_UNROLLED
    for (uint32_t r = 0; r < 4; ++r) {
      Four four;
      KVTIER_HD_UNROLLED
      for (uint32_t i = 0; i < kRun; ++i) {
        const uint32_t word = pair[2 * r + i / 2];
        four.value[i] = FromHalf(i % 2 == 0 ? FirstOf(word) : SecondOf(word)) * scale + 0.0f;
      }
      target.StoreV(to, column.Run(r), ClampRun(four));
    }
  }
}

/// A column of a row whose codes are what is stored: smaller groups, and V that is left rotated.
template <Stored stored>
KVTIER_HD void StoreUnturned(const RowTarget<stored>& target, uint32_t token, const Column& column,
                             uint8_t scale_byte, const PlaneWords& words, bool has_low) {
  float z[kColumn];
  VGridOf(words, has_low, z);
  const float scale = VScale(scale_byte) * 0.5f;
  KVTIER_HD_UNROLLED
  for (uint32_t i = 0; i < kColumn; ++i) z[i] = scale_byte != 0 ? z[i] * scale : 0.0f;
  KVTIER_HD_UNROLLED
  for (uint32_t r = 0; r < 4; ++r)
    target.StoreV(target.VRow(token), column.Run(r), ClampRun(FourOf(z + r * kRun)));
}

/// Raw rows of V, rotated where that is asked for. By whole warps.
template <Stored stored, Team T>
KVTIER_HD void DecodeRawV(const T& team, const BlockShape& shape, const uint8_t* v_raw, uint32_t head,
                          const RowTarget<stored>& target) {
  const uint32_t dim = shape.v_dim, columns = VGroups(shape) * kColumnsPerTile;
  const uint32_t rows = shape.nraw < shape.tokens ? shape.nraw : shape.tokens;
  KVTIER_HD_ROLLED
  for (uint32_t first = 0; first < columns * rows; first += team.size()) {
    const uint32_t at = first + team.rank(), token = at / columns;
    const Column column(at % columns, dim);
    const bool works = token < rows && kRun * column.part < column.quarter;
    const bool turns = column.quarter == kTileBytes && target.view.v_form == VForm::kRotated;
    const uint8_t* raw = v_raw + 2 * (uint64_t{head} * shape.nraw + token) * dim;
    float values[kColumn] = {}, turned[kColumn];
    KVTIER_HD_UNROLLED
    for (uint32_t r = 0; r < 4; ++r) {
      if (!works) break;
      const Four four = LoadHalves(raw + 2 * column.Run(r));
      KVTIER_HD_UNROLLED
      for (uint32_t i = 0; i < kRun; ++i) values[r * kRun + i] = four.value[i];
    }
    KVTIER_HD_UNROLLED
    for (uint32_t i = 0; i < kColumn; ++i) turned[i] = values[i];
    HadamardOfColumns(team, column.part, turned);
    KVTIER_HD_UNROLLED
    for (uint32_t i = 0; i < kColumn; ++i) values[i] = turns ? turned[i] * 0.125f : values[i];
    KVTIER_HD_UNROLLED
    for (uint32_t r = 0; r < 4; ++r) {
      if (works) target.StoreV(target.VRow(token), column.Run(r), ClampRun(FourOf(values + r * kRun)));
    }
  }
}

/// V of a head by lanes of warps.
template <Stored stored, Team T>
KVTIER_HD void DecodeVByColumns(const T& team, const BlockShape& shape,
                                const PlaneSections<const uint8_t>& in, uint32_t head,
                                const RowTarget<stored>& target) {
  DecodeRawV(team, shape, in.v_raw, head, target);
  const uint32_t dim = shape.v_dim, groups = VGroups(shape);
  const ColumnTasks tasks(team, groups * kColumnsPerTile, kMaxTokens);
  const uint32_t rounds = (shape.tokens + tasks.slices - 1) / tasks.slices;
  const bool is_plain = target.view.v_form == VForm::kPlain, has_low = in.v_low != nullptr;
  for (uint32_t first = 0; first < tasks.count(); first += team.size()) {
    const uint32_t task = first + team.rank();
    const Column column(tasks.ColumnOf(task), dim);
    const bool has_work = task < tasks.count() && kRun * column.part < column.quarter;
    uint32_t token = tasks.SliceOf(task);
    const uint64_t first_row = PlaneRow(shape, head, token);
    PlaneReader reader(in.v_high, in.v_low, first_row, dim / 4, column, tasks.slices);
    const uint8_t* scale = in.v_scale + first_row * groups + tasks.ColumnOf(task) / kColumnsPerTile;
    PlaneWords next = {};
    uint8_t next_scale = 0;
    if (has_work && token < shape.tokens) {
      next = reader.Next();
      next_scale = *scale;
    }
    // Lanes without work go along: the others exchange values with them.
    KVTIER_HD_ROLLED
    for (uint32_t round = 0; round < rounds; ++round, token += tasks.slices) {
      const PlaneWords words = next;
      const uint8_t scale_byte = next_scale;
      scale += tasks.slices * groups;
      if (has_work && token + tasks.slices < shape.tokens) {
        next = reader.Next();
        next_scale = *scale;
      }
      uint32_t pair[kColumn / 2];
      if (is_plain) TurnVCodes(team, column.part, RunCodesOf(words.high, words.low), has_low, pair);
      if (!has_work || token < shape.nraw || token >= shape.tokens) continue;
      if (is_plain && column.quarter == kTileBytes) {
        StoreTurned(target, token, column, scale_byte, pair);
      } else {
        StoreUnturned(target, token, column, scale_byte, words, has_low);
      }
    }
  }
}

/// The same by lanes that stand alone.
template <Stored stored, Team T>
KVTIER_HD void DecodeVByGroups(const T& team, const BlockShape& shape, const PlaneSections<const uint8_t>& in,
                               uint32_t head, const RowTarget<stored>& target) {
  const uint32_t dim = shape.v_dim, groups = VGroups(shape);
  const int32_t offset = in.v_low != nullptr ? kVOffsetInt4 : kVOffsetInt2;
  for (uint32_t at = team.rank(); at < groups * shape.tokens; at += team.size()) {
    const uint32_t token = at / groups, group = at % groups, first = group * kTileCodes;
    if (token < shape.nraw) {
      const uint8_t* raw = in.v_raw + 2 * (uint64_t{head} * shape.nraw + token) * dim;
      if (group == 0) StoreRawVRow(raw, dim, target.view, target.v + target.rows[token]);
      continue;
    }
    const uint32_t n = TileCodes(dim, first);
    const uint64_t row = PlaneRow(shape, head, token), plane_byte = row * (dim / 4) + first / 4;
    uint8_t codes[kTileCodes] = {};
    UnpackTile<kHighShift>(in.v_high + plane_byte, n, codes);
    if (in.v_low != nullptr) UnpackTile<kLowShift>(in.v_low + plane_byte, n, codes);
    float values[kTileCodes];
    DequantizeVGroup(codes, n, offset, in.v_scale[row * groups + group], target.view.v_form, values);
    for (uint32_t i = 0; i < n; i += kRun)
      target.StoreV(target.VRow(token), first + i, ClampRun(FourOf(values + i)));
  }
}

}  // namespace kvtier::internal
