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
/// half of the partials. Starts and ends synchronized. Returns how many values do not fit fp16.
template <Team T, typename Source>
KVTIER_HD uint32_t KExtremes(const T& team, const Source& source, const BlockShape& shape, float* partials) {
  const uint32_t dim = shape.k_dim;
  const ColumnTasks tasks(team, dim / kColumn, kPartialsMax / dim);
  float *lows = partials, *highs = partials + kPartialsMax;
  uint32_t misfits = 0;
  for (uint32_t task = team.rank(); task < tasks.count(); task += team.size()) {
    const Column column(tasks.ColumnOf(task), dim);
    float low[kColumn], high[kColumn];
    KVTIER_HD_UNROLLED
    for (uint32_t i = 0; i < kColumn; ++i) {
      low[i] = INFINITY;
      high[i] = -INFINITY;
    }
    KVTIER_HD_ROLLED
    for (uint32_t token = tasks.SliceOf(task); token < shape.tokens; token += tasks.slices) {
      KVTIER_HD_UNROLLED
      for (uint32_t r = 0; r < 4; ++r) {
        const Four x = source.LoadK(token, column.Run(r));
        KVTIER_HD_UNROLLED
        for (uint32_t i = 0; i < kRun; ++i) {
          misfits += 1 - FitsFp16(x.value[i]);
          if (token < shape.nraw) continue;
          float &least = low[r * kRun + i], &greatest = high[r * kRun + i];
          least = x.value[i] < least ? x.value[i] : least;
          greatest = x.value[i] > greatest ? x.value[i] : greatest;
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
  for (uint32_t c = team.rank(); c < dim; c += team.size()) {
    float low = lows[c], high = highs[c];
    for (uint32_t slice = 1; slice < tasks.slices; ++slice) {
      const float other_low = lows[slice * dim + c], other_high = highs[slice * dim + c];
      low = other_low < low ? other_low : low;
      high = other_high > high ? other_high : high;
    }
    // A channel's places in both halves are its lane's alone. No token: everything is zero.
    lows[c] = low > high ? 0.0f : low;
    highs[c] = low > high ? 0.0f : high;
  }
  return misfits;
}

/// The stored ranges of all channels, and which are boosted. Ends synchronized.
template <Team T>
KVTIER_HD void StoreKRanges(const T& team, const BlockShape& shape, const PlaneSections<uint8_t>& out,
                            uint32_t head, EncodeBatchScratch& scratch) {
  const uint32_t dim = shape.k_dim;
  const KRangeArrays ranges(scratch.partials, dim);
  for (uint32_t c = team.rank(); c < dim; c += team.size()) {
    const KRange range = KRangeOf(scratch.partials[c], scratch.partials[kPartialsMax + c], 15.0f);
    const float scale = FromHalf(range.scale_bits);
    scratch.boost.scale[c] = range.scale_bits;
    ranges.scale[c] = scale;
    ranges.minimum[c] = FromHalf(range.minimum_bits);
    ranges.inverse[c] = range.scale_bits != 0 ? 1.0f / scale : 0.0f;
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
}

/// One run of four channels in the registers of a lane: what encodes and measures it.
struct KRunRanges {
  float scale[kRun], minimum[kRun], inverse[kRun];
  uint32_t boosted = 0;  ///< bit i: channel i

  KVTIER_HD void Load(const KRangeArrays& ranges, uint32_t channel) {
    KVTIER_HD_UNROLLED
    for (uint32_t i = 0; i < kRun; ++i) {
      scale[i] = ranges.scale[channel + i];
      minimum[i] = ranges.minimum[channel + i];
      inverse[i] = ranges.inverse[channel + i];
      boosted |= (ranges.low_step[channel + i] == 0.0f ? 1u : 0u) << i;
    }
  }
};

/// Codes of four values, a byte each, as QuantizeKTile makes them; adds their errors, squared, to `off`.
template <typename Real>
KVTIER_HD uint32_t EncodeKRun(const Four& four, const KRunRanges& ranges, Real* square, Real* int4,
                              Real* int2) {
  constexpr float kRounder = 12582912.0f;
  uint32_t codes = 0;
  KVTIER_HD_UNROLLED
  for (uint32_t i = 0; i < kRun; ++i) {
    const float x = four.value[i];
    float steps = (x - ranges.minimum[i]) * ranges.inverse[i];
    steps = steps > 0.0f ? steps : 0.0f;
    steps = steps < 15.0f ? steps : 15.0f;
    const float rounded = steps + kRounder;
    const uint32_t code = std::bit_cast<uint32_t>(rounded) & 0xf;  // the last places of the sum
    codes |= code << 8 * i;
    const float high = std::bit_cast<float>((std::bit_cast<uint32_t>(rounded) & ~3u)) - kRounder;
    const bool is_boosted = (ranges.boosted >> i & 1) != 0;
    const float low_step = is_boosted ? 0.0f : ranges.scale[i];
    const float exact = (rounded - kRounder) * ranges.scale[i] + ranges.minimum[i];
    const float coarse = (is_boosted ? rounded - kRounder : high) * ranges.scale[i] +
                         KMinimumInt2(low_step, ranges.minimum[i]);
    const Real value = x;
    const Real off_int4 = x - FromHalf(ToHalf(ClampToFp16(exact)));
    const Real off_int2 = x - FromHalf(ToHalf(ClampToFp16(coarse)));
    *square += value * value;
    *int4 += off_int4 * off_int4;
    *int2 += off_int2 * off_int2;
  }
  return codes;
}

/// Adds what rounding a raw run to fp16 costs, and stores it.
KVTIER_HD inline void EncodeRawRun(const Four& four, uint8_t* target, float* square, float* off_square) {
  KVTIER_HD_UNROLLED
  for (uint32_t i = 0; i < kRun; ++i) {
    const float x = four.value[i];
    const uint16_t half = ToHalf(x);
    Store16(target + 2 * i, half);
    const float off = x - FromHalf(half);
    *square += x * x;
    *off_square += off * off;
  }
}

/// Bits `shift` and `shift` + 1 of the codes of four runs as a word of a plane.
KVTIER_HD inline uint32_t PlaneWord(const uint32_t* codes, uint32_t shift) {
  uint32_t word = 0;
  KVTIER_HD_UNROLLED
  for (uint32_t r = 0; r < 4; ++r) word |= (codes[r] >> shift & 0x03030303) << 2 * r;
  return word;
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
      float square = 0, int4 = 0, int2 = 0;
      uint32_t codes[4];
      KVTIER_HD_UNROLLED
      for (uint32_t r = 0; r < 4; ++r) {
        const Four x = source.LoadK(source_token, column.Run(r));
        if (token < shape.nraw) {
          codes[r] = 0;
          EncodeRawRun(x, out.k_raw + 2 * ((uint64_t{head} * shape.nraw + token) * dim + column.Run(r)),
                       &square, &int4);
          int2 = int4;
        } else {
          codes[r] = EncodeKRun(x, ranges[r], &square, &int4, &int2);
        }
      }
      if (token < shape.tokens) errors.Add(square, int4, int2);
      const uint64_t at = PlaneRow(shape, head, token) * (dim / 4) + column.PlaneByte();
      const uint32_t low = PlaneWord(codes, kLowShift);
      StoreWord(out.k_high + at, PlaneWord(codes, kHighShift));
      if (out.k_low != nullptr) StoreWord(out.k_low + at, low);
      if (out.boost_low != nullptr)
        StoreWord(scratch.LowPlane() + token * (dim / 4) + column.PlaneByte(), low);
    }
  }
}

/// Boosted channels' low bits out of the low plane of a head, [tokens][k_dim / 4].
template <Team T>
KVTIER_HD void PackBoost(const T& team, const BlockShape& shape, const uint8_t* low_plane, const uint8_t* ids,
                         uint8_t* boost_low) {
  const uint32_t row_bytes = shape.nb / 4;
  for (uint32_t at = team.rank(); at < PaddedTokens(shape) * row_bytes; at += team.size()) {
    const uint32_t token = at / row_bytes, byte = at % row_bytes;
    const uint32_t tile = byte / kTileBytes * kTileCodes, quarter = TileCodes(shape.nb, tile) / 4;
    const uint8_t* row = low_plane + token * (shape.k_dim / 4);
    uint32_t packed = 0;
    for (uint32_t k = 0; k < 4; ++k) {
      const PlaneBits bits = PlaneBitsOf(ids[tile + byte % kTileBytes + k * quarter], shape.k_dim);
      packed |= (row[bits.byte] >> bits.shift & 3u) << 2 * k;
    }
    boost_low[at] = static_cast<uint8_t>(packed);
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

/// Errors of K where fp32 squares do not hold them: as EncodeKPlanes, in fp64, and nothing is written.
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
      EncodeKRun(x, ranges, &errors.square, &errors.int4, &errors.int2);
    }
  }
}

}  // namespace kvtier::internal
