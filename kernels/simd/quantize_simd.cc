#include "kernels/simd/quantize_simd.h"

// clang-format off
#include "kernels/simd/targets.h"
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/simd/quantize_simd.cc"
#include <hwy/foreach_target.h>
// clang-format on

#include <hwy/highway.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <span>
#include <vector>

#include "kernels/simd/avx512_quantize_k-inl.h"
#include "kernels/simd/avx512_quantize_v-inl.h"
#include "kernels/simd/boost_simd.h"
#include "kernels/simd/convert_simd.h"
#include "kernels/simd/quantize_k-inl.h"
#include "kernels/simd/quantize_v-inl.h"
#include "kernels/team.h"

#ifndef KVTIER_KERNELS_SIMD_QUANTIZE_PORTABLY
#define KVTIER_KERNELS_SIMD_QUANTIZE_PORTABLY
namespace kvtier {
static LayerErrors QuantizePortably(const QuantizeArgs& args);
}  // namespace kvtier
#endif

HWY_BEFORE_NAMESPACE();
namespace kvtier::HWY_NAMESPACE {
#if HWY_TARGET != HWY_SCALAR

/// Encodes one layer head by head. What vectors do not take, raw rows and last tiles of fewer than 64
/// channels, goes through the functions of the portable body.
template <class Source>
class LayerQuantizer {
 public:
  /// Elements of 16 bits: fp16 or BF16.
  LayerQuantizer(const QuantizeArgs& args, const Source& k, const Source& v)
      : args_(args), shape_(args.shape), k_elements_(k), v_elements_(v) {}

  LayerErrors Run() {
    for (uint32_t head = 0; head < shape_.kv_heads; ++head) {
      QuantizeK(head);
      QuantizeV(head);
    }
    return {.k = k_errors_.Sum(), .v = v_errors_.Sum()};
  }

 private:
  uint32_t Rows() const { return uint32_t{shape_.tokens} - shape_.nraw; }

  void QuantizeK(uint32_t head) {
    const size_t dim = shape_.k_dim, row = PlaneRow(shape_, head, 0), row_bytes = dim / 4;
    const std::byte* source = internal::SourceOf(args_).K(head, 0);
    uint8_t* high = args_.out.k_high + row * row_bytes;
    uint8_t* low = args_.out.k_low != nullptr ? args_.out.k_low + row * row_bytes : k_low_;
    const KHead k = {.source = source + 2 * shape_.nraw * dim,
                     .rows = Rows(),
                     .dim = shape_.k_dim,
                     .high = high + shape_.nraw * row_bytes,
                     .low = low + shape_.nraw * row_bytes,
                     .next = internal::SourceOf(args_).V(head, 0)};
    FindRanges(k, scratch_);
    FinishRanges(k_elements_, shape_.k_dim, 15, args_.out.k_scale + 2 * head * dim,
                 args_.out.k_min + 2 * head * dim, scratch_);
    MarkBoosted(shape_.k_dim, shape_.nb, scratch_.ranges);

    for (uint32_t channel = 0; channel + kTileCodes <= k.dim; channel += kTileCodes)
      QuantizeKTile(k, channel);
    QuantizeKTail(k);
    uint8_t* raw = args_.out.k_raw + 2 * size_t{head} * shape_.nraw * dim;
    for (uint32_t token = 0; token < shape_.nraw; ++token)
      StoreRawRow(k_elements_, source + 2 * token * dim, shape_.k_dim, raw + 2 * token * dim, k_errors_);
    memset(high, 0, shape_.nraw * row_bytes);
    memset(low, 0, shape_.nraw * row_bytes);
    RepeatLastRow(high, row_bytes);
    RepeatLastRow(low, row_bytes);
    if (args_.out.boost_ids != nullptr) StoreBoost(head, low);
  }

  void QuantizeKTile(const KHead& k, uint32_t channel) {
    const bool clamps = scratch_.clamps[channel / kTileCodes];
    RowErrors errors =
        clamps ? HWY_NAMESPACE::QuantizeKTile<Source, true>(k_elements_, k, channel, scratch_.ranges)
               : QuantizeKTileInRange(k_elements_, k, channel, scratch_.ranges);
    if (clamps) {
      errors = MeasureDecodedKTile<true>(k_elements_, k, channel, scratch_.ranges);
    } else if (scratch_.is_fine[channel / kTileCodes] || !TrustsGrid(errors)) {
      errors = MeasureDecodedKTile<false>(k_elements_, k, channel, scratch_.ranges);
    }
    k_errors_.Add(errors);
  }

  /// Channels beyond the last full tile.
  void QuantizeKTail(const KHead& k) {
    const uint32_t first = k.dim / kTileCodes * kTileCodes, n = k.dim - first;
    if (n == 0) return;
    for (uint32_t row = 0; row < k.rows; ++row) {
      float x[kTileCodes];
      uint8_t codes[kTileCodes];
      LoadRow(k_elements_, k.At(row, first), n, x);
      internal::QuantizeKTile(x, first, n, scratch_.ranges, codes);
      internal::AddKTileErrors(x, codes, first, n, scratch_.ranges, k_errors_);
      const size_t target = (size_t{row} * k.dim + first) / 4;
      PackTile<kHighShift>(codes, n, k.high + target);
      PackTile<kLowShift>(codes, n, k.low + target);
    }
  }

