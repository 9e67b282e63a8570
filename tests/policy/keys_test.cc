#include "daemon/policy/keys.h"

#include <gtest/gtest.h>

#include <map>
#include <numeric>
#include <random>
#include <set>
#include <string>

#include "daemon/policy/model_fields.h"

namespace kvtier {
namespace {

ModelSpec Spec() {
  ModelSpec spec;
  spec.model_id = "qwen2.5-coder-0.5b";
  spec.revision = "main";
  spec.config_digest = "rope:1000000";
  spec.layout_id = "nhd";
  spec.layers = 24;
  spec.kv_heads = 2;
  spec.k_dim = 64;
  spec.v_dim = 64;
  spec.tokens_per_block = 64;
  spec.tensor = {.rank = 1, .size = 2};
  spec.boost_channels = 32;
  spec.k_scales.assign(24, 0.5f);
  return spec;
}

std::vector<int32_t> Iota(int32_t first, size_t count) {
  std::vector<int32_t> tokens(count);
  std::iota(tokens.begin(), tokens.end(), first);
  return tokens;
}

// Printed by known_keys.py, which shares no code with the library.
constexpr char kNamespace[] = "f19f8cef084f6edf958b6bcc592efff7b30b618645fd07811bcab6654fc52b87";
constexpr char kBlock0[] = "94b0d4c8e51b1f82a3db9f7ddf55aa8bace8cb21a4898cf50690814fd3617277";
constexpr char kBlock1[] = "e9d2bb75f8c226cc4a9a997beb94dcfb881f101d109789203af1cf653bb10221";
constexpr char kTail[] = "a466bda5cca21d167faad9e4549370494983c1fe4d439c5d0ce46d1b3969d0dc";
constexpr char kBlockWithItem[] = "6a586a8ad7077351475345f0bdacc479161ea440e2c494c5b1878b25aae10bef";
constexpr char kForeign[] = "133dff5c7e6e50aa2bbda3eab69f0934bfcc3626418e1e4d1445ffe492c2d7cb";

TEST(Keys, S20_AreTheSameInEveryProcessAndProgram) {
  const NamespaceDigest name_space = ComputeNamespace("uid:1000", Spec());
  EXPECT_EQ(name_space.ToHex(), kNamespace);

  std::vector<int32_t> tokens = Iota(0, 129);
  tokens.push_back(-1);
  const std::vector<BlockRef> chain = ChainKeys(name_space, 64, tokens);
  ASSERT_EQ(chain.size(), 3u);
  EXPECT_EQ(chain[0].key.ToHex(), kBlock0);
  EXPECT_EQ(chain[1].key.ToHex(), kBlock1);
  EXPECT_EQ(chain[2].key.ToHex(), kTail);

  ExtraItem item{.offset = 7};
  for (int i = 0; i < 32; ++i) item.item_id[i] = std::byte(i);
  EXPECT_EQ(BlockKey(chain[1].key, 128, Iota(0, 64), {&item, 1}).ToHex(), kBlockWithItem);
  EXPECT_EQ(ForeignKey(name_space, "engine-hash").ToHex(), kForeign);
}

TEST(Keys, ChainNamesParentPositionAndTokensOfEveryBlock) {
  const NamespaceDigest name_space = ComputeNamespace("uid:1000", Spec());
  const std::vector<int32_t> tokens = Iota(0, 130);
  const std::vector<BlockRef> chain = ChainKeys(name_space, 64, tokens);
  ASSERT_EQ(chain.size(), 3u);
  EXPECT_EQ(chain[0].parent, RootKey(name_space));
  EXPECT_EQ(chain[1].parent, chain[0].key);
  EXPECT_EQ(chain[2].parent, chain[1].key);
  EXPECT_EQ(chain[2].position, 128u);
  EXPECT_EQ(chain[2].tokens, 2);
  const std::span<const int32_t> all(tokens);
  EXPECT_EQ(chain[1].key, BlockKey(chain[0].key, 64, all.subspan(64, 64)));
  EXPECT_EQ(chain[2].key, TailKey(chain[1].key, 128, all.subspan(128)));
  EXPECT_TRUE(ChainKeys(name_space, 64, {}).empty());
  EXPECT_EQ(ChainKeys(name_space, 64, all.first(128)).back().tokens, 64);
}

TEST(Keys, DependOnParentPositionTokensExtraAndKind) {
  const std::vector<int32_t> tokens = Iota(5, 10);
  const Key parent = RootKey(ComputeNamespace("t", Spec()));
  const ExtraItem item{};
  const std::set<Key> keys = {BlockKey(parent, 0, tokens),
                              TailKey(parent, 0, tokens),
                              BlockKey(Key{}, 0, tokens),
                              BlockKey(parent, 1, tokens),
                              BlockKey(parent, 0, Iota(5, 9)),
                              BlockKey(parent, 0, Iota(6, 10)),
                              BlockKey(parent, 0, tokens, {&item, 1})};
  EXPECT_EQ(keys.size(), 7u);
}

TEST(Keys, S21_EveryFieldAndTheTenantChangeTheNamespace) {
  std::set<NamespaceDigest> seen = {ComputeNamespace("uid:1000", Spec()),
                                    ComputeNamespace("uid:1001", Spec())};
  size_t fields = 0;
  ModelSpec counted;
  ForEachField(counted, [&fields](const auto&) { ++fields; });
  for (size_t changed = 0; changed < fields; ++changed) {
    ModelSpec spec = Spec();
    size_t i = 0;
    ForEachField(spec, [&](auto& field) {
      using Field = std::decay_t<decltype(field)>;
      if (i++ != changed) return;
      if constexpr (std::is_same_v<Field, std::string>) {
        field += 'x';
      } else if constexpr (std::is_same_v<Field, std::vector<float>>) {
        field.assign(24, 0.25f);
      } else {
        field = static_cast<Field>(static_cast<uint32_t>(field) + 1);
      }
    });
    EXPECT_TRUE(seen.insert(ComputeNamespace("uid:1000", spec)).second) << "field " << changed;
  }
  EXPECT_EQ(fields, 24u) << "a new field needs a place in codecs/FORMAT.md and a new format version";
}

// Pieces that collide under plain concatenation, empty and odd strings among them.
const std::string kPieces[] = {"",   "a",   "aa", "ab", "b", std::string(1, '\0'), std::string("\1\0\0\0", 4),
                               "ns", "\xff"};

TEST(Keys, S22_NoTwoNeighbouringTextsCollide) {
  std::set<NamespaceDigest> seen;
  size_t tuples = 0;
  for (const std::string& tenant : kPieces) {
    for (const std::string& model_id : kPieces) {
      for (const std::string& revision : kPieces) {
        for (const std::string& lora : kPieces) {
          ModelSpec spec;
          spec.model_id = model_id;
          spec.revision = revision;
          spec.lora = lora;
          seen.insert(ComputeNamespace(tenant, spec));
          ++tuples;
        }
      }
    }
  }
  EXPECT_EQ(seen.size(), tuples);
}

TEST(Keys, S22_NoTwoRandomTuplesCollide) {
  constexpr uint32_t kSeed = 20240607;
  SCOPED_TRACE(kSeed);
  std::mt19937 rng(kSeed);
  std::map<NamespaceDigest, std::pair<std::string, ModelSpec>> seen;
  for (int i = 0; i < 20'000; ++i) {
    ModelSpec spec;
    const std::string tenant = kPieces[rng() % std::size(kPieces)];
    ForEachField(spec, [&](auto& field) {
      using Field = std::decay_t<decltype(field)>;
      const uint32_t value = rng() % 8 == 0 ? rng() : 0;  // mostly equal, so that tuples differ in few places
      if constexpr (std::is_same_v<Field, std::string>) {
        field = kPieces[value % std::size(kPieces)];
      } else if constexpr (std::is_same_v<Field, std::vector<float>>) {
        field.assign(value % 3, 1.0f);
      } else {
        field = static_cast<Field>(value % 3);
      }
    });
    const auto [it, fresh] = seen.try_emplace(ComputeNamespace(tenant, spec), tenant, spec);
    if (!fresh) {
      ASSERT_EQ(it->second, std::make_pair(tenant, spec));
    }
  }
}

}  // namespace
}  // namespace kvtier
