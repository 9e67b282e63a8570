#pragma once

#include <kvtier/kvtier.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "tests/bench/bench.h"
#include "tiers/base/aligned_buffer.h"

namespace kvtier::bench {

/// Shape of one FP16 block.
struct Shape {
  uint32_t layers;
  uint32_t kv_heads;
  uint32_t dim;
  uint32_t tokens;

  uint64_t row_bytes() const { return uint64_t{dim} * 2; }
  uint64_t plane_bytes() const { return kv_heads * tokens * row_bytes(); }  ///< K or V of one layer
  uint64_t block_bytes() const { return 2 * layers * plane_bytes(); }
};
inline constexpr Shape kShape4KiB{.layers = 1, .kv_heads = 1, .dim = 16, .tokens = 64};
inline constexpr Shape kShape1MiB{.layers = 2, .kv_heads = 8, .dim = 128, .tokens = 128};
inline constexpr Shape kShape4MiB{.layers = 8, .kv_heads = 8, .dim = 128, .tokens = 128};
inline constexpr Shape kShape32MiB{.layers = 64, .kv_heads = 8, .dim = 128, .tokens = 128};

/// Order of an engine's cache inside a page: [K, V][head][token][channel] or [K, V][token][head][channel].
enum class PageOrder { kHeadsFirst, kTokensFirst };

/// The paged KV cache of an engine, one tensor a layer: [layer][page][K, V]..., a page is a block.
/// Owns: the memory. Threads: one.
class EngineCache {
 public:
  /// Errors: kResourceExhausted.
  static Result<EngineCache> Make(const Shape& shape, uint32_t pages, PageOrder order);

  /// All pages, by a page table that is the identity. Valid while this object is.
  const kvtier_view& view() const { return view_; }
  std::span<std::byte> bytes() const { return bytes_; }

 private:
  EngineCache() = default;
  AlignedBuffer memory_;
  std::span<std::byte> bytes_;
  std::vector<void*> bases_;
  std::vector<int32_t> page_table_;
  kvtier_view view_{};
};

/// View of one block that lies at `block` as [layer][K, V][head][token][channel]. `base` outlives the view.
kvtier_view ContiguousView(const Shape& shape, void* const* base);

/// FP16 noise around zero, as K and V of no model: nothing that compresses. The same for every run.
void FillWithNoise(std::span<std::byte> bytes);

/// Registers a model of this shape.
Result<kvtier_model*> RegisterShape(kvtier_client* handle, const Shape& shape, const char* name);
/// Keys of `blocks` full blocks of the sequence number `sequence`; other numbers give other keys in every
/// block.
Result<std::vector<kvtier_block_ref>> SequenceKeys(const kvtier_model* model, const Shape& shape,
                                                   uint32_t sequence, uint32_t blocks);
kvtier_query QueryOf(std::span<const kvtier_block_ref> refs);

/// Put, then wait until every block is stored. The first code that is not OK or PRESENT is the error.
Status PutAndWait(kvtier_client* handle, kvtier_model* model, std::span<const kvtier_block_ref> refs,
                  const kvtier_view& source, uint32_t timeout_ms);

/// What a fetch of one block or run brought. `info` and the errors are of the first block.
struct Fetched {
  kvtier_block_info info;
  kvtier_block_result result;
};
/// Acquire, fetch of all layers, release. Errors: kNotFound when fewer blocks than asked for hit.
Result<Fetched> FetchAll(kvtier_model* model, std::span<const kvtier_block_ref> refs,
                         const kvtier_view& destination, uint32_t timeout_ms);

}  // namespace kvtier::bench
