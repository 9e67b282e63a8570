#pragma once

#include <cmath>
#include <cstdint>

#include "kernels/batch_rows.h"
#include "kernels/batch_sections.h"
#include "kernels/batch_source.h"
#include "kernels/boost.h"
#include "kernels/host_device.h"
#include "kernels/quantize.h"
#include "kernels/team.h"

// K of one head into the plane family, for lanes that share it by columns. quantize.h is the specification.

namespace kvtier::internal {

/// What lanes find of their tokens' channels before they put it together: [slices][dim] twice.
inline constexpr uint32_t kPartialsMax = 1536;
/// Ranges of a head by channel (scale, minimum, inverse, low step), over the partials of the lower half.
struct KRangeArrays {
  float *scale, *minimum, *inverse, *low_step;

  KVTIER_HD KRangeArrays(float* partials, uint32_t dim)
      : scale(partials), minimum(partials + dim), inverse(partials + 2 * dim), low_step(partials + 3 * dim) {}
};

struct EncodeBatchScratch {
  /// Partial ranges; then the ranges of up to 256 channels, and behind them the low plane of K.
  float partials[2 * kPartialsMax];
  int64_t rows[kMaxTokens];
  BoostScratch boost;
  double sums[kWarpsMax * 4];

  KVTIER_HD uint8_t* LowPlane() { return reinterpret_cast<uint8_t*>(partials + 4 * kMaxHeadDim); }
};
static_assert(sizeof(float) * (2 * kPartialsMax - 4 * kMaxHeadDim) >= kMaxTokens * kMaxHeadDim / 4);
static_assert(sizeof(EncodeBatchScratch) <= kScratchBytesMax);
inline constexpr uint32_t kEncodeScratchBytes =
    (sizeof(EncodeBatchScratch) + kScratchAlign - 1) / kScratchAlign * kScratchAlign;

/// Sums that a lane makes of what it encodes.
struct LaneErrors {
  double square = 0, int4 = 0, int2 = 0;
  uint32_t misfits = 0;  ///< values that fp16 cannot hold

