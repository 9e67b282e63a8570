// libFuzzer: every codec decodes arbitrary bytes within its memory, the same on every SIMD level.
#include "tests/fuzz/inputs.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  kvtier::DecodeArbitraryParts(std::as_bytes(std::span(data, size)));
  return 0;
}
