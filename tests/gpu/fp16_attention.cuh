#pragma once

#include <cuda_fp16.h>

#include <cstdint>

// Decode attention over plain FP16 K and V, to measure against: one block of 4 warps takes a part of one
// sequence and one KV head, for up to 4 query heads; each of its quarter-warps takes a token at a time, 16
// bytes a lane, and keeps a running softmax; the parts are merged in shared memory.

namespace kvtier::baseline {

inline constexpr uint32_t kDim = 128, kQueries = 4, kLanes = 128, kGroup = 8, kGroups = kLanes / kGroup;

struct Fp16Attention {
  const __half* k;  ///< [sequences][kv_heads][tokens][kDim]
  const __half* v;
  const float* q;  ///< [sequences][kv_heads][kQueries][kDim]
  uint32_t tokens, part_tokens;
  float scale;
  float* o;  ///< [parts][sequences][kv_heads][kQueries][kDim]
  float* m;  ///< [parts][sequences][kv_heads][kQueries]
  float* l;
};

__device__ inline void Load16Halves(const __half* from, float (&out)[16]) {
  const uint4 words[2] = {*reinterpret_cast<const uint4*>(from), *reinterpret_cast<const uint4*>(from + 64)};
  const auto* halves = reinterpret_cast<const __half2*>(words);
#pragma unroll
  for (uint32_t i = 0; i < 8; ++i) {
    const float2 two = __half22float2(halves[i]);
    out[2 * i] = two.x;
    out[2 * i + 1] = two.y;
  }
}

__global__ void __launch_bounds__(kLanes, 2) Fp16AttentionKernel(Fp16Attention args) {
  __shared__ float part_o[kGroups][kDim];
  __shared__ float part_m[kQueries][kGroups], part_l[kQueries][kGroups];
  const uint32_t head = blockIdx.y, group = threadIdx.x / kGroup, lane = threadIdx.x % kGroup;
  const uint64_t rows = uint64_t{head} * args.tokens;
  // A lane has channels 8 lane .. 8 lane + 7 and 64 more.
  float q[kQueries][16], o[kQueries][16] = {}, m[kQueries], l[kQueries] = {};
#pragma unroll
  for (uint32_t g = 0; g < kQueries; ++g) {
    m[g] = -INFINITY;
#pragma unroll
    for (uint32_t i = 0; i < 16; ++i)
      q[g][i] = args.q[(uint64_t{head} * kQueries + g) * kDim + i / 8 * 64 + lane * 8 + i % 8] * args.scale;
  }
  const uint32_t first = blockIdx.x * args.part_tokens;
  for (uint32_t t = first + group; t < first + args.part_tokens; t += kGroups) {
    float k[16], v[16];
    Load16Halves(args.k + (rows + t) * kDim + lane * 8, k);
    Load16Halves(args.v + (rows + t) * kDim + lane * 8, v);
#pragma unroll
    for (uint32_t g = 0; g < kQueries; ++g) {
      float score = 0;
#pragma unroll
      for (uint32_t i = 0; i < 16; ++i) score = fmaf(q[g][i], k[i], score);
#pragma unroll
      for (uint32_t mask = 1; mask < kGroup; mask *= 2) score += __shfl_xor_sync(0xffffffff, score, mask);
      const float larger = fmaxf(m[g], score), factor = __expf(m[g] - larger),
                  weight = __expf(score - larger);
      m[g] = larger;
      l[g] = l[g] * factor + weight;
#pragma unroll
      for (uint32_t i = 0; i < 16; ++i) o[g][i] = fmaf(weight, v[i], o[g][i] * factor);
    }
  }
  const uint64_t out = (uint64_t{blockIdx.x} * gridDim.y + head) * kQueries;
#pragma unroll
  for (uint32_t g = 0; g < kQueries; ++g) {
    if (lane == 0) {
      part_m[g][group] = m[g];
      part_l[g][group] = l[g];
    }
    __syncthreads();
    float all = -INFINITY, sum = 0;
    for (uint32_t i = 0; i < kGroups; ++i) all = fmaxf(all, part_m[g][i]);
    for (uint32_t i = 0; i < kGroups; ++i) sum += part_l[g][i] * __expf(part_m[g][i] - all);
#pragma unroll
    for (uint32_t i = 0; i < 16; ++i)
      part_o[group][i / 8 * 64 + lane * 8 + i % 8] = o[g][i] * __expf(m[g] - all);
    __syncthreads();
    float total = 0;
    for (uint32_t i = 0; i < kGroups; ++i) total += part_o[i][threadIdx.x];
    args.o[(out + g) * kDim + threadIdx.x] = total;
    if (threadIdx.x == 0) {
      args.m[out + g] = all;
      args.l[out + g] = sum;
    }
    __syncthreads();
  }
}

/// The parts of each head into one: [heads][kDim], divided by l.
__global__ void __launch_bounds__(kDim) Fp16CombineKernel(Fp16Attention args, uint32_t parts, float* result) {
  const uint64_t heads = gridDim.x;
  float all = -INFINITY, sum = 0, value = 0;
  for (uint32_t p = 0; p < parts; ++p) all = fmaxf(all, args.m[p * heads + blockIdx.x]);
  for (uint32_t p = 0; p < parts; ++p) {
    const uint64_t at = p * heads + blockIdx.x;
    const float factor = __expf(args.m[at] - all);
    sum += args.l[at] * factor;
    value += args.o[at * kDim + threadIdx.x] * factor;
  }
  result[uint64_t{blockIdx.x} * kDim + threadIdx.x] = value / sum;
}

}  // namespace kvtier::baseline
