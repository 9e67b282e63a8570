#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cmath>
#include <cstdio>
#include <stdexcept>
#include <string>

#include "kernels/cuda/launch.h"
#include "tests/gpu/bench.h"
#include "tests/gpu/bench_support.cuh"
#include "tests/gpu/cublas_gemv.h"
#include "tests/gpu/fp16_attention.cuh"

namespace kvtier {
namespace {

using namespace bench;

constexpr uint32_t kDim = 128;
static_assert(kDim == baseline::kDim);

/// The FP16 kernel, that of what this project's are measured against, on K, V and queries of a few heads.
class Fp16Run {
 public:
  Fp16Run(const __half* k, const __half* v, const float* q, uint32_t heads, uint32_t tokens,
          uint32_t part_tokens)
      : heads_(heads),
        parts_(tokens / part_tokens),
        o_(uint64_t{parts_} * Queries() * kDim * 4),
        m_(uint64_t{parts_} * Queries() * 4),
        l_(uint64_t{parts_} * Queries() * 4),
        result_(uint64_t{Queries()} * kDim * 4),
        args_{.k = k,
              .v = v,
              .q = q,
              .tokens = tokens,
              .part_tokens = part_tokens,
              .scale = 1 / std::sqrt(static_cast<float>(kDim)),
              .o = o_.As<float>(),
              .m = m_.As<float>(),
              .l = l_.As<float>()} {}

  void Launch() const {
    baseline::Fp16AttentionKernel<<<dim3(parts_, heads_), baseline::kLanes>>>(args_);
    Check(cudaGetLastError());
    baseline::Fp16CombineKernel<<<Queries(), baseline::kDim>>>(args_, parts_, result_.As<float>());
    Check(cudaGetLastError());
  }
  std::vector<float> Result() const {
    std::vector<float> result(uint64_t{Queries()} * kDim);
    Check(cudaMemcpy(result.data(), result_.As<void>(), result.size() * 4, cudaMemcpyDeviceToHost));
    return result;
  }

 private:
  uint32_t Queries() const { return heads_ * baseline::kQueries; }

  uint32_t heads_, parts_;
  DeviceMemory o_, m_, l_, result_;
  baseline::Fp16Attention args_;
};

/// One query of one head in fp64.
std::vector<double> Attention(const uint16_t* k, const uint16_t* v, const float* q, uint32_t tokens) {
  std::vector<double> sums(kDim);
  double all = 0;
  for (uint32_t t = 0; t < tokens; ++t) {
    double score = 0;
    for (uint32_t c = 0; c < kDim; ++c) score += double{q[c]} * Fp32FromFp16(k[t * kDim + c]);
    const double weight = std::exp(score / std::sqrt(double{kDim}));
    for (uint32_t c = 0; c < kDim; ++c) sums[c] += weight * Fp32FromFp16(v[t * kDim + c]);
    all += weight;
  }
  for (double& sum : sums) sum /= all;
  return sums;
}

std::vector<float> RandomQueries(uint64_t count) {
  std::vector<float> q;
  for (const uint16_t half : RandomHalves(count, 3)) q.push_back(Fp32FromFp16(half));
  return q;
}

/// Throws where the FP16 kernel does not give the attention: what is measured against it would mean nothing.
void CheckFp16Kernel() {
  constexpr uint32_t kHeads = 3, kTokens = 512;
  const uint64_t head_elements = uint64_t{kTokens} * kDim;
  const std::vector<uint16_t> k = RandomHalves(kHeads * head_elements, 4);
  const std::vector<uint16_t> v = RandomHalves(kHeads * head_elements, 5);
  const std::vector<float> q = RandomQueries(kHeads * baseline::kQueries * kDim);
  const DeviceMemory device_k = Upload(k), device_v = Upload(v), device_q = Upload(q);
  const Fp16Run run(device_k.As<__half>(), device_v.As<__half>(), device_q.As<float>(), kHeads, kTokens, 128);
  run.Launch();
  const std::vector<float> got = run.Result();
  for (uint32_t query = 0; query < kHeads * baseline::kQueries; ++query) {
    const uint64_t head = query / baseline::kQueries * head_elements;
    const std::vector<double> expected = Attention(&k[head], &v[head], &q[query * kDim], kTokens);
    double off = 0, size = 0;
    for (uint32_t c = 0; c < kDim; ++c) {
      off += std::pow(got[query * kDim + c] - expected[c], 2);
      size += std::pow(expected[c], 2);
    }
    if (!(off <= 1e-8 * size)) {
      throw std::runtime_error("the FP16 kernel is wrong by " + std::to_string(std::sqrt(off / size)) +
                               " at query " + std::to_string(query) + ": nothing to measure against");
    }
  }
}

/// 16 sequences of 32,768 tokens, 8 KV heads with 4 query heads each.
class AttentionBench {
 public:
  std::vector<Measured> Run() {
    CheckFp16Kernel();
    const double fp16 = MeasureFp16();
    for (const Rung rung : kRungs) {
      const double seconds = MeasureCoded(rung);
      all_.push_back({"attention, " + NameOf(rung), seconds * 1e3, "ms"});
      all_.push_back({"attention, FP16 time over " + NameOf(rung) + " time", fp16 / seconds, "x"});
    }
    return std::move(all_);
  }

