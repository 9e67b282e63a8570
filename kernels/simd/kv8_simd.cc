#include "kernels/simd/kv8_simd.h"

// clang-format off
#include "kernels/simd/targets.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/simd/kv8_simd.cc"
#include <hwy/foreach_target.h>
// clang-format on

#include <hwy/cache_control.h>
#include <hwy/highway.h>

#include <memory>
#include <vector>

#include "kernels/simd/convert_simd.h"
#include "kernels/simd/kv8_decode-inl.h"
#include "kernels/simd/kv8_encode-inl.h"
#include "kernels/simd/kv8_encode_v-inl.h"
#include "kernels/team.h"

#ifndef KVTIER_KERNELS_SIMD_QUANTIZE_KV8_PORTABLY
#define KVTIER_KERNELS_SIMD_QUANTIZE_KV8_PORTABLY
namespace kvtier {

static inline void Add(const Kv8RowErrors& errors, Kv8RowErrors& sum) {
  sum.square += errors.square;
  sum.error += errors.error;
}
static Kv8LayerErrors QuantizeKv8Portably(const QuantizeKv8Args& args);

}  // namespace kvtier
#endif

HWY_BEFORE_NAMESPACE();
namespace kvtier::HWY_NAMESPACE {
#if HWY_TARGET != HWY_SCALAR

/// A layer in elements of 16 bits, and how they are read.
template <class Source>
struct Kv8Source {
  SourceRows rows;
  Source k, v;
};

/// Encodes one head and adds its errors.
template <class Source>
void EncodeKv8Head(const QuantizeKv8Args& args, const Kv8Source<Source>& source, uint32_t head,
                   KScratch& scratch, Kv8LayerErrors& errors) {
  const SourceRows& rows_in = source.rows;
  const BlockShape& s = args.source.shape;
  const size_t first_row = size_t{head} * s.tokens, channels = 2 * size_t{head} * s.k_dim;
  const uint32_t rows = uint32_t{s.tokens} - s.nraw;
  for (uint32_t token = 0; token < s.nraw; ++token) {
    const size_t row = first_row + token, raw_row = size_t{head} * s.nraw + token;
    Add(internal::StoreKv8RawRow(args.source.K(head, token), s.dtype, args.source.scales.k, s.k_dim,
                                 args.out.k_raw + 2 * raw_row * s.k_dim, args.out.k_codes + row * s.k_dim),
        errors.k);
    Add(internal::StoreKv8RawRow(args.source.V(head, token), s.dtype, args.source.scales.v, s.v_dim,
                                 args.out.v_raw + 2 * raw_row * s.v_dim, args.out.v_codes + row * s.v_dim),
        errors.v);
    Store16(args.out.v_scale + 2 * row, 0);
  }
  const KHead k = {.source = rows_in.K(head, s.nraw),
                   .rows = rows,
                   .dim = s.k_dim,
                   .high = args.out.k_codes + (first_row + s.nraw) * s.k_dim,
                   .low = nullptr,
                   .next = rows_in.V(head, s.nraw)};
  FindRanges(k, scratch);
  FinishRanges(source.k, s.k_dim, internal::kKv8KSteps, args.out.k_scale + channels,
               args.out.k_min + channels, scratch);
  bool clamps = false;
  for (const bool tile_clamps : scratch.clamps) clamps |= tile_clamps;
  Add(clamps ? QuantizeKv8K<Source, true>(source.k, k, scratch.ranges)
             : QuantizeKv8K<Source, false>(source.k, k, scratch.ranges),
      errors.k);
  const bool is_last = head + 1u == s.kv_heads;
  const Kv8VHead v = {
      .source = rows_in.V(head, s.nraw),
      .rows = rows,
      .dim = s.v_dim,
      .scale = args.out.v_scale + 2 * (first_row + s.nraw),
      .codes = args.out.v_codes + (first_row + s.nraw) * s.v_dim,
      .next = is_last ? rows_in.raw + RawLayerBytes(rows_in.shape) : rows_in.K(head + 1, s.nraw)};
  Add(QuantizeKv8V(source.v, v), errors.v);
}

template <class Source>
Kv8LayerErrors EncodeKv8(const QuantizeKv8Args& args, const Kv8Source<Source>& source) {
  KScratch scratch;
  for (float& step : scratch.ranges.low_step) step = 0;
  Kv8LayerErrors errors;
  for (uint32_t head = 0; head < args.source.shape.kv_heads; ++head)
    EncodeKv8Head(args, source, head, scratch, errors);
  return errors;
}

void DecodeKv8Head(const DequantizeKv8Args& args, uint32_t head, Kv8Scratch& scratch) {
  const BlockShape& s = args.shape;
  const KvLayerView& out = args.out;
  const FloatTag df;
  for (uint32_t c = 0; c < s.k_dim; c += kFloats) {
    const size_t at = 2 * (size_t{head} * s.k_dim + c);
    hn::StoreU(Fp16Source::Load(args.in.k_scale + at), df, scratch.scale + c);
    hn::StoreU(Fp16Source::Load(args.in.k_min + at), df, scratch.minimum + c);
  }
  for (uint32_t token = 0; token < s.tokens; ++token) {
    const size_t row = size_t{head} * s.tokens + token, raw_row = size_t{head} * s.nraw + token;
    std::byte* target = out.k + out.Row(head, token);
    if (token < s.nraw) {
      internal::StoreRawChannels(args.in.k_raw + 2 * raw_row * s.k_dim, s.k_dim, out, out.scales.k, target);
      continue;
    }
    const KRow k = {
        .codes = args.in.k_codes + row * s.k_dim, .scale = scratch.scale, .minimum = scratch.minimum};
    StoreRow(k, s.k_dim, out, out.scales.k, target);
  }
  for (uint32_t token = 0; token < s.tokens; ++token) {
    const size_t row = size_t{head} * s.tokens + token, raw_row = size_t{head} * s.nraw + token;
    std::byte* target = out.v + out.Row(head, token);
    if (token < s.nraw) {
      internal::StoreRawVRow(args.in.v_raw + 2 * raw_row * s.v_dim, s.v_dim, out, target);
      continue;
    }
    const VRow v = {.codes = args.in.v_codes + row * s.v_dim,
                    .scale = Fp32FromFp16(Load16(args.in.v_scale + 2 * row))};
    if (out.v_form == VForm::kRotated) {
      StoreRow(RotatedVRow(v, s.v_dim), s.v_dim, out, out.scales.v, target);
    } else {
      StoreRow(v, s.v_dim, out, out.scales.v, target);
    }
  }
}

#endif

Kv8LayerErrors QuantizeKv8Layer(const QuantizeKv8Args& args) {
#if HWY_TARGET != HWY_SCALAR
  const BlockShape& shape = args.source.shape;
  if (shape.tokens > shape.nraw) {
    const SourceRows& rows = args.source;
    if (shape.dtype == DType::kFp16) return EncodeKv8(args, Kv8Source<Fp16Source>{rows, {}, {}});
    if (shape.dtype == DType::kBf16) return EncodeKv8(args, Kv8Source<Bf16Source>{rows, {}, {}});
    if (HasUsualScales(rows.scales)) {
      const std::unique_ptr<std::byte[]> raw = WidenFp8(shape, rows.raw);
      SourceRows widened = {.shape = shape, .raw = raw.get(), .scales = rows.scales};
      widened.shape.dtype = DType::kFp16;
      return EncodeKv8(args, Kv8Source<ScaledFp16Source>{widened, {rows.scales.k}, {rows.scales.v}});
    }
  }
#endif
  return QuantizeKv8Portably(args);
}

void DequantizeKv8Layer(const DequantizeKv8Args& args) {
#if HWY_TARGET != HWY_SCALAR
  if (args.out.channel_stride == DTypeBytes(args.out.dtype)) {
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

static Kv8LayerErrors QuantizeKv8Portably(const QuantizeKv8Args& args) {
  const BlockShape& shape = args.source.shape;
  const size_t rows = size_t{shape.kv_heads} * shape.tokens;
  std::vector<Kv8RowErrors> errors(2 * rows);
  QuantizeKv8Args measured = args;
  measured.k_errors = errors.data();
  measured.v_errors = errors.data() + rows;
  LaunchSerial(Kv8Launch(shape), [&](const SerialTeam& team) { QuantizeKv8(team, measured); });
  Kv8LayerErrors sum;
  for (size_t row = 0; row < rows; ++row) {
    Add(errors[row], sum.k);
    Add(errors[rows + row], sum.v);
  }
  return sum;
}

HWY_EXPORT(QuantizeKv8Layer);
HWY_EXPORT(DequantizeKv8Layer);

Kv8LayerErrors QuantizeKv8Simd(const QuantizeKv8Args& args) {
  // Smaller squares may have left the range of fp32, in which vectors sum them.
  constexpr double kSquareMin = 0x1p-60;
  const Kv8LayerErrors errors = HWY_DYNAMIC_DISPATCH(QuantizeKv8Layer)(args);
  const bool is_trusted = errors.k.square >= kSquareMin && errors.v.square >= kSquareMin;
  return is_trusted ? errors : QuantizeKv8Portably(args);
}

void DequantizeKv8Simd(const DequantizeKv8Args& args) {
  HWY_DYNAMIC_DISPATCH(DequantizeKv8Layer)(args);
}

}  // namespace kvtier
#endif
