#include "client/src/query.h"

#include <algorithm>
#include <cstring>

#include "client/src/structs.h"

namespace kvtier::client {
namespace {

/// Of a block's first token, as the daemon has it: far enough from where sums of tokens overflow.
constexpr uint64_t kMaxPosition = uint64_t{1} << 40;

Status Invalid(const char* what) {
  return Status(Code::kInvalidArgument, std::string("query: ") + what);
}

Status CheckRefs(const Model& model, std::span<const kvtier_block_ref> refs) {
  const uint32_t tokens_per_block = model.spec.tokens_per_block;
  for (size_t i = 0; i < refs.size(); ++i) {
    const kvtier_block_ref& ref = refs[i];
    if (ref.tokens == 0 || ref.tokens > tokens_per_block)
      return Invalid("a block has too few or too many tokens");
    if (ref.position % tokens_per_block != 0)
      return Invalid("a block does not start at a multiple of tokens_per_block");
    if (ref.position > kMaxPosition) return Invalid("a block starts further on than any sequence is long");
    if (i == 0) continue;
    const kvtier_block_ref& before = refs[i - 1];
    if (before.tokens != tokens_per_block) return Invalid("only the last block may be a tail block");
    if (ref.position != before.position + tokens_per_block ||
        std::memcmp(ref.parent, before.key, KVTIER_KEY_BYTES) != 0) {
      return Invalid("blocks are not consecutive");
    }
  }
  return Status::Ok();
}

bool IsOwnTail(const Query& query, size_t matched, const v1::TailChild& child) {
  return query.tail != nullptr && matched == query.full.size() && child.tokens() == query.tail->tokens &&
         query.tail->position + query.tail->tokens <= query.limit &&
         std::memcmp(child.key().data(), query.tail->key, KVTIER_KEY_BYTES) == 0;
}

bool IsPrefix(const Query& query, size_t matched, const v1::TailChild& child) {
  const uint64_t position = query.PositionOf(matched);
  if (position + child.tokens() > std::min<uint64_t>(query.limit, query.tokens.size())) return false;
  const Key key = TailKey(query.ParentOf(matched), position, query.tokens.subspan(position, child.tokens()));
  return child.key() == key.AsStringView();
}

}  // namespace

Key KeyOf(const uint8_t (&bytes)[KVTIER_KEY_BYTES]) {
  Key key;
  std::memcpy(key.bytes.data(), bytes, KVTIER_KEY_BYTES);
  return key;
}

Key Query::ParentOf(size_t block) const {
  return block == 0 ? KeyOf(refs[0].parent) : KeyOf(refs[block - 1].key);
}

uint64_t Query::PositionOf(size_t block) const {
  return block == 0 ? refs[0].position : refs[block - 1].position + refs[block - 1].tokens;
}

Result<Query> CheckQuery(const Model& model, const kvtier_query* query) {
  if (query == nullptr) return Invalid("it is NULL");
  KVTIER_TRY(StructOf(query, "query").status());
  if (query->refs == nullptr || query->count == 0) return Invalid("it names no block");
  if (query->tokens == nullptr && query->n_tokens != 0) return Invalid("tokens is NULL");
  Query checked;
  checked.refs = {query->refs, query->count};
  KVTIER_TRY(CheckRefs(model, checked.refs));
  if (query->tokens != nullptr) checked.tokens = {query->tokens, query->n_tokens};

  const kvtier_block_ref& last = checked.refs.back();
  const uint64_t end = last.position + last.tokens;
  if (!checked.tokens.empty() && checked.tokens.size() < end)
    return Invalid("tokens end before the last block does");
  checked.limit = checked.tokens.empty() ? end : checked.tokens.size();
  if (query->before_last_token != 0) --checked.limit;

  if (last.tokens < model.spec.tokens_per_block) checked.tail = &last;
  size_t full = checked.refs.size() - (checked.tail != nullptr ? 1 : 0);
  while (full > 0 && checked.PositionOf(full) > checked.limit) --full;
  checked.full = checked.refs.first(full);
  return checked;
}

std::string PackKeys(std::span<const kvtier_block_ref> refs) {
  std::string packed;
  packed.resize(refs.size() * KVTIER_KEY_BYTES);
  for (size_t i = 0; i < refs.size(); ++i)
    std::memcpy(&packed[i * KVTIER_KEY_BYTES], refs[i].key, KVTIER_KEY_BYTES);
  return packed;
}

std::string KeysToAsk(const Query& query, std::span<const kvtier_block_ref> full) {
  return full.empty() ? std::string(query.ParentOf(0).AsStringView()) : PackKeys(full);
}

std::optional<size_t> ChooseTail(const Query& query, size_t matched, std::span<const v1::TailChild> tails) {
  std::optional<size_t> best;
  for (size_t i = 0; i < tails.size(); ++i) {
    const v1::TailChild& child = tails[i];
    if (child.key().size() != KVTIER_KEY_BYTES || child.tokens() == 0) continue;
    if (best.has_value() && tails[*best].tokens() >= child.tokens()) continue;
    if (IsOwnTail(query, matched, child) || (!query.tokens.empty() && IsPrefix(query, matched, child)))
      best = i;
  }
  return best;
}

}  // namespace kvtier::client
