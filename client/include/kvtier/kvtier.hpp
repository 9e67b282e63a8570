/// libkvtier for C++20: the C ABI (kvtier.h says what every call means) with owners that clean up. Header
/// only; nothing is thrown, every call answers a code or an Outcome.
#ifndef KVTIER_KVTIER_HPP_
#define KVTIER_KVTIER_HPP_

#include <kvtier/kvtier.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace kvtier::api {

/// A value, or the code that says why there is none. Of a call that was done in part: both, and no success.
template <typename T>
class Outcome {
 public:
  Outcome(T value) : value_(std::move(value)) {}  // NOLINT(google-explicit-constructor)
  Outcome(kvtier_code code) : code_(code) {}      // NOLINT(google-explicit-constructor)
  Outcome(T value, kvtier_code code) : value_(std::move(value)), code_(code) {}

  explicit operator bool() const { return code_ == KVTIER_OK; }
  kvtier_code code() const { return code_; }
  T& operator*() { return *value_; }
  const T& operator*() const { return *value_; }
  T* operator->() { return &*value_; }
  const T* operator->() const { return &*value_; }

 private:
  std::optional<T> value_;
  kvtier_code code_ = KVTIER_OK;
};

/// Text of the calling thread's last error.
inline std::string LastError() {
  return kvtier_last_error();
}

/// The C structs with struct_size and the defaults filled in.
inline kvtier_model_spec ModelSpec() {
  kvtier_model_spec spec{};
  spec.struct_size = sizeof(spec);
  spec.dtype = KVTIER_FP16;
  spec.boost_channels = -1;
  return spec;
}
inline kvtier_view ContiguousView(void* const* bases, size_t n_bases) {
  kvtier_view view{};
  view.struct_size = sizeof(view);
  view.bases = bases;
  view.n_bases = n_bases;
  view.dtype = KVTIER_FP16;
  return view;
}
inline kvtier_acquire_options AcquireOptions(uint32_t timeout_ms = 0) {
  kvtier_acquire_options options{};
  options.struct_size = sizeof(options);
  options.timeout_ms = timeout_ms;
  return options;
}
inline kvtier_put_options PutOptions(uint32_t timeout_ms = 0) {
  kvtier_put_options options{};
  options.struct_size = sizeof(options);
  options.timeout_ms = timeout_ms;
  return options;
}

/// Pinned blocks. Move-only; releases itself.
class Lease {
 public:
  explicit Lease(kvtier_lease* lease) : lease_(lease) {}
  Lease(Lease&& other) noexcept : lease_(std::exchange(other.lease_, nullptr)) {}
  Lease& operator=(Lease&& other) noexcept {
    if (this != &other) {
      Release();
      lease_ = std::exchange(other.lease_, nullptr);
    }
    return *this;
  }
  Lease(const Lease&) = delete;
  Lease& operator=(const Lease&) = delete;
  ~Lease() { Release(); }

  size_t count() const { return kvtier_lease_count(lease_); }
  size_t tokens() const { return kvtier_lease_tokens(lease_); }
  Outcome<kvtier_block_info> Block(size_t index) const {
    kvtier_block_info info{};
    const kvtier_code code = kvtier_lease_block(lease_, index, &info);
    if (code != KVTIER_OK) return code;
    return info;
  }
  /// All layers of blocks [first, first + results.size()).
  kvtier_code Fetch(size_t first, const kvtier_view& destination, std::span<kvtier_block_result> results) {
    return kvtier_fetch(lease_, first, results.size(), 0, 0, &destination, results.data());
  }
  kvtier_code FetchLayers(size_t first, uint32_t first_layer, uint32_t layers, const kvtier_view& destination,
                          std::span<kvtier_block_result> results) {
    return kvtier_fetch(lease_, first, results.size(), first_layer, layers, &destination, results.data());
  }
  /// A ticket for Client::WaitLayer and Client::Wait. The destination stays until it has ended.
  Outcome<kvtier_ticket> FetchAsync(size_t first, size_t count, const kvtier_view& destination) {
    kvtier_ticket ticket = 0;
    const kvtier_code code = kvtier_fetch_async(lease_, first, count, 0, 0, &destination, &ticket);
    if (code != KVTIER_OK) return code;
    return ticket;
  }
  /// Attention of one layer over blocks [first, first + results.size()).
  kvtier_code Attend(size_t first, uint32_t layer, const kvtier_attention& attention,
                     std::span<kvtier_block_result> results) {
    return kvtier_attend(lease_, first, results.size(), layer, &attention, results.data());
  }
  kvtier_code Release() {
    if (lease_ == nullptr) return KVTIER_STALE;
    return kvtier_release(std::exchange(lease_, nullptr));
  }

 private:
  kvtier_lease* lease_;
};

/// The blocks of a token sequence: what lookup, acquire and put ask about.
class Sequence {
 public:
  Sequence(std::vector<int32_t> tokens, std::vector<kvtier_block_ref> refs)
      : tokens_(std::move(tokens)), refs_(std::move(refs)) {}

  size_t blocks() const { return refs_.size(); }
  std::span<const kvtier_block_ref> refs() const { return refs_; }
  std::span<const int32_t> tokens() const { return tokens_; }
  /// All blocks, tails included. Borrows from the sequence.
  kvtier_query Query() const { return Query(0, refs_.size()); }
  kvtier_query Query(size_t first, size_t count) const {
    kvtier_query query{};
    query.struct_size = sizeof(query);
    query.refs = refs_.data() + first;
    query.count = count;
    query.tokens = tokens_.data();
    query.n_tokens = tokens_.size();
    return query;
  }

 private:
  std::vector<int32_t> tokens_;
  std::vector<kvtier_block_ref> refs_;
};

