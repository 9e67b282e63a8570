#include "kernels/simd/kv8_simd.h"

// clang-format off
#include "kernels/simd/targets.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/simd/kv8_simd.cc"
#include <hwy/foreach_target.h>
// clang-format on

#include <hwy/cache_control.h>
#include <hwy/highway.h>

#include "kernels/team.h"
#if HWY_TARGET != HWY_SCALAR && HWY_TARGET != HWY_EMU128
#include "kernels/simd/kv8_decode-inl.h"
#include "kernels/simd/kv8_encode-inl.h"
#endif

HWY_BEFORE_NAMESPACE();
namespace kvtier::HWY_NAMESPACE {
#if HWY_TARGET != HWY_SCALAR && HWY_TARGET != HWY_EMU128

/// Whether squares were all within the range of fp32; else the portable body measures the errors.
inline bool Trusts(const Kv8RowErrors& sum) {
  return sum.square >= 0x1p-60;
}

/// Encodes one head; returns false where the errors must be measured again.
template <DType dtype, class Source>
bool EncodeKv8Head(const QuantizeKv8Args& args, uint32_t head, KScratch& scratch) {
  const BlockShape& s = args.source.shape;
  const size_t first_row = size_t{head} * s.tokens;
  const KHead k = {.source = args.source.K(head, s.nraw),
                   .rows = uint32_t{s.tokens} - s.nraw,
                   .dim = s.k_dim,
                   .high = args.out.k_codes + (first_row + s.nraw) * s.k_dim,
                   .low = nullptr,
                   .next = args.source.V(head, s.nraw)};
  Kv8RowErrors* k_errors = args.k_errors + first_row;
  Kv8RowErrors* v_errors = args.v_errors + first_row;
  for (uint32_t token = 0; token < s.tokens; ++token) k_errors[token] = v_errors[token] = {};
  for (uint32_t token = 0; token < s.nraw; ++token) {
    const size_t raw_row = size_t{head} * s.nraw + token;
    k_errors[token] = internal::StoreKv8RawRow(args.source.K(head, token), dtype, 1, s.k_dim,
                                               args.out.k_raw + 2 * raw_row * s.k_dim,
                                               args.out.k_codes + (first_row + token) * s.k_dim);
    v_errors[token] = internal::StoreKv8RawRow(args.source.V(head, token), dtype, 1, s.v_dim,
                                               args.out.v_raw + 2 * raw_row * s.v_dim,
                                               args.out.v_codes + (first_row + token) * s.v_dim);
    Store16(args.out.v_scale + 2 * (first_row + token), 0);
  }
  FindRanges(k, scratch);
  const size_t channels = 2 * size_t{head} * s.k_dim;
  FinishRanges<Source>(s.k_dim, internal::kKv8KSteps, args.out.k_scale + channels, args.out.k_min + channels,
                       scratch);
  bool clamps = false;
  for (const bool tile_clamps : scratch.clamps) clamps |= tile_clamps;
  k_errors[s.nraw] =
      clamps ? QuantizeKv8K<Source, true>(k, scratch.ranges) : QuantizeKv8K<Source, false>(k, scratch.ranges);
  Kv8ErrorVectors sums;
  const std::byte* next_k =
      head + 1u < s.kv_heads ? args.source.K(head + 1, s.nraw) : args.source.raw + RawLayerBytes(s);
  for (uint32_t token = s.nraw; token < s.tokens; ++token) {
    const size_t row = first_row + token;
    const uint16_t scale =
        QuantizeKv8V<Source>(args.source.V(head, token), s.v_dim, args.out.v_codes + row * s.v_dim, sums);
    Store16(args.out.v_scale + 2 * row, scale);
  }
  v_errors[s.nraw] = sums.Sum();
  return Trusts(k_errors[s.nraw]) && Trusts(v_errors[s.nraw]);
}

template <DType dtype, class Source>
bool EncodeKv8(const QuantizeKv8Args& args) {
  const BlockShape& shape = args.source.shape;
  if (shape.dtype != dtype || shape.tokens <= shape.nraw) return false;
  KScratch scratch;
  for (float& step : scratch.ranges.low_step) step = 0;
  for (uint32_t head = 0; head < shape.kv_heads; ++head)
    if (!EncodeKv8Head<dtype, Source>(args, head, scratch)) return false;
  return true;
}

void DecodeKv8Head(const DequantizeKv8Args& args, uint32_t head, Kv8Scratch& scratch) {
  const BlockShape& s = args.shape;
  const FloatTag df;
  for (uint32_t c = 0; c < s.k_dim; c += kFloats) {
    const size_t at = 2 * (size_t{head} * s.k_dim + c);
    hn::StoreU(Fp16Source::Load(args.in.k_scale + at), df, scratch.scale + c);
    hn::StoreU(Fp16Source::Load(args.in.k_min + at), df, scratch.minimum + c);
  }
  for (uint32_t token = 0; token < s.tokens; ++token) {
    const size_t row = size_t{head} * s.tokens + token, raw_row = size_t{head} * s.nraw + token;
    const int64_t target = args.out.Row(head, token);
    if (token < s.nraw) {
      internal::StoreRawChannels(args.in.k_raw + 2 * raw_row * s.k_dim, s.k_dim, args.out, 1,
                                 args.out.k + target);
      continue;
    }
    const KRow k = {
        .codes = args.in.k_codes + row * s.k_dim, .scale = scratch.scale, .minimum = scratch.minimum};
    StoreRow(k, s.k_dim, args.out.dtype, args.out.k + target, args.out.stores);
  }
  for (uint32_t token = 0; token < s.tokens; ++token) {
    const size_t row = size_t{head} * s.tokens + token, raw_row = size_t{head} * s.nraw + token;
    const int64_t target = args.out.Row(head, token);
    if (token < s.nraw) {
      internal::StoreRawVRow(args.in.v_raw + 2 * raw_row * s.v_dim, s.v_dim, args.out, args.out.v + target);
    } else if (args.out.v_form == VForm::kRotated) {
      internal::DequantizeKv8VRow(args, head, token);
    } else {
      const VRow v = {.codes = args.in.v_codes + row * s.v_dim,
                      .scale = Fp32FromFp16(Load16(args.in.v_scale + 2 * row))};
      StoreRow(v, s.v_dim, args.out.dtype, args.out.v + target, args.out.stores);
    }
  }
}

#endif

void QuantizeKv8Layer(const QuantizeKv8Args& args) {
#if HWY_TARGET != HWY_SCALAR && HWY_TARGET != HWY_EMU128
  if (EncodeKv8<DType::kFp16, Fp16Source>(args) || EncodeKv8<DType::kBf16, Bf16Source>(args)) return;
#endif
  LaunchSerial(Kv8Launch(args.source.shape), [&](const SerialTeam& team) { QuantizeKv8(team, args); });
}

void DequantizeKv8Layer(const DequantizeKv8Args& args) {
#if HWY_TARGET != HWY_SCALAR && HWY_TARGET != HWY_EMU128
  if (!IsFp8(args.out.dtype) && args.out.channel_stride == DTypeBytes(args.out.dtype)) {
    Kv8Scratch scratch;
    for (uint32_t head = 0; head < args.shape.kv_heads; ++head) DecodeKv8Head(args, head, scratch);
    if (args.out.stores == Stores::kStreaming) hwy::FlushStream();
    return;
  }
#endif
  LaunchSerial(Kv8Launch(args.shape), [&](const SerialTeam& team) { DequantizeKv8(team, args); });
}

}  // namespace kvtier::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kvtier {

HWY_EXPORT(QuantizeKv8Layer);
HWY_EXPORT(DequantizeKv8Layer);

void QuantizeKv8Simd(const QuantizeKv8Args& args) {
  HWY_DYNAMIC_DISPATCH(QuantizeKv8Layer)(args);
}

void DequantizeKv8Simd(const DequantizeKv8Args& args) {
  HWY_DYNAMIC_DISPATCH(DequantizeKv8Layer)(args);
}

}  // namespace kvtier
#endif
