#pragma once

#include <cmath>
#include <cstdint>

#include "kernels/batch_encode_k.h"
#include "kernels/batch_encode_v.h"
#include "kernels/batch_rows.h"
#include "kernels/batch_sections.h"
#include "kernels/fp8.h"
#include "kernels/host_device.h"
#include "kernels/quantize_kv8.h"
#include "kernels/team.h"

// One head into kv8, for lanes that share it. quantize_kv8.h is the specification.

namespace kvtier::internal {

/// Errors of a value, in fp64: kv8 is exact enough that fp32 would not do.
KVTIER_HD inline void AddKv8Error(float x, float decoded, LaneErrors& errors) {
  const double value = x, off = x - decoded;
  errors.square += value * value;
  errors.int4 += off * off;
}

KVTIER_HD inline void EncodeKv8RawRun(const Four& x, uint8_t* target, LaneErrors& errors) {
  for (uint32_t i = 0; i < kRun; ++i) {
    const uint16_t half = ToHalf(ClampToFp16(x.value[i]));
    Store16(target + 2 * i, half);
    AddKv8Error(x.value[i], FromHalf(half), errors);
    errors.misfits += 1 - FitsFp16(x.value[i]);
  }
}

template <Team T>
KVTIER_HD void StoreKv8Ranges(const T& team, const BlockShape& shape, const Kv8Sections<uint8_t>& out,
                              uint32_t head, float* partials) {
  const KRangeArrays ranges(partials, shape.k_dim);
  for (uint32_t c = team.rank(); c < shape.k_dim; c += team.size()) {
    const KRange range = Kv8KRangeOf(partials[c], partials[kPartialsMax + c]);
    const float scale = FromHalf(range.scale_bits);
    ranges.scale[c] = scale;
    ranges.minimum[c] = FromHalf(range.minimum_bits);
    ranges.inverse[c] = range.scale_bits != 0 ? 1.0f / scale : 0.0f;
    const uint64_t at = uint64_t{head} * shape.k_dim + c;
    Store16(out.k_scale + 2 * at, range.scale_bits);
    Store16(out.k_min + 2 * at, range.minimum_bits);
  }
  team.sync();
}

/// A run of K: codes = clamp(rne((x - m) / s), 0, 255).
KVTIER_HD inline uint32_t EncodeKv8KRun(const Four& x, const KRangeArrays& ranges, uint32_t channel,
                                        LaneErrors& errors) {
  constexpr float kRounder = 12582912.0f;
  uint32_t codes = 0;
  for (uint32_t i = 0; i < kRun; ++i) {
    const float scale = ranges.scale[channel + i], minimum = ranges.minimum[channel + i];
    float steps = (x.value[i] - minimum) * ranges.inverse[channel + i];
    steps = steps > 0.0f ? steps : 0.0f;
    steps = steps < kKv8KSteps ? steps : kKv8KSteps;
    const float rounded = steps + kRounder;
    codes |= (std::bit_cast<uint32_t>(rounded) & 0xff) << 8 * i;
    AddKv8Error(x.value[i], ClampToFp16((rounded - kRounder) * scale + minimum), errors);
  }
  return codes;
}

template <Team T, typename Source>
KVTIER_HD void EncodeKv8K(const T& team, const Source& source, const BlockShape& shape,
                          const Kv8Sections<uint8_t>& out, uint32_t head, float* partials,
                          LaneErrors& errors) {
  const KRangeArrays ranges(partials, shape.k_dim);
  const uint32_t runs = shape.k_dim / kRun;
  KVTIER_HD_ROLLED
  for (uint32_t at = team.rank(); at < runs * shape.tokens; at += team.size()) {
    const uint32_t token = at / runs, channel = at % runs * kRun;
    const Four x = source.LoadK(token, channel);
    uint32_t codes = 0;
    if (token < shape.nraw) {
      const uint64_t raw_row = uint64_t{head} * shape.nraw + token;
      EncodeKv8RawRun(x, out.k_raw + 2 * (raw_row * shape.k_dim + channel), errors);
    } else {
      codes = EncodeKv8KRun(x, ranges, channel, errors);
    }
    StoreWord(out.k_codes + (uint64_t{head} * shape.tokens + token) * shape.k_dim + channel, codes);
  }
}

/// A lane takes whole rows, since they have one scale.
template <Team T, typename Source>
KVTIER_HD void EncodeKv8V(const T& team, const Source& source, const BlockShape& shape,
                          const Kv8Sections<uint8_t>& out, uint32_t head, LaneErrors& errors) {
  KVTIER_HD_ROLLED
  for (uint32_t token = team.rank(); token < shape.tokens; token += team.size()) {
    const uint64_t row = uint64_t{head} * shape.tokens + token;
    const bool is_raw = token < shape.nraw;
    float largest = 0;
    KVTIER_HD_ROLLED
    for (uint32_t c = 0; c < shape.v_dim; c += kRun) {
      const Four x = source.LoadV(token, c);
      for (uint32_t i = 0; i < kRun; ++i) errors.misfits += 1 - FitsFp16(x.value[i]);
      const float own = Largest(x.value, kRun);
      largest = own > largest ? own : largest;
    }
    const uint16_t scale_bits = is_raw ? uint16_t{0} : Fp16UpFromFp32(largest / kE4m3Max);
    const float scale = FromHalf(scale_bits);
    Store16(out.v_scale + 2 * row, scale_bits);
    KVTIER_HD_ROLLED
    for (uint32_t c = 0; c < shape.v_dim; c += kRun) {
      const Four x = source.LoadV(token, c);
      uint32_t codes = 0;
      if (is_raw) {
        const uint64_t raw_row = uint64_t{head} * shape.nraw + token;
        EncodeKv8RawRun(x, out.v_raw + 2 * (raw_row * shape.v_dim + c), errors);
      } else {
        for (uint32_t i = 0; i < kRun; ++i) {
          const uint8_t code = scale_bits != 0 ? E4m3FromFp32(x.value[i] / scale) : uint8_t{0};
          codes |= uint32_t{code} << 8 * i;
          AddKv8Error(x.value[i], ClampToFp16(Fp32FromE4m3(code) * scale), errors);
        }
      }
      StoreWord(out.v_codes + row * shape.v_dim + c, codes);
    }
  }
}

/// One head, as QuantizeKv8. Starts synchronized.
template <Team T, typename Source>
KVTIER_HD EncodedHead EncodeKv8Head(const T& team, const Source& source, const CodedLayer<uint8_t>& target,
                                    uint32_t head, EncodeBatchScratch& scratch) {
  const BlockShape& shape = target.shape;
  const Kv8Sections<uint8_t> out = Kv8SectionsOf(target);
  if (head == 0) ZeroKv8Padding(team, target);
  LaneErrors k, v;
  k.misfits = KExtremes(team, source, shape, scratch.partials);
  StoreKv8Ranges(team, shape, out, head, scratch.partials);
  EncodeKv8K(team, source, shape, out, head, scratch.partials, k);
  EncodeKv8V(team, source, shape, out, head, v);
  double misfits = 0;
  EncodedHead found;
  found.k = HeadErrors(team, k, scratch.sums, misfits);
  found.v = HeadErrors(team, v, scratch.sums, misfits);
  found.fits = misfits == 0 && found.k.square < INFINITY ? 1 : 0;  // of K, NaN shows in the sum
  return found;
}

}  // namespace kvtier::internal
