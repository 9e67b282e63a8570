#include "tests/eval/model_run.h"

#include <llama.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>

#include "client/engines/llamacpp/llama_text.h"
#include "tiers/base/check.h"

namespace kvtier::eval {

using llamacpp::BatchToken;
using llamacpp::LlamaEngine;

Result<std::string> MakeFp32Model(const std::string& model_path) {
  const std::string path = model_path + ".fp32", part = path + "." + std::to_string(::getpid());
  std::error_code error;
  const auto made = std::filesystem::last_write_time(path, error);
  if (!error && made >= std::filesystem::last_write_time(model_path, error)) return path;
  llama_backend_init();
  llama_model_quantize_params params = llama_model_quantize_default_params();
  params.ftype = LLAMA_FTYPE_ALL_F32;
  params.allow_requantize = true;
  const bool written = llama_model_quantize(model_path.c_str(), part.c_str(), &params) == 0;
  if (written) std::filesystem::rename(part, path, error);
  if (written && !error) return path;
  std::filesystem::remove(part, error);
  return Status(Code::kInvalidArgument, "llama.cpp cannot widen " + model_path);
}

Result<std::unique_ptr<ModelRun>> ModelRun::Make(const Options& options) {
  std::unique_ptr<ModelRun> run(new ModelRun());
  KVTIER_ASSIGN(run->engine_, LlamaEngine::Make({.model_path = options.model_path,
                                                 .sequences = 1,
                                                 .sequence_tokens = options.tokens,
                                                 .batch_tokens = options.batch_tokens,
                                                 .threads = options.threads,
                                                 .cache_type = options.cache_type,
                                                 .on_node = AttendHook::OnNode,
                                                 .on_node_state = &run->hook_}));
  return run;
}

Result<std::vector<int32_t>> ModelRun::Tokenize(const std::string& text) const {
  return llamacpp::LlamaText(engine_->model()).Tokenize(text);
}

Status ModelRun::Prefill(std::span<const int32_t> context) {
  engine_->Clear(0);
  const size_t batch_tokens = engine_->options().batch_tokens;
  for (size_t from = 0; from < context.size(); from += batch_tokens) {
    std::vector<BatchToken> batch;
    for (size_t i = from; i < std::min(context.size(), from + batch_tokens); ++i)
      batch.push_back({.token = context[i], .position = static_cast<int32_t>(i)});
    KVTIER_TRY(engine_->Decode(batch));
  }
  return Status::Ok();
}

Result<std::vector<std::byte>> ModelRun::Save() {
  return engine_->Memory(0).Save(0, engine_->Length(0));
}

Result<ContextKv> ModelRun::SaveContext() {
  KVTIER_ASSIGN(std::vector<std::byte> state, Save());
  KVTIER_ASSIGN(const llamacpp::SeqShape shape, llamacpp::ReadSeqShape(state));
  const auto heads = static_cast<uint32_t>(llama_model_n_head_kv(engine_->model()));
  if (heads == 0 || shape.row_bytes % (2 * heads) != 0)
    return Status(Code::kUnimplemented, "the model's rows are not made of whole heads");
  return ContextKv::Make(std::move(state), {.kv_heads = heads, .head_dim = shape.row_bytes / (2 * heads)});
}

Status ModelRun::Load(const ContextKv& context) {
  engine_->Clear(0);
  return engine_->Memory(0).Append(context.state());
}

Result<std::vector<float>> ModelRun::Continue(std::span<const int32_t> tokens, uint32_t scored) {
  KVTIER_CHECK(scored > 0 && scored <= tokens.size());
  const uint32_t context = engine_->Length(0);
  const size_t first_scored = tokens.size() - scored;
  std::vector<BatchToken> batch;
  for (size_t i = 0; i < tokens.size(); ++i)
    batch.push_back({.token = tokens[i],
                     .position = static_cast<int32_t>(context + i),
                     .sequence = 0,
                     .wants_logits = i >= first_scored});
  KVTIER_TRY(engine_->Decode(batch));
  std::vector<float> logits;
  for (size_t i = first_scored; i < tokens.size(); ++i) {
    const std::span<const float> row = engine_->Logits(static_cast<uint32_t>(i));
    if (logits.empty()) logits.reserve(row.size() * scored);
    logits.insert(logits.end(), row.begin(), row.end());
  }
  engine_->Memory(0).Truncate(context);
  return logits;
}

Result<std::vector<float>> ModelRun::ContinueOn(std::span<const StoredBlock> blocks,
                                                std::span<const int32_t> tokens, uint32_t scored) {
  hook_.Start(blocks);
  Result<std::vector<float>> logits = Continue(tokens, scored);
  const Status attended = hook_.Finish();
  KVTIER_TRY(logits.status());
  KVTIER_TRY(attended);
  return logits;
}

}  // namespace kvtier::eval
