#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "tests/support/fixture.h"
#include "tiers/base/status.h"

namespace kvtier::quality {

/// K and V of one layer as numbers, [heads][tokens][dim].
struct LayerKv {
  uint32_t heads = 0, tokens = 0, dim = 0;
  std::vector<float> k, v;
};

/// A fixture's cache after it went through a way to store it.
struct Restored {
  std::vector<LayerKv> layers;
  uint64_t bytes = 0;  ///< stored, all metadata counted
};

/// A way to store a KV cache: one of ours, or one that ours are compared with.
struct Method {
  std::string name;
  std::function<Result<Restored>(const Fixture&)> restore;
};

/// A format on one layer: replaces K and V by what they decode to, returns the bits with all metadata.
struct LayerReference {
  std::string name;
  std::function<double(LayerKv&)> quantize;
};

/// All codecs of the table, through images of whole blocks, in the forms that model profiles choose from.
std::vector<Method> KvtierMethods();
/// Those of others, written here from their definitions. Heads have a multiple of 64 channels.
std::vector<LayerReference> LayerReferences();
std::vector<Method> ReferenceMethods();

/// Layer `layer` as it is.
LayerKv OriginalLayer(const Fixture& fixture, uint32_t layer);

}  // namespace kvtier::quality