/// A registered model. Copied freely; lives as long as its Client.
class Model {
 public:
  explicit Model(kvtier_model* model) : model_(model) {}
  kvtier_model* get() const { return model_; }

  Outcome<std::array<uint8_t, KVTIER_KEY_BYTES>> Namespace() const {
    std::array<uint8_t, KVTIER_KEY_BYTES> digest{};
    const kvtier_code code = kvtier_model_namespace(model_, digest.data());
    if (code != KVTIER_OK) return code;
    return digest;
  }
  /// Keys of the sequence from its first token.
  Outcome<Sequence> Keys(std::vector<int32_t> tokens) const {
    size_t count = 0;
    kvtier_code code = kvtier_keys(model_, tokens.data(), tokens.size(), nullptr, 0, &count);
    if (code != KVTIER_OK && code != KVTIER_OUT_OF_RANGE) return code;
    std::vector<kvtier_block_ref> refs(count);
    code = kvtier_keys(model_, tokens.data(), tokens.size(), refs.data(), refs.size(), &count);
    if (code != KVTIER_OK) return code;
    return Sequence(std::move(tokens), std::move(refs));
  }
  Outcome<kvtier_lookup_result> Lookup(const kvtier_query& query, uint32_t timeout_ms = 0) const {
    kvtier_lookup_result result{};
    const kvtier_code code = kvtier_lookup(model_, &query, nullptr, &result, timeout_ms);
    if (code != KVTIER_OK) return code;
    return result;
  }
  Outcome<Lease> Acquire(const kvtier_query& query,
                         const kvtier_acquire_options& options = AcquireOptions()) const {
    kvtier_lease* lease = nullptr;
    const kvtier_code code = kvtier_acquire(model_, &query, &options, &lease);
    if (code != KVTIER_OK) return code;
    return Lease(lease);
  }
  /// A ticket for Client::Wait, also where not all blocks were taken and the outcome is no success: of those
  /// that were, 0 where nothing was begun.
  Outcome<kvtier_ticket> Put(const kvtier_query& query, const kvtier_view& source,
                             const kvtier_put_options& options = PutOptions()) const {
    kvtier_ticket ticket = 0;
    const kvtier_code code = kvtier_put(model_, &query, &source, &options, &ticket);
    return {ticket, code};
  }
  /// A ticket for Client::Wait.
  Outcome<kvtier_ticket> Prefetch(const kvtier_query& query, uint32_t tier, uint32_t timeout_ms = 0) const {
    kvtier_ticket ticket = 0;
    uint32_t started = 0;
    const kvtier_code code = kvtier_prefetch(model_, &query, tier, timeout_ms, &ticket, &started);
    if (code != KVTIER_OK) return code;
    return ticket;
  }
  Outcome<uint64_t> Remove(const kvtier_query& query, uint32_t timeout_ms = 0) const {
    uint64_t removed = 0;
    const kvtier_code code = kvtier_remove(model_, &query, &removed, timeout_ms);
    if (code != KVTIER_OK) return code;
    return removed;
  }

 private:
  kvtier_model* model_;
};

/// A connection to the daemon. Move-only; closes itself.
class Client {
 public:
  static Outcome<Client> Open(const kvtier_options& options) {
    kvtier_client* client = nullptr;
    const kvtier_code code = kvtier_open(&options, &client);
    if (code != KVTIER_OK) return code;
    return Client(client);
  }
  /// `socket` NULL: $KVTIER_SOCKET or the default path.
  static Outcome<Client> Open(const char* socket = nullptr) {
    kvtier_options options{};
    options.struct_size = sizeof(options);
    options.socket = socket;
    return Open(options);
  }
  Client(Client&& other) noexcept : client_(std::exchange(other.client_, nullptr)) {}
  Client& operator=(Client&& other) noexcept {
    if (this != &other) {
      kvtier_close(client_);
      client_ = std::exchange(other.client_, nullptr);
    }
    return *this;
  }
  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;
  ~Client() { kvtier_close(client_); }

  kvtier_client* get() const { return client_; }
  Outcome<Model> RegisterModel(const kvtier_model_spec& spec) const {
    kvtier_model* model = nullptr;
    const kvtier_code code = kvtier_register_model(client_, &spec, &model);
    if (code != KVTIER_OK) return code;
    return Model(model);
  }
  /// `results` is empty, or has room for the put's blocks.
  kvtier_code Wait(kvtier_ticket ticket, std::span<kvtier_put_result> results = {},
                   uint32_t timeout_ms = 0) const {
    return kvtier_wait(client_, ticket, results.empty() ? nullptr : results.data(), results.size(),
                       timeout_ms);
  }
  /// Until the layers of a fetch up to this one are decoded. `results` has room for its blocks.
  kvtier_code WaitLayer(kvtier_ticket ticket, uint32_t layer, std::span<kvtier_block_result> results,
                        uint32_t timeout_ms = 0) const {
    return kvtier_wait_layer(client_, ticket, layer, results.data(), results.size(), timeout_ms);
  }
  kvtier_code Cancel(kvtier_ticket ticket) const { return kvtier_cancel(client_, ticket); }
  Outcome<kvtier_stats> Stats(uint32_t timeout_ms = 0) const {
    kvtier_stats stats{};
    stats.struct_size = sizeof(stats);
    const kvtier_code code = kvtier_get_stats(client_, &stats, timeout_ms);
    if (code != KVTIER_OK) return code;
    return stats;
  }

 private:
  explicit Client(kvtier_client* client) : client_(client) {}
  kvtier_client* client_;
};

}  // namespace kvtier::api

#endif  // KVTIER_KVTIER_HPP_
