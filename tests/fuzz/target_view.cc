// Structs of the C ABI as a caller may get them wrong: views, queries, of any size that struct_size says.
//
// The first bytes choose call, shape and tokens; then come the struct's bytes, as many as struct_size says or
// as there are, then those of page table or block refs. Pointers are the target's own.
#include <array>
#include <memory>
#include <type_traits>

#include "client/src/connection.h"
#include "client/src/query.h"
#include "client/src/structs.h"
#include "client/src/view.h"
#include "tests/fuzz/input_reader.h"
#include "tests/fuzz/target.h"

namespace kvtier {
namespace {

using client::LayerRange;

constexpr size_t kMaxBases = 8;
constexpr size_t kMaxPages = 64;
constexpr size_t kMaxRefs = 64;
constexpr uint64_t kMaxTokens = 512;

/// A struct in memory that is exactly as large as it says, where that is plausible.
template <typename T>
class GivenStruct {
 public:
  explicit GivenStruct(InputReader& input) {
    const uint32_t claimed = input.Next16() % (2 * client::kMaxStructBytes);
    bytes_ = std::make_unique<std::byte[]>(std::max<size_t>(claimed, sizeof(claimed)));
    const std::span<const std::byte> given = input.Take(std::min<size_t>(claimed, sizeof(T) + 16));
    std::copy(given.begin(), given.end(), bytes_.get());
    std::memcpy(bytes_.get(), &claimed, sizeof(claimed));
    claimed_ = claimed;
  }
  T* get() { return reinterpret_cast<T*>(bytes_.get()); }
  /// Sets a field if the struct has it.
  template <typename Field>
  void Set(Field T::*field, const std::type_identity_t<Field>& value) {
    const auto offset = static_cast<size_t>(reinterpret_cast<std::byte*>(&(get()->*field)) - bytes_.get());
    if (offset + sizeof(value) <= claimed_) std::memcpy(bytes_.get() + offset, &value, sizeof(value));
  }

