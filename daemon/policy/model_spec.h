#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "codecs/codec.h"
#include "kernels/layout.h"
#include "tiers/base/status.h"

namespace kvtier {

/// Everything besides tokens that changes K/V bytes, as an engine registers it. Every field is part of the
/// namespace.
struct ModelSpec {
  std::string model_id;
  std::string revision;       ///< of the weights
  std::string lora;           ///< LoRA id and version, empty for none
  std::string config_digest;  ///< RoPE scaling and whatever else changes K or V
  std::string kv_scales;      ///< ids of quantization scales of the engine's own cache, empty for none
  std::string
      layout_id;  ///< the engine's own name for how it lays KV out; another layout is another namespace
  uint32_t layer_group = 0;
  uint16_t layers = 0, kv_heads = 0, k_dim = 0, v_dim = 0;
  DType dtype = DType::kFp16;
  uint32_t tokens_per_block = 128;  ///< 64 or 128
  struct Shard {
    uint32_t rank = 0, size = 1;
    friend bool operator==(const Shard&, const Shard&) = default;
  };
  Shard tensor, pipeline, context;
  uint8_t first_raw_rows = 1;  ///< FP16 rows in the block at position 0, 1..4
  uint8_t boost_channels = 0;  ///< boosted K channels per head at INT2: a multiple of 4 (see DefaultBoost)
  Precision floor = Precision::kNone;
  /// By layer: what a number in FP8 is multiplied by, in the engine's cache and in FP8 destinations.
  /// Empty: 1.
  std::vector<float> k_scales, v_scales;

  friend bool operator==(const ModelSpec&, const ModelSpec&) = default;
};

/// Half of the K channels, rounded down to a multiple of 4 (CODECS.md: what keeps retrieval at INT2).
constexpr uint8_t DefaultBoost(uint32_t k_dim) {
  return static_cast<uint8_t>(k_dim / 8 * 4);
}

/// Shape of the block of `tokens` tokens at `first_position`: nraw rows only at position 0 and at most
/// `tokens`.
BlockShape ShapeOf(const ModelSpec& spec, uint64_t first_position, uint16_t tokens);

/// Of FP8 numbers of one layer.
Fp8Scales ScalesOf(const ModelSpec& spec, size_t layer);

/// Errors: kInvalidArgument naming the field; kUnimplemented for what this version does not store (MLA
/// layouts, FP32).
Status ValidateModelSpec(const ModelSpec& spec);

/// For the index on disk: a versioned, length-prefixed form of tenant and spec, and back.
std::string SerializeModel(std::string_view tenant, const ModelSpec& spec);
struct StoredModel {
  std::string tenant;
  ModelSpec spec;
};
Result<StoredModel> ParseModel(std::string_view fields);

}  // namespace kvtier