  void StoreBoost(uint32_t head, const uint8_t* k_low) {
    GatherBoostArgs boost = {.shape = shape_, .in = {}, .out = {}};
    boost.shape.kv_heads = 1;
    boost.in.k_scale = args_.out.k_scale + 2 * size_t{head} * shape_.k_dim;
    boost.in.k_low = k_low;
    boost.out.boost_ids = args_.out.boost_ids + size_t{head} * shape_.nb;
    boost.out.boost_low = args_.out.boost_low + PlaneRow(shape_, head, 0) * (shape_.nb / 4);
    GatherBoostSimd(boost);
  }

  void QuantizeV(uint32_t head) {
    const size_t dim = shape_.v_dim, groups = VGroups(shape_), row = PlaneRow(shape_, head, 0);
    const std::byte* source = internal::SourceOf(args_).V(head, 0);
    uint8_t* high = args_.out.v_high + row * (dim / 4);
    uint8_t* low = args_.out.v_low != nullptr ? args_.out.v_low + row * (dim / 4) : nullptr;
    uint8_t* scale = args_.out.v_scale + row * groups;

    uint8_t* raw = args_.out.v_raw + 2 * size_t{head} * shape_.nraw * dim;
    for (uint32_t token = 0; token < shape_.nraw; ++token)
      StoreRawRow(v_elements_, source + 2 * token * dim, shape_.v_dim, raw + 2 * token * dim, v_errors_);
    memset(scale, 0, shape_.nraw * groups);
    memset(high, 0, shape_.nraw * dim / 4);
    if (low != nullptr) memset(low, 0, shape_.nraw * dim / 4);
    for (size_t first = 0; first < dim; first += kTileCodes) {
      const size_t plane = shape_.nraw * (dim / 4) + first / 4;
      const VGroup group = {.source = source + 2 * (shape_.nraw * dim + first),
                            .source_stride = 2 * dim,
                            .rows = Rows(),
                            .scale = scale + shape_.nraw * groups + first / kTileCodes,
                            .scale_stride = groups,
                            .high = high + plane,
                            .low = low != nullptr ? low + plane : nullptr,
                            .plane_stride = dim / 4,
                            .next = NextK(head) + 2 * first * Rows(),
                            .fetches_planes = first == 0};
      if (dim - first >= kTileCodes) {
        QuantizeVGroup(group);
      } else {
        QuantizeVTail(group, static_cast<uint32_t>(dim - first));
      }
    }
    RepeatLastRow(scale, groups);
    RepeatLastRow(high, dim / 4);
    if (low != nullptr) RepeatLastRow(low, dim / 4);
  }

  /// What is read after V of a head: K of the next one, or of the next layer, if it lies behind this one.
  const std::byte* NextK(uint32_t head) const {
    return head + 1u < shape_.kv_heads ? internal::SourceOf(args_).K(head + 1, 0)
                                       : args_.raw + RawLayerBytes(shape_);
  }

  /// Batch by batch. The scales of one are found while the next is rotated.
  void QuantizeVGroup(const VGroup& group) {
    ErrorVectors sums;
    const auto rows_from = [&](uint32_t first) { return std::min(group.rows - first, kVBatch); };
    uint32_t current = 0;
    RotateRows(v_elements_, group, 0, rows_from(0), batches_[current]);
    for (uint32_t first = 0; first < group.rows; first += kVBatch) {
      const uint32_t rows = rows_from(first), next = first + kVBatch;
      FindVScales(batches_[current], rows, v_scales_);
      if (next < group.rows) RotateRows(v_elements_, group, next, rows_from(next), batches_[1 - current]);
      QuantizeRows(batches_[current], group, first, rows, v_scales_, sums);
      StoreVScales(group, first, rows);
      current = 1 - current;
    }
    const RowErrors errors = sums.Sum();
    if (TrustsGrid(errors)) {
      v_errors_.Add(errors);
    } else {
      MeasureDecodedVGroup(group);
    }
  }

  /// All rows but those that StoreVScales has measured, and those without an error.
  void MeasureDecodedVGroup(const VGroup& group) {
    for (uint32_t row = 0; row < group.rows; ++row) {
      const std::byte* source = group.source + row * group.source_stride;
      if (group.scale[row * group.scale_stride] >= kVScaleClamps || IsZeroRow(source)) continue;
      v_errors_.Add(MeasureDecodedRow(v_elements_, source));
    }
  }