 private:
  static constexpr uint32_t kSequences = 16, kTokens = 32768, kQueryHeads = 32, kKvHeads = 8;
  static constexpr uint32_t kBlocks = kTokens / 128, kLayers = kSequences * kBlocks;

  /// FP16 by the kernel, and by cuBLAS: K q and V p of one query a KV head, no softmax.
  double MeasureFp16() {
    constexpr uint32_t kHeads = kSequences * kKvHeads, kPartTokens = 1024, kChunk = 16;
    const std::vector<uint16_t> some = RandomHalves(uint64_t{kHeads} * kTokens * kDim / kChunk, 6);
    const DeviceMemory k = Repeated(some, kChunk), v = Repeated(some, kChunk);
    const DeviceMemory q = Upload(RandomQueries(uint64_t{kSequences} * kQueryHeads * kDim));
    const Fp16Run run(k.As<__half>(), v.As<__half>(), q.As<float>(), kHeads, kTokens, kPartTokens);
    const double seconds = Seconds([&] { run.Launch(); });
    all_.push_back({"attention, FP16", seconds * 1e3, "ms"});
    const CublasGemv cublas;
    if (!cublas.IsThere()) {
      std::printf("cuBLAS is not on this machine: its GEMV is not measured\n");
      return seconds;
    }
    const DeviceMemory x = Upload(RandomHalves(uint64_t{kHeads} * kTokens, 7)),
                       y(uint64_t{kHeads} * kTokens * 4);
    const CublasGemv::Matrices keys = {.a = k.As<void>(), .rows = kDim, .columns = kTokens, .count = kHeads};
    CublasGemv::Matrices values = keys;
    values.a = v.As<void>();
    const double gemv = Seconds([&] {
      if (!cublas.Transposed(keys, x.As<void>(), y.As<float>()) ||
          !cublas.Plain(values, x.As<void>(), y.As<float>()))
        throw std::runtime_error("cuBLAS refuses GEMV");
    });
    all_.push_back({"cuBLAS GEMV over K and V, FP16, one query", gemv * 1e3, "ms"});
    return seconds;
  }