 private:
  std::unique_ptr<std::byte[]> bytes_;
  size_t claimed_ = 0;
};

ModelSpec SpecFrom(InputReader& input) {
  ModelSpec spec;
  spec.layers = static_cast<uint16_t>(1 + input.Next() % 4);
  spec.kv_heads = static_cast<uint16_t>(1 + input.Next() % 3);
  spec.k_dim = static_cast<uint16_t>(16 * (1 + input.Next() % 4));
  spec.v_dim = static_cast<uint16_t>(16 * (1 + input.Next() % 4));
  spec.tokens_per_block = input.Next() % 2 == 0 ? 64 : 128;
  return spec;
}

/// Two elements of a view that was accepted share a byte only where a page is in the table twice.
void CheckAddresses(const client::View& view, const ModelSpec& spec, LayerRange layers, uint64_t tokens) {
  for (uint32_t layer = layers.first; layer < layers.first + uint32_t{layers.count}; ++layer) {
    const KvLayerView one = view.Layer(static_cast<uint16_t>(layer), 0);
    for (uint64_t token = 0; token + 1 < tokens; token += std::max<uint64_t>(1, tokens / 8)) {
      const bool same_page =
          one.page_table == nullptr || token / one.page_tokens == (token + 1) / one.page_tokens;
      const int64_t here = one.Row(0, static_cast<uint32_t>(token));
      const int64_t next = one.Row(0, static_cast<uint32_t>(token + 1));
      KVTIER_CHECK(!same_page || here != next);
    }
    for (uint32_t head = 0; head + 1 < spec.kv_heads; ++head) {
      KVTIER_CHECK(one.Row(head, 0) != one.Row(head + 1, 0));
    }
  }
}

bool RunViewStruct(InputReader& input) {
  const ModelSpec spec = SpecFrom(input);
  const uint64_t tokens = 1 + input.Next16() % kMaxTokens;
  const uint8_t choices = input.Next();
  LayerRange layers = {.first = 0, .count = spec.layers};
  if ((choices & 1) != 0) layers = {.first = static_cast<uint16_t>(spec.layers - 1), .count = 1};
  GivenStruct<kvtier_view> view(input);
  const size_t n_bases = (choices & 2) != 0 ? 1 : spec.layers;
  std::array<std::byte, kMaxBases> memory;
  const auto bases = std::make_unique<void*[]>(n_bases);
  const auto v_bases = std::make_unique<void*[]>(n_bases);
  for (size_t i = 0; i < n_bases; ++i) {
    bases[i] = &memory[i];
    v_bases[i] = (choices & 4) != 0 ? nullptr : &memory[kMaxBases - 1 - i];
  }
  const size_t n_pages = input.Next() % kMaxPages;
  const auto pages = std::make_unique<int32_t[]>(n_pages);
  for (size_t i = 0; i < n_pages; ++i) pages[i] = static_cast<int32_t>(input.Next32());
  view.Set(&kvtier_view::bases, static_cast<void* const*>(bases.get()));
  view.Set(&kvtier_view::n_bases, n_bases);
  view.Set(&kvtier_view::v_bases, (choices & 8) != 0 ? static_cast<void* const*>(v_bases.get()) : nullptr);
  view.Set(&kvtier_view::page_table,
           (choices & 16) != 0 ? static_cast<const int32_t*>(pages.get()) : nullptr);
  view.Set(&kvtier_view::n_pages, n_pages);
  const Result<client::View> destination = client::View::CheckDestination(view.get(), spec, layers, tokens);
  const Result<client::View> source = client::View::CheckSource(view.get(), spec, tokens);
  if (destination.ok()) CheckAddresses(*destination, spec, layers, tokens);
  return destination.ok() || source.ok();
}

bool RunQueryStruct(InputReader& input) {
  client::Model model;
  model.spec = SpecFrom(input);
  GivenStruct<kvtier_query> query(input);
  const size_t count = input.Next() % kMaxRefs;
  const auto refs = std::make_unique<kvtier_block_ref[]>(count);
  for (size_t i = 0; i < count; ++i) {
    const std::span<const std::byte> bytes = input.Take(sizeof(refs[i]));
    std::memcpy(&refs[i], bytes.data(), bytes.size());
  }
  const uint8_t choices = input.Next();
  // As a caller has them who got them from kvtier_keys: else hardly any list is consecutive.
  for (size_t i = 1; i < count && (choices & 1) != 0; ++i) {
    refs[i].position = refs[i - 1].position + model.spec.tokens_per_block;
    std::memcpy(refs[i].parent, refs[i - 1].key, sizeof(refs[i].parent));
    refs[i - 1].tokens = static_cast<decltype(refs[i].tokens)>(model.spec.tokens_per_block);
  }
  const size_t n_tokens = input.Next16() % 1024;
  const auto tokens = std::make_unique<int32_t[]>(n_tokens);
  query.Set(&kvtier_query::refs, static_cast<const kvtier_block_ref*>(refs.get()));
  query.Set(&kvtier_query::count, count);
  query.Set(&kvtier_query::tokens, (choices & 2) != 0 ? static_cast<const int32_t*>(tokens.get()) : nullptr);
  query.Set(&kvtier_query::n_tokens, (choices & 2) != 0 ? n_tokens : 0);
  const Result<client::Query> checked = client::CheckQuery(model, query.get());
  if (!checked.ok()) return false;
  KVTIER_CHECK(checked->full.size() <= checked->refs.size());
  KVTIER_CHECK(client::KeysToAsk(*checked, checked->full).size() % KVTIER_KEY_BYTES == 0);
  // Tail children as a reply may list them.
  std::vector<v1::TailChild> tails;
  while (!input.empty() && tails.size() < 8) {
    v1::TailChild& child = tails.emplace_back();
    child.set_tokens(input.Next32());
    child.set_key(std::string(AsText(input.Take(input.Next() % 40))));
  }
  const size_t matched = input.Next() % (checked->full.size() + 1);
  const auto chosen = client::ChooseTail(*checked, matched, tails);
  KVTIER_CHECK(!chosen || *chosen < tails.size());
  return true;
}

constexpr uint8_t kViewCall = 0, kQueryCall = 1;

InputWriter& PutShape(InputWriter& input, uint8_t layers, uint8_t heads, uint8_t dim) {
  return input.Put(static_cast<uint8_t>(layers - 1))
      .Put(static_cast<uint8_t>(heads - 1))
      .Put(static_cast<uint8_t>(dim / 16 - 1))
      .Put(static_cast<uint8_t>(dim / 16 - 1))
      .Put(0);
}

FuzzTarget::Bytes ViewSeed(uint8_t choices, uint32_t page_tokens) {
  constexpr uint8_t kLayers = 2, kHeads = 2, kDim = 32;
  constexpr uint16_t kTokens = 100;
  kvtier_view view{};
  view.dtype = KVTIER_FP16;
  view.token_stride = kDim * 2;
  view.head_stride = 1024 * view.token_stride;
  view.v_offset = (choices & 8) != 0 ? 0 : kHeads * view.head_stride;
  view.layer_stride = 2 * kHeads * view.head_stride;
  view.page_tokens = page_tokens;
  view.page_stride = page_tokens * view.token_stride;
  InputWriter input;
  PutShape(input.Put(kViewCall), kLayers, kHeads, kDim).Put16(kTokens - 1).Put(choices).Put16(sizeof(view));
  input.PutBytes(std::as_bytes(std::span(&view, 1))).Put(8);
  for (uint32_t page = 0; page < 8; ++page) input.Put32(page * 3 % 8);
  return input.Take();
}

FuzzTarget::Bytes QuerySeed(uint8_t choices, uint16_t tokens) {
  constexpr uint8_t kBlocks = 3;
  kvtier_query query{};
  InputWriter input;
  PutShape(input.Put(kQueryCall), 2, 2, 32)
      .Put16(sizeof(query))
      .PutBytes(std::as_bytes(std::span(&query, 1)));
  input.Put(kBlocks);
  for (uint8_t i = 0; i < kBlocks; ++i) {
    kvtier_block_ref ref{};
    ref.position = uint64_t{i} * 64;
    ref.tokens = i + 1 == kBlocks ? 16 : 64;
    ref.key[0] = static_cast<uint8_t>(i + 1);
    ref.parent[0] = i;
    input.PutBytes(std::as_bytes(std::span(&ref, 1)));
  }
  input.Put(choices).Put16(tokens);
  for (int i = 0; i < 2; ++i) {
    input.Put32(16).Put(32).PutText(std::string(32, '\3'));
  }
  return input.Take();
}

}  // namespace

bool RunView(std::span<const std::byte> bytes) {
  InputReader input(bytes);
  return input.Next() % 2 == kViewCall ? RunViewStruct(input) : RunQueryStruct(input);
}

std::vector<FuzzTarget::Bytes> ViewSeeds() {
  return {ViewSeed(2, 0), ViewSeed(0, 0),  ViewSeed(2 + 16, 16),
          ViewSeed(8, 0), QuerySeed(1, 0), QuerySeed(3, 300)};
}

}  // namespace kvtier
