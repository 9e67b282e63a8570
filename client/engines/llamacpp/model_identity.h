#pragma once

#include "client/engines/llamacpp/llama_engine.h"
#include "client/engines/llamacpp/prefix_cache.h"

namespace kvtier::llamacpp {

/// What names this engine's KV in the daemon: the weights by the SHA-256 of their file, the shape of a token
/// by computing one. Reads the file once. Clears the sequences.
/// Errors: kUnimplemented, saying why the model's cache cannot go into kvtier: layers of unequal rows,
/// sliding windows, recurrent states, positions of several dimensions. kNotFound, kUnavailable: the file.
Result<ModelIdentity> IdentityOf(LlamaEngine& engine);

}  // namespace kvtier::llamacpp