  void StoreVScales(const VGroup& group, uint32_t first, uint32_t rows) {
    const auto scale_byte = [&](uint32_t row) {
      return static_cast<uint8_t>(v_scales_.scale_byte[VBatch::LaneOf(row)]);
    };
    uint8_t* scale = group.scale + first * group.scale_stride;
    if (rows == kVBatch) {  // a loop that compilers unroll
      for (uint32_t row = 0; row < kVBatch; ++row) scale[row * group.scale_stride] = scale_byte(row);
    } else {
      for (uint32_t row = 0; row < rows; ++row) scale[row * group.scale_stride] = scale_byte(row);
    }
    if (!v_scales_.clamps) return;
    for (uint32_t row = 0; row < rows; ++row)
      if (scale_byte(row) >= kVScaleClamps)
        v_errors_.Add(MeasureDecodedRow(v_elements_, group.source + (first + row) * group.source_stride));
  }

  /// The last group of a row, of fewer than 64 channels, not rotated.
  void QuantizeVTail(const VGroup& group, uint32_t n) {
    for (uint32_t row = 0; row < group.rows; ++row) {
      float x[kTileCodes], steps[kTileCodes];
      uint8_t codes[kTileCodes];
      LoadRow(v_elements_, group.source + row * group.source_stride, n, x);
      const uint8_t scale_byte = internal::QuantizeVGroup(x, n, steps, codes);
      internal::AddVGroupErrors(x, codes, n, scale_byte, v_errors_);
      group.scale[row * group.scale_stride] = scale_byte;
      PackTile<kHighShift>(codes, n, group.high + row * group.plane_stride);
      if (group.low != nullptr) PackTile<kLowShift>(codes, n, group.low + row * group.plane_stride);
    }
  }

  static void StoreRawRow(const Source& elements, const std::byte* source, uint32_t dim, uint8_t* target,
                          RowErrorSum& errors) {
    for (uint32_t first = 0; first < dim; first += kTileCodes) {
      float x[kTileCodes];
      const uint32_t n = TileCodes(dim, first);
      LoadRow(elements, source + 2 * first, n, x);
      internal::StoreRawTile(x, n, target + 2 * first, errors);
    }
  }

  /// Padding tokens are the last one again.
  void RepeatLastRow(uint8_t* rows, size_t row_bytes) const {
    for (uint32_t token = shape_.tokens; token < PaddedTokens(shape_); ++token)
      memcpy(rows + token * row_bytes, rows + (shape_.tokens - 1u) * row_bytes, row_bytes);
  }

  const QuantizeArgs& args_;
  const BlockShape& shape_;
  const Source k_elements_, v_elements_;
  KScratch scratch_;
  VBatch batches_[2] = {};
  VScales v_scales_ = {};
  RowErrorSum k_errors_, v_errors_;
  uint8_t k_low_[kMaxTokens * kMaxHeadDim / 4];  ///< where the rung has no K low plane
};

#endif

LayerErrors QuantizeLayer(const QuantizeArgs& args) {
#if HWY_TARGET != HWY_SCALAR
  const BlockShape& shape = args.shape;
  if (shape.tokens > shape.nraw) {
    if (shape.dtype == DType::kFp16) return LayerQuantizer(args, Fp16Source(), Fp16Source()).Run();
    if (shape.dtype == DType::kBf16) return LayerQuantizer(args, Bf16Source(), Bf16Source()).Run();
    if (HasUsualScales(args.scales)) {
      const std::unique_ptr<std::byte[]> raw = WidenFp8(shape, args.raw);
      QuantizeArgs widened = args;
      widened.shape.dtype = DType::kFp16;
      widened.raw = raw.get();
      return LayerQuantizer(widened, ScaledFp16Source{args.scales.k}, ScaledFp16Source{args.scales.v}).Run();
    }
  }
#endif
  return QuantizePortably(args);
}

}  // namespace kvtier::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kvtier {

static RowErrors SumRows(std::span<const RowErrors> rows) {
  RowErrors sum;
  for (const RowErrors& row : rows) {
    sum.square += row.square;
    sum.int4 += row.int4;
    sum.int2 += row.int2;
  }
  return sum;
}

static LayerErrors QuantizePortably(const QuantizeArgs& args) {
  const size_t rows = size_t{args.shape.kv_heads} * args.shape.tokens;
  std::vector<RowErrors> k(rows), v(rows);
  QuantizeArgs measured = args;
  const auto run = [&](RowErrors* k_errors, ErrorMeasure measure_v) {
    measured.k_errors = k_errors;
    measured.v_errors = v.data();
    measured.measure_v = measure_v;
    LaunchSerial(QuantizeLaunch(args.shape), [&](const SerialTeam& team) { Quantize(team, measured); });
  };
  run(k.data(), ErrorMeasure::kOnGrid);
  if (!TrustsGrid(SumRows(v))) run(nullptr, ErrorMeasure::kDecoded);  // V alone
  return {.k = SumRows(k), .v = SumRows(v)};
}

HWY_EXPORT(QuantizeLayer);

LayerErrors QuantizeSimd(const QuantizeArgs& args) {
  return HWY_DYNAMIC_DISPATCH(QuantizeLayer)(args);
}

}  // namespace kvtier
#endif
