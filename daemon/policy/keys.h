#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "daemon/policy/model_spec.h"
#include "tiers/base/ids.h"

namespace kvtier {

/// Keys are SHA-256 over domain-tagged, length-prefixed fields (codecs/FORMAT.md, "Keys"). Pure; any thread.

/// namespace = H("ns", tenant, every field of the spec, format version).
NamespaceDigest ComputeNamespace(std::string_view tenant, const ModelSpec& spec);

/// The parent of block 0.
Key RootKey(const NamespaceDigest& name_space);

/// Multimodal items that overlap a block.
struct ExtraItem {
  std::array<std::byte, 32> item_id{};
  uint32_t offset = 0;  ///< token offset inside the block
};

/// key_i = H("block", parent, position, tokens, extra). `position` is that of tokens[0] in the sequence.
Key BlockKey(const Key& parent, uint64_t position, std::span<const int32_t> tokens,
             std::span<const ExtraItem> extra = {});
/// H("tail", ...) over 1 to tokens_per_block - 1 tokens.
Key TailKey(const Key& parent, uint64_t position, std::span<const int32_t> tokens,
            std::span<const ExtraItem> extra = {});
/// H("foreign", namespace, engine_hash): for engines with chained block hashes of their own.
Key ForeignKey(const NamespaceDigest& name_space, std::string_view engine_hash);

struct BlockRef {
  Key key;
  Key parent;
  uint64_t position = 0;
  uint16_t tokens = 0;  ///< fewer than tokens_per_block: a tail
};
/// The whole chain of a sequence that starts at position 0: full blocks, then a tail block for the rest.
std::vector<BlockRef> ChainKeys(const NamespaceDigest& name_space, uint32_t tokens_per_block,
                                std::span<const int32_t> tokens);

}  // namespace kvtier
