#include "client/engines/llamacpp/model_identity.h"

#include <fcntl.h>
#include <llama.h>
#include <openssl/evp.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <memory>

#include "tiers/base/unique_fd.h"

namespace kvtier::llamacpp {
namespace {

std::string Hex(std::span<const uint8_t> bytes) {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  for (const uint8_t byte : bytes) {
    text += kDigits[byte >> 4];
    text += kDigits[byte & 15];
  }
  return text;
}

Result<std::string> Sha256OfFile(const std::string& path) {
  const UniqueFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (file.get() < 0) return StatusFromErrno(errno, "open " + path);
  const std::unique_ptr<EVP_MD_CTX, decltype(&EVP_MD_CTX_free)> digest(EVP_MD_CTX_new(), &EVP_MD_CTX_free);
  if (digest == nullptr || EVP_DigestInit_ex(digest.get(), EVP_sha256(), nullptr) != 1)
    return Status(Code::kInternal, "no SHA-256");
  std::vector<uint8_t> buffer(size_t{1} << 20);
  for (;;) {
    const ssize_t bytes = ::read(file.get(), buffer.data(), buffer.size());
    if (bytes < 0 && errno == EINTR) continue;
    if (bytes < 0) return StatusFromErrno(errno, "read " + path);
    if (bytes == 0) break;
    if (EVP_DigestUpdate(digest.get(), buffer.data(), static_cast<size_t>(bytes)) != 1)
      return Status(Code::kInternal, "SHA-256 failed");
  }
  std::array<uint8_t, 32> value{};
  if (EVP_DigestFinal_ex(digest.get(), value.data(), nullptr) != 1)
    return Status(Code::kInternal, "SHA-256 failed");
  return Hex(value);
}

std::string MetaText(const llama_model* model, const char* key) {
  std::array<char, 256> text{};
  return llama_model_meta_val_str(model, key, text.data(), text.size()) > 0 ? text.data() : "";
}

Status CheckKind(const llama_model* model) {
  const auto refuse = [](const char* why) { return Status(Code::kUnimplemented, why); };
  if (llama_model_is_recurrent(model) || llama_model_is_hybrid(model))
    return refuse("the model has recurrent states besides K and V");
  if (llama_model_n_swa(model) > 0) return refuse("the model has layers with a sliding window");
  const llama_rope_type rope = llama_model_rope_type(model);
  if (rope == LLAMA_ROPE_TYPE_MROPE || rope == LLAMA_ROPE_TYPE_IMROPE || rope == LLAMA_ROPE_TYPE_VISION)
    return refuse("the model's positions have several dimensions");
  return Status::Ok();
}

/// The state of one token tells what it is made of.
Result<SeqShape> ProbeShape(LlamaEngine& engine) {
  for (uint32_t sequence = 0; sequence < engine.options().sequences; ++sequence) engine.Clear(sequence);
  const BatchToken probe{.token = 0, .position = 0, .sequence = 0, .wants_logits = true};
  KVTIER_TRY(engine.Decode({&probe, 1}));
  const Result<std::vector<std::byte>> state = engine.Memory(0).Save(0, 1);
  engine.Clear(0);
  KVTIER_TRY(state.status());
  const Result<SeqShape> shape = ReadSeqShape(*state);
  if (!shape.ok()) return Status(Code::kUnimplemented, shape.status().message());
  return shape;
}

}  // namespace

Result<ModelIdentity> IdentityOf(LlamaEngine& engine) {
  const llama_model* const model = engine.model();
  KVTIER_TRY(CheckKind(model));
  ModelIdentity identity;
  KVTIER_ASSIGN(identity.shape, ProbeShape(engine));
  const auto heads = static_cast<uint32_t>(llama_model_n_head_kv(model));
  if (heads == 0 || identity.shape.row_bytes % (2 * heads) != 0)
    return Status(Code::kUnimplemented, "the model's rows are not made of whole heads");
  identity.heads = {.kv_heads = heads, .head_dim = identity.shape.row_bytes / (2 * heads)};
  identity.model_id = MetaText(model, "general.architecture") + "/" + MetaText(model, "general.name");
  KVTIER_ASSIGN(identity.revision, Sha256OfFile(engine.options().model_path));
  // RoPE as the file says, which the revision covers; the version, since another one may compute differently.
  identity.config_digest = std::string("llama.cpp ") + llama_version() + ", fp16, flash attention";
  return identity;
}

}  // namespace kvtier::llamacpp
