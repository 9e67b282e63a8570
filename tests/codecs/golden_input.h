#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "kernels/layout.h"
#include "tests/codecs/golden_cases.h"
#include "tests/support/fixture.h"

namespace kvtier {

inline BlockShape ShapeOf(const GoldenCase& golden, const Fixture& fixture) {
  BlockShape shape = fixture.Shape(golden.tokens, golden.nraw, golden.nb);
  shape.layers = 1;
  if (golden.merged_dim != 0) {
    shape.kv_heads = 1;
    shape.k_dim = shape.v_dim = golden.merged_dim;
  }
  return shape;
}

/// As RawLayerBytes lays it out.
inline std::vector<std::byte> RawOf(const GoldenCase& golden, const Fixture& fixture) {
  const BlockShape shape = ShapeOf(golden, fixture);
  std::vector<uint16_t> raw;
  for (const uint16_t* plane : {fixture.K(golden.fixture_layer), fixture.V(golden.fixture_layer)}) {
    for (uint32_t head = 0; head < shape.kv_heads; ++head) {
      for (uint32_t token = 0; token < shape.tokens; ++token) {
        for (uint32_t c = 0; c < shape.k_dim; ++c) {
          const uint32_t source_head = head + c / fixture.dim();
          const uint64_t row = uint64_t{source_head} * fixture.tokens() + golden.first_token + token;
          raw.push_back(plane[row * fixture.dim() + c % fixture.dim()]);
        }
      }
    }
  }
  std::vector<std::byte> bytes(raw.size() * 2);
  memcpy(bytes.data(), raw.data(), bytes.size());
  return bytes;
}

}  // namespace kvtier
