#include "tests/gpu/bench.h"

#include <cuda_runtime.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <stdexcept>

#include "kernels/batch_sections.h"
#include "kernels/cuda/launch.h"
#include "kernels/numerics.h"
#include "kernels/section_bytes.h"
#include "tests/gpu/fp16_attention.cuh"

namespace kvtier {
namespace {

void Check(int error) {
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
DeviceMemory Upload(const std::vector<Item>& items) {
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

constexpr BlockShape kShape = {
    .layers = 1, .kv_heads = 8, .k_dim = 128, .v_dim = 128, .tokens = 128, .nraw = 0, .nb = 64};
constexpr uint32_t kItems = 1024;
constexpr uint64_t kRawBytes = RawLayerBytes(kShape);

/// One layer's places: base, then boost, then both tails.
struct Places {
  uint64_t base, boost, k_tail, v_tail, all;
};
Places PlacesOf() {
  const SectionBytes bytes = SectionBytesOf(kShape);
  Places at{};
  at.boost = internal::BaseBytes(bytes);
  at.k_tail = at.boost + AlignSection(bytes.boost);
  at.v_tail = at.k_tail + AlignSection(bytes.k_low);
  at.all = at.v_tail + AlignSection(bytes.v_low);
  return at;
}
template <typename Byte>
CodedLayer<Byte> LayerAt(Byte* memory, bool is_int4) {
  const Places at = PlacesOf();
  CodedLayer<Byte> layer = {.shape = kShape, .coding = LayerCoding::kPlanes, .base = memory};
  if (is_int4) {
    layer.k_tail = memory + at.k_tail;
    layer.v_tail = memory + at.v_tail;
  } else {
    layer.boost = memory + at.boost;
  }
  return layer;
}
uint64_t CodedBytes(bool is_int4) {
  const Places at = PlacesOf();
  return is_int4 ? at.boost + (at.all - at.k_tail) : at.k_tail;
}

/// FP16 of an engine: [page][K, V][slot][head][channel], pages of 16 tokens in scattered order.
KvLayerView PagedView(std::byte* pages, const int32_t* table) {
  constexpr uint32_t kPageTokens = 16;
  constexpr int64_t kRow = 128 * 2, kSlot = kRow * 8, kPlane = kSlot * kPageTokens;
  return {.k = pages,
          .v = pages + kPlane,
          .head_stride = kRow,
          .token_stride = kSlot,
          .channel_stride = 2,
          .page_table = table,
          .page_tokens = kPageTokens,
          .page_stride = 2 * kPlane};
}

class Bench {
 public:
  Bench() : pages_(kItems * kRawBytes), coded_(kItems * PlacesOf().all), cut_(kItems * PlacesOf().all) {
    FillPages();
  }

  std::vector<Measured> Run() {
    MeasureCopy();
    MeasureCodecs(true);
    MeasureCodecs(false);
    MeasureCut();
    MeasureBus();
    return std::move(all_);
  }

 private:
  void Add(const std::string& name, double value, const std::string& unit) {
    all_.push_back({name, value, unit});
  }
  void AddSpeed(const std::string& name, double bytes, double seconds) {
    Add(name, bytes / seconds / 1e9, "GB/s of bytes read and written");
    Add(name + ", of a copy", bytes / seconds / copy_ * 100, "%");
  }
  void FillPages() {
    std::mt19937 random(1);
    std::normal_distribution<float> normal;
    std::vector<uint16_t> layer(kRawBytes / 2);
    for (uint16_t& half : layer) half = Fp16FromFp32(normal(random));
    for (uint64_t i = 0; i < kItems; ++i)
      Check(cudaMemcpy(pages_.As<std::byte>() + i * kRawBytes, layer.data(), kRawBytes, cudaMemcpyDefault));
    std::vector<int32_t> table(kItems * 8);
    for (size_t i = 0; i < table.size(); ++i) table[i] = static_cast<int32_t>(i);
    std::shuffle(table.begin(), table.end(), random);
    tables_.push_back(Upload(table));
  }
  KvLayerView View(uint32_t item) {
    return PagedView(pages_.As<std::byte>(), tables_[0].As<int32_t>() + item * 8);
  }
  uint8_t* Coded(uint32_t item) { return coded_.As<uint8_t>() + item * PlacesOf().all; }

  void MeasureCopy() {
    const uint64_t bytes = kItems * kRawBytes / 2;
    const double seconds = Seconds([&] {
      Check(
          cudaMemcpyAsync(pages_.As<std::byte>() + bytes, pages_.As<std::byte>(), bytes, cudaMemcpyDefault));
    });
    copy_ = 2 * static_cast<double>(bytes) / seconds;
    Add("copy in device memory", copy_ / 1e9, "GB/s of bytes read and written");
  }
  void MeasureCodecs(bool is_int4) {
    const std::string rung = is_int4 ? "kv4p" : "kv2p";
    std::vector<EncodeItem> encode;
    std::vector<RequantizeItem> requantize;
    std::vector<DecodeItem> decode;
    for (uint32_t i = 0; i < kItems; ++i) {
      encode.push_back({.source = View(i), .target = LayerAt(Coded(i), is_int4)});
      const CodedLayer<const uint8_t> raw = {
          .shape = kShape, .coding = LayerCoding::kRaw, .base = pages_.As<uint8_t>() + i * kRawBytes};
      requantize.push_back({.source = raw, .target = LayerAt(Coded(i), is_int4)});
      decode.push_back({.source = LayerAt<const uint8_t>(Coded(i), is_int4), .target = View(i)});
    }
    const DeviceMemory heads(kItems * kShape.kv_heads * sizeof(EncodedHead));
    const DeviceMemory encode_items = Upload(encode), requantize_items = Upload(requantize),
                       decode_items = Upload(decode);
    const double bytes = static_cast<double>(kItems) * static_cast<double>(kRawBytes + CodedBytes(is_int4));
    constexpr uint32_t kPlanes = CodingBit(LayerCoding::kPlanes);
    AddSpeed("requantize raw16 to " + rung, bytes, Seconds([&] {
               Check(cuda::LaunchRequantize({.items = requantize_items.As<RequantizeItem>(),
                                             .count = kItems,
                                             .heads_max = kShape.kv_heads,
                                             .heads = heads.As<EncodedHead>(),
                                             .codings = kPlanes},
                                            nullptr));
             }));
    AddSpeed("encode pages to " + rung, bytes, Seconds([&] {
               Check(cuda::LaunchEncode({.items = encode_items.As<EncodeItem>(),
                                         .count = kItems,
                                         .heads_max = kShape.kv_heads,
                                         .heads = heads.As<EncodedHead>(),
                                         .codings = kPlanes},
                                        nullptr));
             }));
    AddSpeed("decode " + rung + " to pages", bytes, Seconds([&] {
               Check(cuda::LaunchDecode({.items = decode_items.As<DecodeItem>(),
                                         .count = kItems,
                                         .heads_max = kShape.kv_heads,
                                         .codings = kPlanes},
                                        nullptr));
             }));
  }
  void MeasureCut() {
    std::vector<CutItem> items;
    for (uint32_t i = 0; i < kItems; ++i) {
      items.push_back({.source = LayerAt<const uint8_t>(Coded(i), true),
                       .target = LayerAt(cut_.As<uint8_t>() + i * PlacesOf().all, false)});
    }
    const DeviceMemory memory = Upload(items);
    const Places at = PlacesOf();
    const auto bytes = static_cast<double>(2 * at.boost + (at.v_tail - at.k_tail) + (at.k_tail - at.boost));
    AddSpeed("cut kv4p to kv2p", kItems * bytes, Seconds([&] {
               Check(cuda::LaunchCut(
                   {.items = memory.As<CutItem>(), .count = kItems, .heads_max = kShape.kv_heads}, nullptr));
             }));
  }
  /// Blocks over the bus, as they are and encoded.
  void MeasureBus() {
    constexpr uint64_t kBlocks = 256;
    const HostMemory host(kBlocks * kRawBytes);
    const struct {
      const char* name;
      uint64_t block_bytes;
    } forms[] = {{"FP16", kRawBytes}, {"kv4p", CodedBytes(true)}, {"kv2p", CodedBytes(false)}};
    for (const auto& form : forms) {
      const uint64_t bytes = kBlocks * form.block_bytes;
      const double in = Seconds(
          [&] { Check(cudaMemcpyAsync(cut_.As<void>(), host.As<void>(), bytes, cudaMemcpyHostToDevice)); });
      const double out = Seconds(
          [&] { Check(cudaMemcpyAsync(host.As<void>(), cut_.As<void>(), bytes, cudaMemcpyDeviceToHost)); });
      Add(std::string("bus, host to device, ") + form.name, in / kBlocks * 1e6,
          "us for 128 tokens of a layer");
      Add(std::string("bus, device to host, ") + form.name, out / kBlocks * 1e6,
          "us for 128 tokens of a layer");
    }
  }

  std::vector<Measured> all_;
  DeviceMemory pages_, coded_, cut_;
  std::vector<DeviceMemory> tables_;
  double copy_ = 1;
};

/// 16 sequences of 32,768 tokens, 8 KV heads with 4 query heads each.
class AttentionBench {
 public:
  std::vector<Measured> Run() {
    const double fp16 = MeasureFp16();
    all_.push_back({"attention, FP16", fp16 * 1e3, "ms"});
    for (const bool is_int4 : {true, false}) {
      const std::string rung = is_int4 ? "kv4p" : "kv2p";
      const double seconds = MeasureCoded(is_int4);
      all_.push_back({"attention, " + rung, seconds * 1e3, "ms"});
      all_.push_back({"attention, FP16 time over " + rung + " time", fp16 / seconds, "x"});
    }
    return std::move(all_);
  }

 private:
  static constexpr uint32_t kSequences = 16, kTokens = 32768, kQueryHeads = 32, kDim = 128;
  static constexpr uint32_t kBlocks = kTokens / 128, kLayers = kSequences * kBlocks;

  double MeasureFp16() {
    constexpr uint32_t kPartTokens = 1024, kParts = kTokens / kPartTokens, kHeads = kSequences * 8;
    const uint64_t plane = uint64_t{kHeads} * kTokens * kDim * 2;
    const DeviceMemory k(plane), v(plane), q(uint64_t{kSequences} * kQueryHeads * kDim * 4);
    for (const DeviceMemory* memory : {&k, &v}) Check(cudaMemset(memory->As<void>(), 0x2e, plane));
    Check(cudaMemset(q.As<void>(), 0, uint64_t{kSequences} * kQueryHeads * kDim * 4));
    const uint64_t heads = uint64_t{kHeads} * baseline::kQueries;
    const DeviceMemory o(kParts * heads * kDim * 4), m(kParts * heads * 4), l(kParts * heads * 4),
        result(heads * kDim * 4);
    const baseline::Fp16Attention args = {.k = k.As<__half>(),
                                          .v = v.As<__half>(),
                                          .q = q.As<float>(),
                                          .tokens = kTokens,
                                          .part_tokens = kPartTokens,
                                          .kv_heads = 8,
                                          .scale = 1 / std::sqrt(128.0f),
                                          .o = o.As<float>(),
                                          .m = m.As<float>(),
                                          .l = l.As<float>()};
    return Seconds([&] {
      baseline::Fp16AttentionKernel<<<dim3(kParts, kHeads), baseline::kLanes>>>(args);
      Check(cudaGetLastError());
      baseline::Fp16CombineKernel<<<static_cast<uint32_t>(heads), baseline::kDim>>>(args, kParts,
                                                                                    result.As<float>());
      Check(cudaGetLastError());
    });
  }

  double MeasureCoded(bool is_int4) {
    constexpr uint32_t kSplitItems = 8, kSplits = kLayers / kSplitItems;
    const uint64_t layer_bytes = PlacesOf().all;
    const DeviceMemory coded(kLayers * layer_bytes);
    Check(cudaMemset(coded.As<void>(), 0x11, kLayers * layer_bytes));
    std::vector<CodedLayer<const uint8_t>> items;
    std::vector<AttendSplit> splits;
    std::vector<uint32_t> first_split;
    for (uint32_t i = 0; i < kLayers; ++i)
      items.push_back(LayerAt<const uint8_t>(coded.As<uint8_t>() + i * layer_bytes, is_int4));
    for (uint32_t i = 0; i < kSplits; ++i)
      splits.push_back(
          {.first_item = i * kSplitItems, .items = kSplitItems, .query = i * kSplitItems / kBlocks});
    for (uint32_t i = 0; i <= kSequences; ++i) first_split.push_back(i * (kSplits / kSequences));
    const auto floats = [](uint64_t n) { return DeviceMemory(n * sizeof(float)); };
    const DeviceMemory item_memory = Upload(items), split_memory = Upload(splits),
                       first = Upload(first_split);
    const DeviceMemory q = floats(kSequences * kQueryHeads * kDim), o = floats(kSplits * kQueryHeads * kDim),
                       m = floats(kSplits * kQueryHeads), l = floats(kSplits * kQueryHeads),
                       lse = floats(kLayers * kQueryHeads), all_o = floats(kSequences * kQueryHeads * kDim),
                       all_m = floats(kSequences * kQueryHeads), all_l = floats(kSequences * kQueryHeads),
                       mass = floats(kLayers * kQueryHeads);
    Check(cudaMemset(q.As<void>(), 0, kSequences * kQueryHeads * kDim * sizeof(float)));
    const AttendBatchArgs attend = {.items = item_memory.As<CodedLayer<const uint8_t>>(),
                                    .splits = split_memory.As<AttendSplit>(),
                                    .split_count = kSplits,
                                    .kv_heads = 8,
                                    .k_dim = kDim,
                                    .v_dim = kDim,
                                    .query_heads = kQueryHeads,
                                    .scale = 1 / std::sqrt(128.0f),
                                    .q = q.As<float>(),
                                    .o = o.As<float>(),
                                    .m = m.As<float>(),
                                    .l = l.As<float>(),
                                    .lse = lse.As<float>(),
                                    .codings = CodingBit(LayerCoding::kPlanes)};
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

  std::vector<Measured> all_;
};

}  // namespace

std::vector<Measured> MeasureGpu() {
  std::vector<Measured> all = Bench().Run();
  for (const Measured& m : AttentionBench().Run()) all.push_back(m);
  return all;
}

}  // namespace kvtier