  KVTIER_HD void Add(float squares, float int4_off, float int2_off) {
    square += squares;
    int4 += int4_off;
    int2 += int2_off;
  }
};

/// Sums of a lane to those of the head, with how many lanes' values do not fit. Synchronized at both ends.
template <Team T>
KVTIER_HD RowErrors HeadErrors(const T& team, const LaneErrors& lane, double* scratch, double& misfits) {
  double sums[4] = {lane.square, lane.int4, lane.int2, static_cast<double>(lane.misfits)};
  TeamSum<4>(team, scratch, sums);
  misfits += sums[3];
  return {.square = sums[0], .int4 = sums[1], .int2 = sums[2]};
}

KVTIER_HD inline uint32_t FitsFp16(float value) {
  return value <= kFp16Max && value >= -kFp16Max ? 1 : 0;
}

/// Least and greatest of every channel: by lanes for their tokens, then over all of them, at index 0 of each
/// half of the partials. Starts synchronized. Returns how many channels of the lane have values that do not
/// fit fp16; raw rows and NaN are left out of it.
template <Team T, typename Source>
KVTIER_HD uint32_t KExtremes(const T& team, const Source& source, const BlockShape& shape, float* partials) {
  const uint32_t dim = shape.k_dim;
  const ColumnTasks tasks(team, dim / kColumn, kPartialsMax / dim);
  float *lows = partials, *highs = partials + kPartialsMax;
  for (uint32_t task = team.rank(); task < tasks.count(); task += team.size()) {
    const Column column(tasks.ColumnOf(task), dim);
    float low[kColumn], high[kColumn];
    KVTIER_HD_UNROLLED
    for (uint32_t i = 0; i < kColumn; ++i) {
      low[i] = INFINITY;
      high[i] = -INFINITY;
    }
    uint32_t token = tasks.SliceOf(task);
    while (token < shape.nraw) token += tasks.slices;
    KVTIER_HD_ROLLED
    for (; token < shape.tokens; token += tasks.slices) {
      KVTIER_HD_UNROLLED
      for (uint32_t r = 0; r < 4; ++r) {
        const Four x = source.LoadK(token, column.Run(r));
        KVTIER_HD_UNROLLED
        for (uint32_t i = 0; i < kRun; ++i) {
          low[r * kRun + i] = Smaller(x.value[i], low[r * kRun + i]);
          high[r * kRun + i] = Larger(x.value[i], high[r * kRun + i]);
        }
      }
    }
    KVTIER_HD_UNROLLED
    for (uint32_t r = 0; r < 4; ++r) {
      KVTIER_HD_UNROLLED
      for (uint32_t i = 0; i < kRun; ++i) {
        const uint32_t at = tasks.SliceOf(task) * dim + column.Run(r) + i;
        lows[at] = low[r * kRun + i];
        highs[at] = high[r * kRun + i];
      }
    }
  }
  team.sync();
  uint32_t misfits = 0;
  for (uint32_t c = team.rank(); c < dim; c += team.size()) {
    float low = lows[c], high = highs[c];
    for (uint32_t slice = 1; slice < tasks.slices; ++slice) {
      low = Smaller(lows[slice * dim + c], low);
      high = Larger(highs[slice * dim + c], high);
    }
    misfits += low <= high && FitsFp16(low) + FitsFp16(high) < 2 ? 1 : 0;
    // A channel's places in both halves are its lane's alone. No token: everything is zero.
    lows[c] = low > high ? 0.0f : low;
    highs[c] = low > high ? 0.0f : high;
  }
  return misfits;
}

/// The stored ranges of all channels, and which are boosted. Ends synchronized. Returns of how many channels
/// of the lane the grid does not tell the errors.
template <Team T>
KVTIER_HD uint32_t StoreKRanges(const T& team, const BlockShape& shape, const PlaneSections<uint8_t>& out,
                                uint32_t head, EncodeBatchScratch& scratch) {
  constexpr float kFineScale = 0x1p-12f;  // fp16 is coarse beside such a step
  const uint32_t dim = shape.k_dim;
  const KRangeArrays ranges(scratch.partials, dim);
  uint32_t coarse = 0;
  for (uint32_t c = team.rank(); c < dim; c += team.size()) {
    const KRange range = KRangeOf(scratch.partials[c], scratch.partials[kPartialsMax + c], 15.0f);
    const float scale = FromHalf(range.scale_bits);
    scratch.boost.scale[c] = range.scale_bits;
    ranges.scale[c] = scale;
    ranges.minimum[c] = FromHalf(range.minimum_bits);
    ranges.inverse[c] = range.scale_bits != 0 ? 1.0f / scale : 0.0f;
    const float end = fabsf(ranges.minimum[c]) + 15 * scale;
    coarse += end > kFp16Max || (scale > 0 && scale < kFineScale) ? 1 : 0;
    const uint64_t at = uint64_t{head} * dim + c;
    Store16(out.k_scale + 2 * at, range.scale_bits);
    Store16(out.k_min + 2 * at, range.minimum_bits);
  }
  team.sync();
  SelectBoost(team, shape, scratch.boost);
  for (uint32_t c = team.rank(); c < dim; c += team.size())
    ranges.low_step[c] = scratch.boost.is_boosted[c] ? 0.0f : ranges.scale[c];
  if (out.boost_ids != nullptr) {
    for (uint32_t i = team.rank(); i < shape.nb; i += team.size())
      out.boost_ids[uint64_t{head} * shape.nb + i] = scratch.boost.ids[i];  // NOLINT(clang-analyzer-*)
  }
  team.sync();
  return coarse;
}

/// One run of four channels in the registers of a lane: what encodes and measures it.
struct KRunRanges {
  float scale[kRun], minimum[kRun], inverse[kRun];
  float low_step[kRun];  ///< 0 where boosted