  double MeasureCoded(Rung rung) {
    constexpr uint32_t kSplitItems = 8, kSplits = kLayers / kSplitItems;
    const uint64_t layer_bytes = PlacesOf().all;
    const DeviceMemory coded = Encoded(rung);
    std::vector<CodedLayer<const uint8_t>> items;
    std::vector<AttendSplit> splits;
    std::vector<uint32_t> first_split;
    for (uint32_t i = 0; i < kLayers; ++i)
      items.push_back(LayerAt<const uint8_t>(coded.As<uint8_t>() + i * layer_bytes, rung));
    for (uint32_t i = 0; i < kSplits; ++i)
      splits.push_back(
          {.first_item = i * kSplitItems, .items = kSplitItems, .query = i * kSplitItems / kBlocks});
    for (uint32_t i = 0; i <= kSequences; ++i) first_split.push_back(i * (kSplits / kSequences));
    const auto floats = [](uint64_t n) { return DeviceMemory(n * sizeof(float)); };
    const DeviceMemory item_memory = Upload(items), split_memory = Upload(splits),
                       first = Upload(first_split);
    const DeviceMemory q = Upload(RandomQueries(kSequences * kQueryHeads * kDim)),
                       o = floats(kSplits * kQueryHeads * kDim), m = floats(kSplits * kQueryHeads),
                       l = floats(kSplits * kQueryHeads), lse = floats(kLayers * kQueryHeads),
                       all_o = floats(kSequences * kQueryHeads * kDim),
                       all_m = floats(kSequences * kQueryHeads), all_l = floats(kSequences * kQueryHeads),
                       mass = floats(kLayers * kQueryHeads);
    const AttendBatchArgs attend = {.items = item_memory.As<CodedLayer<const uint8_t>>(),
                                    .splits = split_memory.As<AttendSplit>(),
                                    .split_count = kSplits,
                                    .kv_heads = kKvHeads,
                                    .k_dim = kDim,
                                    .v_dim = kDim,
                                    .query_heads = kQueryHeads,
                                    .scale = 1 / std::sqrt(128.0f),
                                    .q = q.As<float>(),
                                    .o = o.As<float>(),
                                    .m = m.As<float>(),
                                    .l = l.As<float>(),
                                    .lse = lse.As<float>(),
                                    .codings = CodingBit(CodingOf(rung))};
    const CombineBatchArgs combine = {.splits = attend.splits,
                                      .first_split = first.As<uint32_t>(),
                                      .queries = kSequences,
                                      .query_heads = kQueryHeads,
                                      .v_dim = kDim,
                                      .part_o = attend.o,
                                      .part_m = attend.m,
                                      .part_l = attend.l,
                                      .part_lse = attend.lse,
                                      .o = all_o.As<float>(),
                                      .m = all_m.As<float>(),
                                      .l = all_l.As<float>(),
                                      .mass = mass.As<float>()};
    return Seconds([&] {
      Check(cuda::LaunchAttend(attend, nullptr));
      Check(cuda::LaunchCombine(combine, nullptr));
    });
  }

  /// All layers in one form, copies of a few.
  static DeviceMemory Encoded(Rung rung) {
    constexpr uint32_t kDistinct = 16;
    const uint64_t layer_bytes = PlacesOf().all;
    DeviceMemory coded(kLayers * layer_bytes);
    const DeviceMemory raw = Upload(RandomHalves(kDistinct * kRawBytes / 2, 8));
    const DeviceMemory heads(kDistinct * kShape.kv_heads * sizeof(EncodedHead));
    std::vector<RequantizeItem> items;
    for (uint32_t i = 0; i < kDistinct; ++i) {
      items.push_back({.source = {.shape = kShape,
                                  .coding = LayerCoding::kRaw,
                                  .base = raw.As<uint8_t>() + i * kRawBytes},
                       .target = LayerAt(coded.As<uint8_t>() + i * layer_bytes, rung)});
    }
    const DeviceMemory item_memory = Upload(items);
    Check(cuda::LaunchRequantize({.items = item_memory.As<RequantizeItem>(),
                                  .count = kDistinct,
                                  .heads_max = kShape.kv_heads,
                                  .heads = heads.As<EncodedHead>(),
                                  .codings = CodingBit(CodingOf(rung))},
                                 nullptr));
    for (uint32_t i = kDistinct; i < kLayers; i += kDistinct)
      Check(cudaMemcpy(coded.As<std::byte>() + i * layer_bytes, coded.As<void>(), kDistinct * layer_bytes,
                       cudaMemcpyDeviceToDevice));
    return coded;
  }

  std::vector<Measured> all_;
};

}  // namespace

std::vector<Measured> MeasureAttention() {
  return AttentionBench().Run();
}

}  // namespace kvtier
