#include "client/engines/llamacpp/llama_token_engine.h"

#include <llama.h>

#include "tiers/base/check.h"

namespace kvtier::llamacpp {
namespace {

LlamaSamplerPtr MakeSampler(const Sampling& sampling) {
  LlamaSamplerPtr chain(llama_sampler_chain_init(llama_sampler_chain_default_params()));
  KVTIER_CHECK(chain != nullptr);
  const auto add = [&](llama_sampler* sampler) { llama_sampler_chain_add(chain.get(), sampler); };
  if (sampling.temperature <= 0) {
    add(llama_sampler_init_greedy());
    return chain;
  }
  if (sampling.top_k > 0) add(llama_sampler_init_top_k(sampling.top_k));
  if (sampling.top_p < 1) add(llama_sampler_init_top_p(sampling.top_p, 1));
  add(llama_sampler_init_temp(sampling.temperature));
  add(llama_sampler_init_dist(sampling.seed));
  return chain;
}

}  // namespace

LlamaTokenEngine::LlamaTokenEngine(LlamaEngine& engine)
    : engine_(engine), text_(engine.model()), samplers_(engine.options().sequences) {}

void LlamaTokenEngine::Begin(uint32_t sequence, const Sampling& sampling) {
  engine_.Clear(sequence);
  samplers_[sequence] = MakeSampler(sampling);
}

int32_t LlamaTokenEngine::Choose(uint32_t sequence, uint32_t index) {
  return llama_sampler_sample(samplers_[sequence].get(), engine_.context(), static_cast<int32_t>(index));
}

}  // namespace kvtier::llamacpp
