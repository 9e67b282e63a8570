#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "kernels/layout.h"
#include "tiers/base/status.h"

namespace kvtier {

/// Real K, V and queries of a few layers of a small model (tests/data/README.md). Threads: any, once loaded.
class Fixture {
 public:
  /// Reads PREFIX.kv.f16, PREFIX.q.f16 and PREFIX.tokens.txt. Errors: those of the files; kDataLoss for odd
  /// sizes.
  static Result<Fixture> Load(const std::string& path_prefix);

  uint32_t layers() const { return kLayers; }
  uint32_t kv_heads() const { return kv_heads_; }
  uint32_t query_heads() const { return query_heads_; }
  uint32_t tokens() const { return kTokens; }
  uint32_t dim() const { return kDim; }
  /// Queries are those of the last tokens: [first_query_token, tokens).
  uint32_t first_query_token() const { return kTokens - kQueryTokens; }

  /// fp16 bits, [kv_heads][tokens][dim].
  const uint16_t* K(uint32_t layer) const { return Plane(layer, 0); }
  const uint16_t* V(uint32_t layer) const { return Plane(layer, 1); }
  /// fp16 bits, [query_heads][tokens - first_query_token][dim], before the 1/sqrt(dim) scale.
  const uint16_t* Q(uint32_t layer) const;
  std::span<const uint32_t> token_ids() const { return token_ids_; }

  /// Shape of a block of all layers.
  BlockShape Shape(uint16_t tokens, uint8_t nraw = 0, uint8_t nb = 0) const;
  /// Tokens [first_token, first_token + tokens) of all layers as RawLayerBytes lays them out, layer after
  /// layer.
  std::vector<std::byte> RawBlock(uint32_t first_token, uint32_t tokens) const;

 private:
  static constexpr uint32_t kLayers = 4, kTokens = 512, kDim = 64, kQueryTokens = 64;

  Fixture() = default;
  const uint16_t* Plane(uint32_t layer, uint32_t k_or_v) const;

  uint32_t kv_heads_ = 0;
  uint32_t query_heads_ = 0;
  std::vector<uint16_t> kv_;
  std::vector<uint16_t> q_;
  std::vector<uint32_t> token_ids_;
};

/// The whole file. Errors: kNotFound, kUnavailable.
Result<std::vector<std::byte>> ReadFileBytes(const std::string& path);

}  // namespace kvtier
