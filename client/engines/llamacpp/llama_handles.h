#pragma once

#include <memory>

// llama.cpp's own types, so that its header stays inside the sources that call it.
struct ggml_tensor;
struct llama_context;
struct llama_model;
struct llama_sampler;
struct llama_vocab;

namespace kvtier::llamacpp {

struct LlamaFree {
  void operator()(llama_context* context) const;
  void operator()(llama_model* model) const;
  void operator()(llama_sampler* sampler) const;
};
using LlamaContextPtr = std::unique_ptr<llama_context, LlamaFree>;
using LlamaModelPtr = std::unique_ptr<llama_model, LlamaFree>;
using LlamaSamplerPtr = std::unique_ptr<llama_sampler, LlamaFree>;

}  // namespace kvtier::llamacpp
