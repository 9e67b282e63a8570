#include "tests/gpu/bench.h"

#include <cuda_runtime.h>

#include <algorithm>
#include <random>

#include "kernels/cuda/launch.h"
#include "tests/gpu/bench_support.cuh"

namespace kvtier {
namespace {

using namespace bench;

constexpr uint32_t kItems = 1024;

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
    MeasureCodecs(Rung::kKv8);
    MeasureCodecs(Rung::kKv2p);
    MeasureCodecs(Rung::kKv4p);
    MeasureCut();  // of what was encoded last
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
    const std::vector<uint16_t> layer = RandomHalves(kRawBytes / 2, 2);
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
  void MeasureCodecs(Rung rung) {
    const std::string name = NameOf(rung);
    std::vector<EncodeItem> encode;
    std::vector<RequantizeItem> requantize;
    std::vector<DecodeItem> decode;
    for (uint32_t i = 0; i < kItems; ++i) {
      encode.push_back({.source = View(i), .target = LayerAt(Coded(i), rung)});
      const CodedLayer<const uint8_t> raw = {
          .shape = kShape, .coding = LayerCoding::kRaw, .base = pages_.As<uint8_t>() + i * kRawBytes};
      requantize.push_back({.source = raw, .target = LayerAt(Coded(i), rung)});
      decode.push_back({.source = LayerAt<const uint8_t>(Coded(i), rung), .target = View(i)});
    }
    const DeviceMemory heads(kItems * kShape.kv_heads * sizeof(EncodedHead));
    const DeviceMemory encode_items = Upload(encode), requantize_items = Upload(requantize),
                       decode_items = Upload(decode);
    const double bytes = static_cast<double>(kItems) * static_cast<double>(kRawBytes + CodedBytes(rung));
    const uint32_t codings = CodingBit(CodingOf(rung));
    AddSpeed("requantize raw16 to " + name, bytes, Seconds([&] {
               Check(cuda::LaunchRequantize({.items = requantize_items.As<RequantizeItem>(),
                                             .count = kItems,
                                             .heads_max = kShape.kv_heads,
                                             .heads = heads.As<EncodedHead>(),
                                             .codings = codings},
                                            nullptr));
             }));
    AddSpeed("encode pages to " + name, bytes, Seconds([&] {
               Check(cuda::LaunchEncode({.items = encode_items.As<EncodeItem>(),
                                         .count = kItems,
                                         .heads_max = kShape.kv_heads,
                                         .heads = heads.As<EncodedHead>(),
                                         .codings = codings},
                                        nullptr));
             }));
    AddSpeed("decode " + name + " to pages", bytes, Seconds([&] {
               Check(cuda::LaunchDecode({.items = decode_items.As<DecodeItem>(),
                                         .count = kItems,
                                         .heads_max = kShape.kv_heads,
                                         .codings = codings},
                                        nullptr));
             }));
  }
  void MeasureCut() {
    std::vector<CutItem> items;
    for (uint32_t i = 0; i < kItems; ++i) {
      items.push_back({.source = LayerAt<const uint8_t>(Coded(i), Rung::kKv4p),
                       .target = LayerAt(cut_.As<uint8_t>() + i * PlacesOf().all, Rung::kKv2p)});
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
    } forms[] = {{"FP16", kRawBytes},
                 {"kv8", CodedBytes(Rung::kKv8)},
                 {"kv4p", CodedBytes(Rung::kKv4p)},
                 {"kv2p", CodedBytes(Rung::kKv2p)}};
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

}  // namespace

std::vector<Measured> MeasureGpu() {
  std::vector<Measured> all = Bench().Run();
  for (const Measured& m : MeasureAttention()) all.push_back(m);
  return all;
}

}  // namespace kvtier
