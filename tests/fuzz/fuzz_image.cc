// libFuzzer: an arbitrary image is refused, or parsed and decoded within its memory.
#include "tests/fuzz/inputs.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  kvtier::DecodeArbitraryImage(std::as_bytes(std::span(data, size)));
  return 0;
}
