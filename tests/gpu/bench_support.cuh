#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include "kernels/batch_sections.h"
#include "kernels/numerics.h"
#include "kernels/section_bytes.h"

// What benches on a GPU share: its memory, its clock, and encoded layers in it.

namespace kvtier::bench {

inline void Check(int error) {
  if (error != cudaSuccess) throw std::runtime_error(cudaGetErrorString(static_cast<cudaError_t>(error)));
}

/// Memory of the device, or pinned memory of the host.
template <bool on_device>
class Memory {
 public:
  explicit Memory(uint64_t bytes) {
    Check(on_device ? cudaMalloc(&data_, bytes) : cudaMallocHost(&data_, bytes));
  }
  Memory(Memory&& other) noexcept : data_(other.data_) { other.data_ = nullptr; }
  Memory& operator=(Memory&&) = delete;
  ~Memory() { on_device ? cudaFree(data_) : cudaFreeHost(data_); }
  template <typename Value>
  Value* As() const {
    return static_cast<Value*>(data_);
  }

 private:
  void* data_ = nullptr;
};
using DeviceMemory = Memory<true>;
using HostMemory = Memory<false>;

template <typename Item>
inline DeviceMemory Upload(const std::vector<Item>& items) {
  DeviceMemory memory(items.size() * sizeof(Item));
  Check(cudaMemcpy(memory.As<void>(), items.data(), items.size() * sizeof(Item), cudaMemcpyHostToDevice));
  return memory;
}

/// Seconds of work(), the median of several, after one to warm up.
template <typename Work>
double Seconds(const Work& work) {
  constexpr int kRuns = 9;
  cudaEvent_t begin, end;
  Check(cudaEventCreate(&begin));
  Check(cudaEventCreate(&end));
  std::vector<double> seconds;
  for (int run = 0; run <= kRuns; ++run) {
    Check(cudaEventRecord(begin));
    work();
    Check(cudaEventRecord(end));
    Check(cudaEventSynchronize(end));
    float milliseconds = 0;
    Check(cudaEventElapsedTime(&milliseconds, begin, end));
    if (run > 0) seconds.push_back(milliseconds / 1e3);
  }
  Check(cudaEventDestroy(begin));
  Check(cudaEventDestroy(end));
  std::nth_element(seconds.begin(), seconds.begin() + kRuns / 2, seconds.end());
  return seconds[kRuns / 2];
}

/// Normal numbers as fp16.
inline std::vector<uint16_t> RandomHalves(uint64_t count, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<uint16_t> halves(count);
  for (uint16_t& half : halves) half = Fp16FromFp32(normal(random));
  return halves;
}
/// Device memory full of copies of them.
inline DeviceMemory Repeated(const std::vector<uint16_t>& halves, uint64_t times) {
  const uint64_t bytes = halves.size() * sizeof(uint16_t);
  DeviceMemory memory(bytes * times);
  for (uint64_t i = 0; i < times; ++i)
    Check(cudaMemcpy(memory.As<std::byte>() + i * bytes, halves.data(), bytes, cudaMemcpyHostToDevice));
  return memory;
}

inline constexpr BlockShape kShape = {
    .layers = 1, .kv_heads = 8, .k_dim = 128, .v_dim = 128, .tokens = 128, .nraw = 0, .nb = 64};
inline constexpr uint64_t kRawBytes = RawLayerBytes(kShape);

enum class Rung { kKv8, kKv4p, kKv2p };
inline constexpr Rung kRungs[] = {Rung::kKv8, Rung::kKv4p, Rung::kKv2p};
inline std::string NameOf(Rung rung) {
  return rung == Rung::kKv8 ? "kv8" : rung == Rung::kKv4p ? "kv4p" : "kv2p";
}
inline LayerCoding CodingOf(Rung rung) {
  return rung == Rung::kKv8 ? LayerCoding::kKv8 : LayerCoding::kPlanes;
}

/// One layer's places: base, then boost, then both tails; or kv8.
struct Places {
  uint64_t boost, k_tail, v_tail, planes, kv8;
  uint64_t all;  ///< room for either
};
inline Places PlacesOf() {
  const SectionBytes bytes = SectionBytesOf(kShape);
  const Kv8SectionBytes kv8 = Kv8SectionBytesOf(kShape);
  Places at{};
  at.boost = internal::BaseBytes(bytes);
  at.k_tail = at.boost + AlignSection(bytes.boost);
  at.v_tail = at.k_tail + AlignSection(bytes.k_low);
  at.planes = at.v_tail + AlignSection(bytes.v_low);
  at.kv8 = AlignSection(kv8.k_ranges) + AlignSection(kv8.v_scales) + AlignSection(kv8.raw_rows) +
           AlignSection(kv8.k_codes) + AlignSection(kv8.v_codes);
  at.all = std::max(at.planes, at.kv8);
  return at;
}
template <typename Byte>
CodedLayer<Byte> LayerAt(Byte* memory, Rung rung) {
  const Places at = PlacesOf();
  CodedLayer<Byte> layer = {.shape = kShape, .coding = CodingOf(rung), .base = memory};
  if (rung == Rung::kKv8) layer.shape.nb = 0;
  if (rung == Rung::kKv2p) layer.boost = memory + at.boost;
  if (rung == Rung::kKv4p) {
    layer.k_tail = memory + at.k_tail;
    layer.v_tail = memory + at.v_tail;
  }
  return layer;
}
inline uint64_t CodedBytes(Rung rung) {
  const Places at = PlacesOf();
  if (rung == Rung::kKv8) return at.kv8;
  return rung == Rung::kKv4p ? at.boost + (at.planes - at.k_tail) : at.k_tail;
}

}  // namespace kvtier::bench
