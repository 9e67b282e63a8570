#include "client/engines/llamacpp/llama_engine.h"

#include <llama.h>

#include <atomic>
#include <cstdio>

#include "client/engines/llamacpp/huge_pages.h"
#include "client/engines/llamacpp/seq_state.h"
#include "tiers/base/check.h"

namespace kvtier::llamacpp {

static_assert(LLAMA_STATE_SEQ_VERSION == kSeqStateVersion, "another format of sequence states");
static_assert(GGML_TYPE_F16 == kFp16Type);
static_assert(sizeof(llama_token) == sizeof(int32_t) && sizeof(llama_pos) == sizeof(int32_t));

void LlamaFree::operator()(llama_context* context) const {
  llama_free(context);
}
void LlamaFree::operator()(llama_model* model) const {
  llama_model_free(model);
}
void LlamaFree::operator()(llama_sampler* sampler) const {
  llama_sampler_free(sampler);
}

namespace {

/// Moves states through a sequence that nobody decodes: a state that is set replaces a sequence, and cells of
/// one sequence become those of another without a copy.
class EngineSequence final : public SequenceMemory {
 public:
  EngineSequence(llama_context* context, llama_seq_id sequence, llama_seq_id scratch)
      : context_(context), memory_(llama_get_memory(context)), sequence_(sequence), scratch_(scratch) {}

  Result<std::vector<std::byte>> Save(int32_t first, uint32_t tokens) override {
    llama_memory_seq_cp(memory_, sequence_, scratch_, first, first + static_cast<int32_t>(tokens));
    std::vector<std::byte> bytes(llama_state_seq_get_size(context_, scratch_));
    const size_t written =
        llama_state_seq_get_data(context_, reinterpret_cast<uint8_t*>(bytes.data()), bytes.size(), scratch_);
    DropScratch();
    if (written == 0 || written != bytes.size())
      return Status(Code::kInternal, "llama.cpp did not save a sequence");
    return bytes;
  }

  Status Append(std::span<const std::byte> state) override {
    const size_t read = llama_state_seq_set_data(context_, reinterpret_cast<const uint8_t*>(state.data()),
                                                 state.size(), scratch_);
    const bool whole = read == state.size();
    if (whole) llama_memory_seq_cp(memory_, scratch_, sequence_, -1, -1);
    DropScratch();
    if (!whole) return Status(Code::kResourceExhausted, "llama.cpp did not take a sequence's state");
    return Status::Ok();
  }

  void Truncate(uint32_t tokens) override {
    llama_memory_seq_rm(memory_, sequence_, static_cast<llama_pos>(tokens), -1);
  }

 private:
  void DropScratch() { llama_memory_seq_rm(memory_, scratch_, -1, -1); }

  llama_context* const context_;
  const llama_memory_t memory_;
  const llama_seq_id sequence_, scratch_;
};

/// A batch of llama.cpp over arrays of ours.
class Batch {
 public:
  explicit Batch(std::span<const BatchToken> tokens) : counts_(tokens.size(), 1), ids_(tokens.size()) {
    for (const BatchToken& token : tokens) {
      tokens_.push_back(token.token);
      positions_.push_back(token.position);
      sequences_.push_back(static_cast<llama_seq_id>(token.sequence));
      logits_.push_back(token.wants_logits ? 1 : 0);
    }
    for (size_t i = 0; i < ids_.size(); ++i) ids_[i] = &sequences_[i];
  }
  llama_batch Get() {
    return {.n_tokens = static_cast<int32_t>(tokens_.size()),
            .token = tokens_.data(),
            .embd = nullptr,
            .pos = positions_.data(),
            .n_seq_id = counts_.data(),
            .seq_id = ids_.data(),
            .logits = logits_.data()};
  }

