#include "tests/bench/workload.h"

#include <cstring>

#include "kernels/numerics.h"
#include "tests/bench/daemon.h"

namespace kvtier::bench {

Result<EngineCache> EngineCache::Make(const Shape& shape, uint32_t pages, PageOrder order) {
  EngineCache cache;
  const uint64_t bytes = pages * shape.block_bytes();
  KVTIER_ASSIGN(const auto reserved, cache.memory_.Reserve(bytes));
  cache.bytes_ = reserved.first(bytes);
  std::memset(cache.bytes_.data(), 1, bytes);  // the first touch of memory is not what we measure
  const uint64_t page_bytes = 2 * shape.plane_bytes();
  for (uint32_t layer = 0; layer < shape.layers; ++layer) {
    cache.bases_.push_back(cache.bytes_.data() + layer * pages * page_bytes);
  }
  for (uint32_t page = 0; page < pages; ++page) cache.page_table_.push_back(static_cast<int32_t>(page));
  const auto row = static_cast<int64_t>(shape.row_bytes());
  const bool heads_first = order == PageOrder::kHeadsFirst;
  kvtier_view& view = cache.view_ = Sized<kvtier_view>();
  view.bases = cache.bases_.data();
  view.n_bases = cache.bases_.size();
  view.v_offset = static_cast<int64_t>(shape.plane_bytes());
  view.head_stride = heads_first ? row * shape.tokens : row;
  view.token_stride = heads_first ? row : row * shape.kv_heads;
  view.page_table = cache.page_table_.data();
  view.n_pages = pages;
  view.page_tokens = shape.tokens;
  view.page_stride = static_cast<int64_t>(page_bytes);
  view.dtype = KVTIER_FP16;
  return cache;
}

kvtier_view ContiguousView(const Shape& shape, void* const* base) {
  auto view = Sized<kvtier_view>();
  view.bases = base;
  view.n_bases = 1;
  view.layer_stride = static_cast<int64_t>(2 * shape.plane_bytes());
  view.v_offset = static_cast<int64_t>(shape.plane_bytes());
  view.head_stride = static_cast<int64_t>(shape.tokens * shape.row_bytes());
  view.token_stride = static_cast<int64_t>(shape.row_bytes());
  view.dtype = KVTIER_FP16;
  return view;
}

void FillWithNoise(std::span<std::byte> bytes) {
  uint64_t state = 0x9E3779B97F4A7C15;
  for (size_t at = 0; at + 8 <= bytes.size(); at += 8) {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    uint16_t values[4];
    for (int i = 0; i < 4; ++i) {
      const auto draw = static_cast<int16_t>(state >> (16 * i));
      values[i] = Fp16FromFp32(static_cast<float>(draw) * (1.0f / 8192));  // within +-4
    }
    std::memcpy(bytes.data() + at, values, sizeof values);
  }
}

Result<kvtier_model*> RegisterShape(kvtier_client* handle, const Shape& shape, const char* name) {
  auto spec = Sized<kvtier_model_spec>();
  spec.model_id = name;
  spec.layers = shape.layers;
  spec.kv_heads = shape.kv_heads;
  spec.k_dim = shape.dim;
  spec.v_dim = shape.dim;
  spec.dtype = KVTIER_FP16;
  spec.tokens_per_block = shape.tokens;
  spec.boost_channels = -1;
  kvtier_model* model = nullptr;
  KVTIER_TRY(StatusOf(kvtier_register_model(handle, &spec, &model), "register_model"));
  return model;
}

Result<std::vector<kvtier_block_ref>> SequenceKeys(const kvtier_model* model, const Shape& shape,
                                                   uint32_t sequence, uint32_t blocks) {
  std::vector<int32_t> tokens(size_t{blocks} * shape.tokens);
  for (size_t i = 0; i < tokens.size(); ++i) tokens[i] = static_cast<int32_t>(sequence + i);
  std::vector<kvtier_block_ref> refs(blocks);
  size_t count = 0;
  KVTIER_TRY(
      StatusOf(kvtier_keys(model, tokens.data(), tokens.size(), refs.data(), refs.size(), &count), "keys"));
  if (count != blocks) return Status(Code::kInternal, "keys: " + std::to_string(count) + " blocks");
  return refs;
}

kvtier_query QueryOf(std::span<const kvtier_block_ref> refs) {
  auto query = Sized<kvtier_query>();
  query.refs = refs.data();
  query.count = refs.size();
  return query;
}

Status PutAndWait(kvtier_client* handle, kvtier_model* model, std::span<const kvtier_block_ref> refs,
                  const kvtier_view& source, uint32_t timeout_ms) {
  const kvtier_query query = QueryOf(refs);
  auto options = Sized<kvtier_put_options>();
  options.timeout_ms = timeout_ms;
  kvtier_ticket ticket = 0;
  KVTIER_TRY(StatusOf(kvtier_put(model, &query, &source, &options, &ticket), "put"));
  return StatusOf(kvtier_wait(handle, ticket, nullptr, 0, timeout_ms), "wait");
}

Result<Fetched> FetchAll(kvtier_model* model, std::span<const kvtier_block_ref> refs,
                         const kvtier_view& destination, uint32_t timeout_ms) {
  const kvtier_query query = QueryOf(refs);
  auto options = Sized<kvtier_acquire_options>();
  options.timeout_ms = timeout_ms;
  kvtier_lease* lease = nullptr;
  KVTIER_TRY(StatusOf(kvtier_acquire(model, &query, &options, &lease), "acquire"));
  const size_t held = kvtier_lease_count(lease);
  Fetched fetched{};
  std::vector<kvtier_block_result> results(refs.size());
  Status status;
  if (held < refs.size()) {
    status = Status(Code::kNotFound,
                    "acquire: " + std::to_string(held) + " of " + std::to_string(refs.size()) + " blocks");
  } else {
    status = StatusOf(kvtier_fetch(lease, 0, refs.size(), 0, 0, &destination, results.data()), "fetch");
    if (status.ok()) status = StatusOf(kvtier_lease_block(lease, 0, &fetched.info), "lease_block");
  }
  const kvtier_code released = kvtier_release(lease);
  KVTIER_TRY(status);
  KVTIER_TRY(StatusOf(released, "release"));
  fetched.result = results[0];
  return fetched;
}

}  // namespace kvtier::bench
