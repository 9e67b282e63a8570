#include "daemon/policy/keys.h"

#include <openssl/evp.h>

#include <algorithm>
#include <bit>
#include <memory>
#include <type_traits>

#include "daemon/policy/model_fields.h"
#include "tiers/base/check.h"

namespace kvtier {
namespace {

constexpr uint32_t kKeyFormatVersion = 2;

static_assert(std::endian::native == std::endian::little, "fields are hashed as they lie in memory");

/// SHA-256 over fields, each preceded by its size as u32: no two lists of fields give the same bytes.
/// Threads: single-owner.
class FieldHasher {
 public:
  FieldHasher() : context_(EVP_MD_CTX_new()) {
    KVTIER_CHECK(context_ != nullptr);
    KVTIER_CHECK(EVP_DigestInit_ex2(context_.get(), EVP_sha256(), nullptr) == 1);
  }

  /// Starts over: asking for the algorithm again would cost as much as hashing a block.
  void Restart() { KVTIER_CHECK(EVP_DigestInit_ex2(context_.get(), nullptr, nullptr) == 1); }
  void Bytes(const void* data, size_t bytes) {
    const auto size = static_cast<uint32_t>(bytes);
    KVTIER_CHECK(size == bytes);
    Update(&size, sizeof(size));
    Update(data, bytes);
  }
  void String(std::string_view text) { Bytes(text.data(), text.size()); }
  void U32(uint32_t value) { Bytes(&value, sizeof(value)); }
  void U64(uint64_t value) { Bytes(&value, sizeof(value)); }
  template <typename Tag>
  void Digest(const Digest256<Tag>& digest) {
    Bytes(digest.bytes.data(), digest.bytes.size());
  }

  template <typename DigestType>
  DigestType Finish() {
    DigestType out;
    KVTIER_CHECK(
        EVP_DigestFinal_ex(context_.get(), reinterpret_cast<unsigned char*>(out.bytes.data()), nullptr) == 1);
    return out;
  }

 private:
  struct FreeContext {
    void operator()(EVP_MD_CTX* context) const { EVP_MD_CTX_free(context); }
  };
  void Update(const void* data, size_t bytes) {
    KVTIER_CHECK(EVP_DigestUpdate(context_.get(), data, bytes) == 1);
  }

  std::unique_ptr<EVP_MD_CTX, FreeContext> context_;
};

/// Size and content of the "extra" field: per item its id, then its offset as u32.
void HashExtra(FieldHasher& hasher, std::span<const ExtraItem> extra) {
  constexpr size_t kItemBytes = sizeof(ExtraItem::item_id) + sizeof(ExtraItem::offset);
  static_assert(sizeof(ExtraItem) == kItemBytes && std::is_trivially_copyable_v<ExtraItem>);
  hasher.Bytes(extra.data(), extra.size_bytes());
}

Key HashTokens(FieldHasher& hasher, std::string_view tag, const Key& parent, uint64_t position,
               std::span<const int32_t> tokens, std::span<const ExtraItem> extra) {
  hasher.String(tag);
  hasher.Digest(parent);
  hasher.U64(position);
  hasher.Bytes(tokens.data(), tokens.size_bytes());
  HashExtra(hasher, extra);
  return hasher.Finish<Key>();
}

constexpr std::string_view kBlockTag = "block", kTailTag = "tail";

}  // namespace

NamespaceDigest ComputeNamespace(std::string_view tenant, const ModelSpec& spec) {
  FieldHasher hasher;
  hasher.String("ns");
  hasher.String(tenant);
  ForEachField(spec, [&hasher](const auto& field) {
    using Field = std::decay_t<decltype(field)>;
    if constexpr (std::is_same_v<Field, std::string>) {
      hasher.String(field);
    } else if constexpr (std::is_same_v<Field, std::vector<float>>) {
      hasher.Bytes(field.data(), field.size() * sizeof(float));
    } else {
      hasher.U32(static_cast<uint32_t>(field));
    }
  });
  hasher.U32(kKeyFormatVersion);
  return hasher.Finish<NamespaceDigest>();
}

Key RootKey(const NamespaceDigest& name_space) {
  return Key{name_space.bytes};
}

Key BlockKey(const Key& parent, uint64_t position, std::span<const int32_t> tokens,
             std::span<const ExtraItem> extra) {
  FieldHasher hasher;
  return HashTokens(hasher, kBlockTag, parent, position, tokens, extra);
}

Key TailKey(const Key& parent, uint64_t position, std::span<const int32_t> tokens,
            std::span<const ExtraItem> extra) {
  FieldHasher hasher;
  return HashTokens(hasher, kTailTag, parent, position, tokens, extra);
}

Key ForeignKey(const NamespaceDigest& name_space, std::string_view engine_hash) {
  FieldHasher hasher;
  hasher.String("foreign");
  hasher.Digest(name_space);
  hasher.String(engine_hash);
  return hasher.Finish<Key>();
}

std::vector<BlockRef> ChainKeys(const NamespaceDigest& name_space, uint32_t tokens_per_block,
                                std::span<const int32_t> tokens) {
  KVTIER_CHECK(tokens_per_block > 0 && tokens_per_block <= kMaxTokens);
  std::vector<BlockRef> chain;
  chain.reserve((tokens.size() + tokens_per_block - 1) / tokens_per_block);
  FieldHasher hasher;
  Key parent = RootKey(name_space);
  for (size_t at = 0; at < tokens.size(); at += tokens_per_block) {
    const auto block = tokens.subspan(at, std::min<size_t>(tokens_per_block, tokens.size() - at));
    if (at > 0) hasher.Restart();
    const std::string_view tag = block.size() == tokens_per_block ? kBlockTag : kTailTag;
    const Key key = HashTokens(hasher, tag, parent, at, block, {});
    chain.push_back(
        {.key = key, .parent = parent, .position = at, .tokens = static_cast<uint16_t>(block.size())});
    parent = key;
  }
  return chain;
}

}  // namespace kvtier