 private:
  std::vector<llama_token> tokens_;
  std::vector<llama_pos> positions_;
  std::vector<int32_t> counts_;
  std::vector<llama_seq_id> sequences_;
  std::vector<llama_seq_id*> ids_;
  std::vector<int8_t> logits_;
};

ggml_type TypeOf(CacheType type) {
  switch (type) {
    case CacheType::kQ8_0:
      return GGML_TYPE_Q8_0;
    case CacheType::kQ4_0:
      return GGML_TYPE_Q4_0;
    default:
      return GGML_TYPE_F16;
  }
}

llama_context_params ContextParams(const EngineOptions& options) {
  llama_context_params params = llama_context_default_params();
  params.n_ctx = options.sequences * options.sequence_tokens;
  params.n_batch = params.n_ubatch = options.batch_tokens;
  params.n_seq_max = options.sequences + 1;  // and the scratch sequence
  params.n_threads = params.n_threads_batch = static_cast<int32_t>(options.threads);
  params.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_ENABLED;
  params.type_k = params.type_v = TypeOf(options.cache_type);
  params.kv_unified = true;
  params.cb_eval = options.on_node;
  params.cb_eval_user_data = options.on_node_state;
  return params;
}

void LogWarnings(ggml_log_level level, const char* text, void* /*unused*/) {
  static std::atomic<ggml_log_level> last = GGML_LOG_LEVEL_INFO;
  if (level != GGML_LOG_LEVEL_CONT) last = level;
  if (last == GGML_LOG_LEVEL_WARN || last == GGML_LOG_LEVEL_ERROR) std::fputs(text, stderr);
}

}  // namespace

void QuietLlamaLog() {
  llama_log_set(LogWarnings, nullptr);
}

Result<std::unique_ptr<LlamaEngine>> LlamaEngine::Make(const EngineOptions& options) {
  if (options.sequences == 0 || options.sequences >= llama_max_parallel_sequences())
    return Status(Code::kInvalidArgument, "llama.cpp has not so many sequences");
  llama_backend_init();
  std::unique_ptr<LlamaEngine> engine(new LlamaEngine(options));
  llama_model_params params = llama_model_default_params();
  params.n_gpu_layers = 0;
  engine->model_.reset(llama_model_load_from_file(options.model_path.c_str(), params));
  if (engine->model_ == nullptr)
    return Status(Code::kInvalidArgument, "llama.cpp cannot load " + options.model_path);
  if (!llama_model_has_decoder(engine->model_.get()) || llama_model_has_encoder(engine->model_.get()))
    return Status(Code::kInvalidArgument, "the model does not only generate text");
  engine->context_.reset(llama_init_from_model(engine->model_.get(), ContextParams(options)));
  if (engine->context_ == nullptr)
    return Status(Code::kInvalidArgument, "llama.cpp cannot make a context for " + options.model_path);
  UseHugePages();
  for (uint32_t i = 0; i < options.sequences; ++i) {
    engine->memories_.push_back(std::make_unique<EngineSequence>(
        engine->context_.get(), static_cast<llama_seq_id>(i), static_cast<llama_seq_id>(options.sequences)));
  }
  return engine;
}

LlamaEngine::~LlamaEngine() = default;

uint32_t LlamaEngine::Length(uint32_t sequence) const {
  return static_cast<uint32_t>(
      llama_memory_seq_pos_max(llama_get_memory(context_.get()), static_cast<llama_seq_id>(sequence)) + 1);
}

void LlamaEngine::Clear(uint32_t sequence) {
  llama_memory_seq_rm(llama_get_memory(context_.get()), static_cast<llama_seq_id>(sequence), -1, -1);
}

Status LlamaEngine::Decode(std::span<const BatchToken> batch) {
  KVTIER_CHECK(!batch.empty() && batch.size() <= options_.batch_tokens);
  constexpr int32_t kDone = 0, kNoCells = 1;
  switch (const int32_t outcome = llama_decode(context_.get(), Batch(batch).Get())) {
    case kDone:
      return Status::Ok();
    case kNoCells:
      return Status(Code::kResourceExhausted, "the engine's cache is full");
    default:
      return Status(Code::kInternal, "llama.cpp failed to decode: " + std::to_string(outcome));
  }
}

std::span<const float> LlamaEngine::Logits(uint32_t index) const {
  const float* logits = llama_get_logits_ith(context_.get(), static_cast<int32_t>(index));
  KVTIER_CHECK(logits != nullptr);
  return {logits, static_cast<size_t>(llama_vocab_n_tokens(llama_model_get_vocab(model_.get())))};
}

}  // namespace kvtier::llamacpp
