#include "deploy/quickstart/conversation.h"

#include <chrono>

namespace kvtier::quickstart {
namespace {

/// A struct of the C ABI with its size filled in and the rest zero.
template <typename T>
T Sized() {
  T value{};
  value.struct_size = sizeof(T);
  return value;
}

kvtier_query QueryOf(const kvtier_block_ref* refs, size_t count) {
  auto query = Sized<kvtier_query>();
  query.refs = refs;
  query.count = count;
  return query;
}

/// The buffer [layer][K, V][head][token][channel], from token `first` on; `base` outlives the view.
kvtier_view ViewOf(const RealKv& real, void* const* base) {
  constexpr int64_t kRowBytes = RealKv::kDim * 2;
  auto view = Sized<kvtier_view>();
  view.bases = base;
  view.n_bases = 1;
  view.v_offset = static_cast<int64_t>(real.plane_values() * 2);
  view.layer_stride = 2 * view.v_offset;
  view.head_stride = RealKv::kTokens * kRowBytes;
  view.token_stride = kRowBytes;
  view.dtype = KVTIER_FP16;
  return view;
}

double NowUs() {
  return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

}  // namespace

Status StatusOf(kvtier_code code, const std::string& call) {
  if (code == KVTIER_OK) return Status::Ok();
  return Status(static_cast<Code>(code), call + ": " + kvtier_last_error());
}

Result<Conversation> Conversation::Make(kvtier_client* handle, const RealKv& real, uint32_t number) {
  Conversation conversation;
  conversation.handle_ = handle;
  conversation.real_ = &real;
  conversation.number_ = number;
  const std::string lora = number == 0 ? "" : "conversation-" + std::to_string(number);
  auto spec = Sized<kvtier_model_spec>();
  spec.model_id = real.name.c_str();
  spec.lora = lora.c_str();
  spec.layers = RealKv::kLayers;
  spec.kv_heads = real.kv_heads;
  spec.k_dim = spec.v_dim = RealKv::kDim;
  spec.dtype = KVTIER_FP16;
  spec.tokens_per_block = kTokensPerBlock;
  spec.boost_channels = -1;
  KVTIER_TRY(StatusOf(kvtier_register_model(handle, &spec, &conversation.model_), "register " + real.name));
  conversation.refs_.resize(kBlocks);
  size_t count = 0;
  KVTIER_TRY(StatusOf(kvtier_keys(conversation.model_, real.tokens.data(), real.tokens.size(),
                                  conversation.refs_.data(), kBlocks, &count),
                      "keys"));
  return conversation;
}

Status Conversation::Put(kvtier_durability durability) const {
  const kvtier_query query = QueryOf(refs_.data(), refs_.size());
  void* const base = const_cast<uint16_t*>(real_->kv.data());
  const kvtier_view view = ViewOf(*real_, &base);
  auto options = Sized<kvtier_put_options>();
  options.durability = durability;
  options.timeout_ms = kTimeoutMs;
  kvtier_ticket ticket = 0;
  KVTIER_TRY(StatusOf(kvtier_put(model_, &query, &view, &options, &ticket), "put"));
  return StatusOf(kvtier_wait(handle_, ticket, nullptr, 0, kTimeoutMs), "wait");
}

Result<std::vector<int>> Conversation::Tiers() const {
  std::vector<int> tiers;
  for (const kvtier_block_ref& ref : refs_) {
    const kvtier_query query = QueryOf(&ref, 1);
    kvtier_match match{};
    kvtier_lookup_result result{};
    const kvtier_code code = kvtier_lookup(model_, &query, &match, &result, kTimeoutMs);
    if (code != KVTIER_OK && code != KVTIER_NOT_FOUND) return StatusOf(code, "lookup");
    tiers.push_back(result.blocks == 1 ? static_cast<int>(match.tier) : -1);
  }
  return tiers;
}

Result<FetchedBlock> Conversation::Fetch(uint32_t block, std::vector<uint16_t>* kv) const {
  const kvtier_query query = QueryOf(&refs_[block], 1);
  auto options = Sized<kvtier_acquire_options>();
  options.timeout_ms = kTimeoutMs;
  void* const base = &(*kv)[real_->Row(0, 0, 0, block * kTokensPerBlock)];
  const kvtier_view view = ViewOf(*real_, &base);
  FetchedBlock fetched{};
  kvtier_block_result result{};
  kvtier_lease* lease = nullptr;

  const double start = NowUs();
  KVTIER_TRY(StatusOf(kvtier_acquire(model_, &query, &options, &lease), "acquire"));
  Status status = StatusOf(kvtier_fetch(lease, 0, 1, 0, 0, &view, &result), "fetch");
  fetched.fetch_us = NowUs() - start;
  if (status.ok()) status = StatusOf(kvtier_lease_block(lease, 0, &fetched.info), "lease_block");
  for (uint32_t layer = 0; layer < RealKv::kLayers && status.ok();
       ++layer) {  // one by one: errors are per layer
    status = StatusOf(kvtier_fetch(lease, 0, 1, layer, 1, &view, &result), "fetch of one layer");
    fetched.k_reported[layer] = result.k_error;
    fetched.v_reported[layer] = result.v_error;
  }
  const kvtier_code released = kvtier_release(lease);
  KVTIER_TRY(status);
  KVTIER_TRY(StatusOf(released, "release"));
  return fetched;
}

}  // namespace kvtier::quickstart
