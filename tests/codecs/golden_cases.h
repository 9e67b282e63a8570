#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace kvtier {

/// Where the input of a golden block lies in its fixture (tests/data/README.md).
struct GoldenCase {
  std::string name;
  std::string fixture;
  uint32_t fixture_layer;  ///< index among the fixture's four
  uint32_t first_token;
  uint16_t tokens;
  uint8_t nraw;
  uint8_t nb;
  /// 0: the heads as they are. Else one head of this many channels, the fixture's heads side by side.
  uint16_t merged_dim;
  std::vector<std::string> codecs;
};

inline std::vector<GoldenCase> GoldenCases() {
  const std::string smol = "smollm2-135m", qwen = "qwen2.5-coder-0.5b";
  return {
      {"smollm2-L14-b0", smol, 2, 0, 64, 1, 8, 0, {"kv4p", "kv42", "kv2p", "kv8"}},
      {"smollm2-L14-b3", smol, 2, 192, 64, 0, 8, 0, {"kv4p", "kv42", "kv2p"}},
      {"smollm2-L14-b3-nb32", smol, 2, 192, 64, 0, 32, 0, {"kv2p"}},
      {"qwen-L0-b1", qwen, 0, 64, 64, 0, 8, 0, {"kv4p", "kv42", "kv2p", "kv8"}},
      {"qwen-L0-T128-nb32", qwen, 0, 128, 128, 0, 32, 0, {"kv4p", "kv2p"}},
      {"smollm2-L29-b6-tie", smol, 3, 384, 64, 0, 8, 0, {"kv2p"}},
      {"qwen-L12-b2-tie", qwen, 2, 128, 64, 0, 8, 0, {"kv2p"}},
      {"qwen-L23-b4-tie", qwen, 3, 256, 64, 0, 8, 0, {"kv2p"}},
      {"qwen-L12-T128", qwen, 2, 128, 128, 0, 16, 0, {"kv4p", "kv2p"}},
      {"qwen-L12-T36", qwen, 2, 64, 36, 0, 8, 0, {"kv4p", "kv2p"}},
      {"smollm2-L1-D192", smol, 1, 64, 64, 0, 24, 192, {"kv4p", "kv2p"}},
      {"smollm2-L1-D192-nb96", smol, 1, 64, 64, 0, 96, 192, {"kv2p"}},
      {"qwen-L23-D80-raw4", qwen, 3, 0, 64, 4, 8, 80, {"kv4p", "kv2p"}},
  };
}

}  // namespace kvtier
