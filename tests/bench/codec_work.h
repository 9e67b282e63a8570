#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "codecs/codec.h"
#include "tiers/base/aligned_buffer.h"

namespace kvtier::bench {

/// How a destination lies in memory, and what it holds.
enum class Destination : uint8_t { kContiguous, kPaged, kRotatedV, kBf16, kFp32, kE4m3 };
inline constexpr Destination kDestinations[] = {Destination::kContiguous, Destination::kPaged,
                                                Destination::kRotatedV,   Destination::kBf16,
                                                Destination::kFp32,       Destination::kE4m3};
const char* DestinationName(Destination destination);

struct Shape {
  uint16_t heads, dim, tokens;
};
/// What is measured, the usual shape first.
inline constexpr Shape kCodecShapes[] = {{8, 128, 128}, {8, 128, 64}, {3, 64, 64}, {2, 64, 128}};
std::string ShapeName(const Shape& shape);
/// Types of elements that `codec` is measured with, the usual one first.
std::vector<DType> SourcesOf(const Codec& codec);
/// One layer of such a type for `codec`: half of the K channels boosted where it has a boost.
BlockShape LayerShapeOf(const Codec& codec, const Shape& shape, DType source);

/// Layers [first, first + count).
struct LayerRun {
  uint32_t first, count;
};

/// `layers` layers of one shape, many enough to fill a working set: their source, their encodings as they lie
/// in images, and room for what is made of them. Layers are independent of each other: threads may share
/// them. Threads: one for Make; the rest any, one a layer.
class CodecWork {
 public:
  /// Fills source and encodings, touches the rest. `k_mean`: of K's 16-bit elements, in standard deviations.
  /// Errors: kResourceExhausted.
  static Result<CodecWork> Make(const Codec& codec, const BlockShape& shape, uint32_t layers,
                                float k_mean = 0);

  const Codec& codec() const { return *codec_; }
  uint32_t layers() const { return layers_; }
  /// The same K and V in FP16: what GB/s count.
  uint64_t fp16_bytes() const { return layers_ * fp16_layer_bytes_; }

  void Encode(uint32_t layer);
  void Decode(uint32_t layer, Destination destination, Stores stores);
  /// Decode, then the checksum of every part, as the client does.
  void DecodeAndVerify(uint32_t layer, Stores stores);
  /// The encoding in a lower rung of the same family, as the tiers do it: parts copied past the cache and
  /// checked, the boost gathered where it is new.
  void Cut(uint32_t layer, const Codec& to);
  /// Yardsticks: copies of as many bytes as Decode writes, the layers of one share in one call.
  void MemCopy(LayerRun run, Destination destination);
  void StreamCopy(LayerRun run, Destination destination);

  /// Everything written by Decode, and by Encode and Cut.
  std::span<const std::byte> decoded() const { return destination_bytes_; }
  std::span<const std::byte> encoded() const { return target_bytes_; }
  void ClearTargets();

 private:
  CodecWork() = default;
  Status Allocate();
  LayerParts PartsAt(std::span<std::byte> images, const Codec& codec, uint32_t layer) const;
  std::span<std::byte> Bytes(std::span<std::byte> memory, LayerRun run, Destination destination) const;
  ConstLayerParts Encoded(uint32_t layer) const;
  std::span<std::byte> SourceOf(uint32_t layer) const;
  KvLayerView ViewOf(uint32_t layer, Destination destination) const;

  const Codec* codec_ = nullptr;
  BlockShape shape_;  ///< of a layer: shape_.layers is 1
  uint32_t layers_ = 0;
  uint64_t fp16_layer_bytes_ = 0;
  uint64_t image_layer_bytes_ = 0;
  AlignedBuffer source_, images_, targets_, destination_;
  std::span<std::byte> source_bytes_, image_bytes_, target_bytes_, destination_bytes_;
  std::vector<uint32_t> crcs_;  ///< [layer][region]
  std::vector<int32_t> page_table_;
};

}  // namespace kvtier::bench
