#pragma once

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "tests/eval/context_kv.h"
#include "tests/support/blocks.h"

namespace kvtier::eval {

/// A block of a context as the daemon stores it.
struct StoredBlock {
  OwnedImage owned;
  ImageView image;  ///< of it; its first_position is the block's first token
};
/// All metadata counted.
double BitsOf(std::span<const StoredBlock> blocks);
using EncodeBlocks = std::function<Result<std::vector<StoredBlock>>(ContextKv&)>;

/// A way to store a context.
struct Method {
  std::string name;
  /// Replaces K and V by what comes back; returns the bits stored, all metadata counted. Errors: the codec's.
  std::function<Result<double>(ContextKv&)> store;
  /// The blocks that `store` reads back, in order, from the first token to the last; empty for formats of
  /// others.
  EncodeBlocks encode = {};
};

/// Blocks that are taken through images as the daemon makes them: every rung, and the default ladder with a
/// quarter of the blocks on each of its rungs, the first ones highest, since the daemon moves a sequence's
/// last blocks down first. Then the formats of others.
std::vector<Method> AllMethods();

/// The method that has to change nothing.
inline constexpr const char kExactMethod[] = "raw16";
/// Behind the name of a method whose blocks the model attends to as they are stored, instead of reading them
/// back.
inline constexpr const char kAttended[] = ", attended";

/// llama.cpp's own quantized caches, which the engine runs on instead of storing a context.
inline constexpr const char kQ8Cache[] = "q8_0 cache";
inline constexpr const char kQ4Cache[] = "q4_0 cache";

/// Of everything that can bring a context back.
std::vector<std::string> MethodNames();
/// Of everything that the model can attend to as it is stored.
std::vector<std::string> AttendedNames();

/// Of two methods: the first is to cost less KL with fewer bits.
struct Rule {
  const char* better;
  const char* worse;
  size_t least_tokens;  ///< scored ones; fewer do not tell these two apart
};
std::vector<Rule> Rules();

}  // namespace kvtier::eval
