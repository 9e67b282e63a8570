#pragma once

#include <cstdlib>
#include <string>

namespace kvtier::llamacpp {

/// $KVTIER_TEST_MODEL, else SmolLM2-135M-Instruct where deploy/fetch-llamacpp.sh has put it. A test that has
/// been built without it fails.
inline std::string TestModel() {
  if (const char* const chosen = std::getenv("KVTIER_TEST_MODEL")) return chosen;
  const char* const cache = std::getenv("KVTIER_CACHE");
  const char* const home = std::getenv("HOME");
  const std::string folder =
      cache != nullptr ? cache : std::string(home != nullptr ? home : "") + "/.cache/kvtier";
  return folder + "/models/SmolLM2-135M-Instruct.Q4_1.gguf";
}

}  // namespace kvtier::llamacpp