  KVTIER_HD void Load(const KRangeArrays& ranges, uint32_t channel) {
    KVTIER_HD_UNROLLED
    for (uint32_t i = 0; i < kRun; ++i) {
      scale[i] = ranges.scale[channel + i];
      minimum[i] = ranges.minimum[channel + i];
      inverse[i] = ranges.inverse[channel + i];
      low_step[i] = ranges.low_step[channel + i];
    }
  }
};

/// A value of K in steps, rounded: the code is in the last four places, where 1.5 * 2^23 has none.
inline constexpr float kKRounder = 12582912.0f;
KVTIER_HD inline float RoundedKSteps(float from_minimum, float inverse) {
  const float steps = Smaller(Larger(from_minimum * inverse, 0.0f), 15.0f);
  return steps + kKRounder;
}

/// Codes of four values, a byte each, as QuantizeKTile makes them; adds their errors on the grid, squared.
KVTIER_HD inline uint32_t EncodeKRun(const Four& four, const KRunRanges& ranges, float* square, float* int4,
                                     float* int2) {
  uint32_t bits[kRun];
  KVTIER_HD_UNROLLED
  for (uint32_t i = 0; i < kRun; ++i) {
    const float x = four.value[i], from_minimum = x - ranges.minimum[i];
    const float rounded = RoundedKSteps(from_minimum, ranges.inverse[i]);
    bits[i] = std::bit_cast<uint32_t>(rounded);
    const float low = rounded - std::bit_cast<float>(bits[i] & ~3u);
    const float off_int4 = SumFma(kKRounder - rounded, ranges.scale[i], from_minimum);
    const float off_int2 = SumFma(low - 1.5f, ranges.low_step[i], off_int4);
    *square = SumFma(x, x, *square);
    *int4 = SumFma(off_int4, off_int4, *int4);
    *int2 = SumFma(off_int2, off_int2, *int2);
  }
  return BytesOf(bits);
}

/// The errors of four decoded values.
KVTIER_HD inline void MeasureKRun(const Four& four, const KRunRanges& ranges, LaneErrors& errors) {
  KVTIER_HD_UNROLLED
  for (uint32_t i = 0; i < kRun; ++i) {
    const float x = four.value[i];
    const float rounded = RoundedKSteps(x - ranges.minimum[i], ranges.inverse[i]);
    const float high = std::bit_cast<float>(std::bit_cast<uint32_t>(rounded) & ~3u);
    const float code_int2 = (ranges.low_step[i] == 0.0f ? rounded : high) - kKRounder;
    const float exact = (rounded - kKRounder) * ranges.scale[i] + ranges.minimum[i];
    const float coarse = code_int2 * ranges.scale[i] + KMinimumInt2(ranges.low_step[i], ranges.minimum[i]);
    const double value = x;
    const double off_int4 = x - FromHalf(ToHalf(ClampToFp16(exact)));
    const double off_int2 = x - FromHalf(ToHalf(ClampToFp16(coarse)));
    errors.square += value * value;
    errors.int4 += off_int4 * off_int4;
    errors.int2 += off_int2 * off_int2;
  }
}

/// Adds what rounding a raw run to fp16 costs, and stores it.
KVTIER_HD inline void EncodeRawRun(const Four& four, uint8_t* target, LaneErrors& errors) {
  float square = 0, off_square = 0;
  uint64_t word = 0;
  KVTIER_HD_UNROLLED
  for (uint32_t i = 0; i < kRun; ++i) {
    const float x = four.value[i];
    const uint16_t half = ToHalf(ClampToFp16(x));
    word |= uint64_t{half} << 16 * i;
    const float off = x - FromHalf(half);
    square += x * x;
    off_square += off * off;
    errors.misfits += 1 - FitsFp16(x);
  }
  StoreWord(target, word);
  errors.Add(square, off_square, off_square);
}

/// The words of both planes of a column whose runs have these codes, a byte each: RunCodesOf backwards.
struct PackedRuns {
  uint32_t high, low;
};
KVTIER_HD inline PackedRuns PackRuns(const uint32_t (&codes)[4]) {
  constexpr uint32_t kUpper = 0xcccccccc;
  const uint32_t even = codes[0] | codes[2] << 4, odd = codes[1] | codes[3] << 4;
  return {.high = (even >> 2 & ~kUpper) | (odd & kUpper), .low = (even & ~kUpper) | (odd << 2 & kUpper)};
}

/// Planes of K, its raw rows, and the low plane in scratch. Starts synchronized.
template <Team T, typename Source>
KVTIER_HD void EncodeKPlanes(const T& team, const Source& source, const BlockShape& shape,
                             const PlaneSections<uint8_t>& out, uint32_t head, EncodeBatchScratch& scratch,
                             LaneErrors& errors) {
  const uint32_t dim = shape.k_dim;
  const KRangeArrays arrays(scratch.partials, dim);
  const ColumnTasks tasks(team, dim / kColumn, kMaxTokens);
  for (uint32_t task = team.rank(); task < tasks.count(); task += team.size()) {
    const Column column(tasks.ColumnOf(task), dim);
    KRunRanges ranges[4];
    KVTIER_HD_UNROLLED
    for (uint32_t r = 0; r < 4; ++r) ranges[r].Load(arrays, column.Run(r));
    KVTIER_HD_ROLLED
    for (uint32_t token = tasks.SliceOf(task); token < PaddedTokens(shape); token += tasks.slices) {
      const uint32_t source_token = token < shape.tokens ? token : shape.tokens - 1u;
      Four x[4];
      KVTIER_HD_UNROLLED
      for (uint32_t r = 0; r < 4; ++r) x[r] = source.LoadK(source_token, column.Run(r));
      uint32_t codes[4] = {};
      if (token < shape.nraw) {
        uint8_t* const raw = out.k_raw + 2 * (uint64_t{head} * shape.nraw + token) * dim;
        KVTIER_HD_UNROLLED
        for (uint32_t r = 0; r < 4; ++r) EncodeRawRun(x[r], raw + 2 * column.Run(r), errors);
      } else {
        float square = 0, int4 = 0, int2 = 0;
        KVTIER_HD_UNROLLED
        for (uint32_t r = 0; r < 4; ++r) codes[r] = EncodeKRun(x[r], ranges[r], &square, &int4, &int2);
        if (token < shape.tokens) errors.Add(square, int4, int2);
      }
      const uint64_t at = PlaneRow(shape, head, token) * (dim / 4) + column.PlaneByte();
      const PackedRuns words = PackRuns(codes);
      StoreWord(out.k_high + at, words.high);
      if (out.k_low != nullptr) StoreWord(out.k_low + at, words.low);
      if (out.boost_low != nullptr)
        StoreWord(scratch.LowPlane() + token * (dim / 4) + column.PlaneByte(), words.low);
    }
  }
}

/// Boosted channels' low bits out of the low plane of a head, [tokens][k_dim / 4].
template <Team T>
KVTIER_HD void PackBoost(const T& team, const BlockShape& shape, const uint8_t* low_plane, const uint8_t* ids,
                         uint8_t* boost_low) {
  const uint32_t row_bytes = shape.nb / 4;
  if (row_bytes == 0) return;
  const ColumnTasks tasks(team, row_bytes, kMaxTokens);  // a lane has a byte of a row
  for (uint32_t task = team.rank(); task < tasks.count(); task += team.size()) {
    const uint32_t byte = tasks.ColumnOf(task);
    const uint32_t tile = byte / kTileBytes * kTileCodes, quarter = TileCodes(shape.nb, tile) / 4;
    PlaneBits bits[4];
    KVTIER_HD_UNROLLED
    for (uint32_t k = 0; k < 4; ++k)
      bits[k] = PlaneBitsOf(ids[tile + byte % kTileBytes + k * quarter], shape.k_dim);
    KVTIER_HD_ROLLED
    for (uint32_t token = tasks.SliceOf(task); token < PaddedTokens(shape); token += tasks.slices) {
      const uint8_t* row = low_plane + token * (shape.k_dim / 4);
      uint32_t packed = 0;
      KVTIER_HD_UNROLLED
      for (uint32_t k = 0; k < 4; ++k) packed |= (row[bits[k].byte] >> bits[k].shift & 3u) << 2 * k;
      boost_low[token * row_bytes + byte] = static_cast<uint8_t>(packed);
    }
  }
}

/// The ranges of a head that StoreKRanges has stored, into scratch again. Ends synchronized.
template <Team T>
KVTIER_HD void LoadStoredKRanges(const T& team, const CodedLayer<uint8_t>& target, uint32_t head,
                                 EncodeBatchScratch& scratch) {
  const BlockShape& shape = target.shape;
  const PlaneSections<uint8_t> stored = PlaneSectionsOf(target);
  const KRangeArrays ranges(scratch.partials, shape.k_dim);
  for (uint32_t c = team.rank(); c < shape.k_dim; c += team.size()) {
    const uint64_t at = 2 * (uint64_t{head} * shape.k_dim + c);
    scratch.boost.scale[c] = Load16(stored.k_scale + at);
    ranges.scale[c] = FromHalf(scratch.boost.scale[c]);
    ranges.minimum[c] = FromHalf(Load16(stored.k_min + at));
    ranges.inverse[c] = scratch.boost.scale[c] != 0 ? 1.0f / ranges.scale[c] : 0.0f;
  }
  team.sync();
  SelectBoost(team, shape, scratch.boost);
  for (uint32_t c = team.rank(); c < shape.k_dim; c += team.size())
    ranges.low_step[c] = scratch.boost.is_boosted[c] ? 0.0f : ranges.scale[c];
  team.sync();
}

/// Errors of K where the grid does not tell them: those of the decoded values. Nothing is written.
template <Team T, typename Source>
KVTIER_HD void MeasureKExactly(const T& team, const Source& source, const BlockShape& shape,
                               EncodeBatchScratch& scratch, LaneErrors& errors) {
  const KRangeArrays arrays(scratch.partials, shape.k_dim);
  const uint32_t runs = shape.k_dim / kRun;
  for (uint32_t at = team.rank(); at < runs * shape.tokens; at += team.size()) {
    const uint32_t token = at / runs, channel = at % runs * kRun;
    const Four x = source.LoadK(token, channel);
    if (token < shape.nraw) {
      KVTIER_HD_UNROLLED
      for (uint32_t i = 0; i < kRun; ++i) {
        const double value = x.value[i], off = x.value[i] - FromHalf(ToHalf(ClampToFp16(x.value[i])));
        errors.square += value * value;
        errors.int4 += off * off;
        errors.int2 += off * off;
      }
    } else {
      KRunRanges ranges;
      ranges.Load(arrays, channel);
      MeasureKRun(x, ranges, errors);
    }
  }
}

}  // namespace kvtier::internal
