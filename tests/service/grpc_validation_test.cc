#include <random>

#include "tests/service/grpc_service_fixture.h"

namespace kvtier {
namespace {

using Stub = v1::Kvtier::Stub;

TEST_F(GrpcServiceTest, S57_MalformedKeysAreRefused) {
  grpc_options_.limits.keys_per_call = 100;
  StartAll();
  const std::string parent = KeyBytes('p');
  EXPECT_GRPC(LookupOf("", KeyBytes('a')), INVALID_ARGUMENT, "parent must have 32 bytes");
  EXPECT_GRPC(LookupOf(std::string(31, 'p'), KeyBytes('a')), INVALID_ARGUMENT, "parent must have 32 bytes");
  EXPECT_GRPC(LookupOf(parent, ""), INVALID_ARGUMENT, "keys must not be empty");
  EXPECT_GRPC(LookupOf(parent, std::string(33, 'a')), INVALID_ARGUMENT, "keys must be packed, 32 bytes each");
  EXPECT_GRPC(LookupOf(parent, std::string(32 * 101, 'a')), INVALID_ARGUMENT,
              "101 keys in one call; the limit is 100");
  EXPECT_TRUE(LookupOf(parent, std::string(32 * 100, 'a')).ok());
  EXPECT_EQ(LookupOf(parent, std::string(5 << 20, 'a')).error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
}

TEST_F(GrpcServiceTest, S57_MalformedModelsAreRefused) {
  StartAll();
  v1::ModelSpec spec = SmallSpec();
  spec.set_layers(70'000);
  EXPECT_GRPC(RegisterOf(spec), INVALID_ARGUMENT, "layers is too large");
  spec = SmallSpec();
  spec.set_revision(std::string(513, 'r'));
  EXPECT_GRPC(RegisterOf(spec), INVALID_ARGUMENT, "revision is longer than 512 bytes");
  spec = SmallSpec();
  spec.set_floor(static_cast<v1::Precision>(17));
  EXPECT_GRPC(RegisterOf(spec), INVALID_ARGUMENT, "unknown precision 17");
  spec = SmallSpec();
  spec.set_dtype(300);
  EXPECT_GRPC(RegisterOf(spec), INVALID_ARGUMENT, "dtype is too large");
  spec = SmallSpec();
  spec.set_tokens_per_block(65);
  EXPECT_FALSE(RegisterOf(spec).ok());
  EXPECT_FALSE(RegisterOf(v1::ModelSpec()).ok());
}

TEST_F(GrpcServiceTest, S57_ScalesThatCannotBeAreRefused) {
  StartAll();
  v1::ModelSpec spec = SmallSpec();
  spec.set_dtype(3);
  for (uint32_t layer = 0; layer < spec.layers(); ++layer) spec.add_k_scales(0.5f);
  EXPECT_TRUE(RegisterOf(spec).ok());
  spec.add_v_scales(-1.0f);
  EXPECT_EQ(RegisterOf(spec).error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  spec.clear_v_scales();
  spec.add_k_scales(1.0f);  // one more than layers
  EXPECT_EQ(RegisterOf(spec).error_code(), grpc::StatusCode::INVALID_ARGUMENT);
}

TEST_F(GrpcServiceTest, S52_ABlockOneByteAboveTheLimitIsATypedError) {
  grpc_options_.limits.block_bytes = kSmallBlockBytes - 1;
  StartAll();
  EXPECT_GRPC(RegisterOf(SmallSpec()), OUT_OF_RANGE,
              "a block of this model has 32768 bytes; the limit is 32767");
}

TEST_F(GrpcServiceTest, S52_ABlockOfExactlyTheLimitIsAccepted) {
  grpc_options_.limits.block_bytes = kSmallBlockBytes;
  StartAll();
  EXPECT_TRUE(RegisterOf(SmallSpec()).ok());
}

TEST_F(GrpcServiceTest, S57_MalformedPutsAreRefused) {
  grpc_options_.limits.keys_per_call = 3;
  StartAll();
  EXPECT_GRPC(PutOf(OnePut()), NOT_FOUND, "the model is not registered in this session");
  RegisterSmall();
  EXPECT_TRUE(PutOf(OnePut()).ok());

  v1::PutRequest request = OnePut();
  request.clear_blocks();
  EXPECT_GRPC(PutOf(request), INVALID_ARGUMENT, "blocks must not be empty");
  request = OnePut();
  for (int i = 0; i < 3; ++i) *request.add_blocks() = request.blocks(0);
  EXPECT_GRPC(PutOf(request), INVALID_ARGUMENT, "4 blocks in one call; the limit is 3");
  request = OnePut();
  request.set_priority(256);
  EXPECT_GRPC(PutOf(request), INVALID_ARGUMENT, "priority must be at most 255");
  request = OnePut();
  request.set_durability(static_cast<v1::Durability>(2));
  EXPECT_GRPC(PutOf(request), INVALID_ARGUMENT, "unknown durability");
  request = OnePut();
  request.set_floor(static_cast<v1::Precision>(-1));
  EXPECT_GRPC(PutOf(request), INVALID_ARGUMENT, "unknown precision -1");

  const auto with = [&](auto change) {
    v1::PutRequest changed = OnePut();
    change(*changed.mutable_blocks(0));
    return PutOf(changed);
  };
  EXPECT_GRPC(with([](v1::PutBlock& b) { b.set_key("k"); }), INVALID_ARGUMENT,
              "blocks.key must have 32 bytes");
  EXPECT_GRPC(with([](v1::PutBlock& b) { b.clear_parent(); }), INVALID_ARGUMENT,
              "blocks.parent must have 32 bytes");
  EXPECT_GRPC(with([](v1::PutBlock& b) { b.set_tokens(0); }), INVALID_ARGUMENT,
              "blocks.tokens must be from 1 to 64");
  EXPECT_GRPC(with([](v1::PutBlock& b) { b.set_tokens(65); }), INVALID_ARGUMENT,
              "blocks.tokens must be from 1 to 64");
  EXPECT_GRPC(with([](v1::PutBlock& b) { b.set_first_position(1); }), INVALID_ARGUMENT,
              "blocks.first_position must be a multiple of tokens_per_block");
  EXPECT_GRPC(with([](v1::PutBlock& b) { b.set_first_position(~uint64_t{63}); }), INVALID_ARGUMENT,
              "blocks.first_position must be a multiple of tokens_per_block");
  EXPECT_GRPC(with([](v1::PutBlock& b) { b.set_staging_offset(32); }), INVALID_ARGUMENT,
              "blocks.staging_offset must be a multiple of 64");
  EXPECT_GRPC(with([](v1::PutBlock& b) {
                for (int i = 0; i < 5; ++i) b.add_supersedes(KeyBytes('t'));
              }),
              INVALID_ARGUMENT, "blocks.supersedes has more than 4 keys");
  EXPECT_GRPC(with([](v1::PutBlock& b) { b.add_supersedes("t"); }), INVALID_ARGUMENT,
              "blocks.supersedes must have 32 bytes");
}

TEST_F(GrpcServiceTest, S57_PutsOutsideTheStagingMemoryAreRefused) {
  StartAll();
  RegisterSmall();
  const uint64_t last = options_.staging_bytes - kSmallBlockBytes;
  v1::PutRequest request = OnePut();
  request.mutable_blocks(0)->set_staging_offset(last);
  EXPECT_TRUE(PutOf(request).ok());
  for (const uint64_t offset :
       {last + 64, options_.staging_bytes, options_.staging_bytes + 64, ~uint64_t{63}}) {
    request.mutable_blocks(0)->set_staging_offset(offset);
    EXPECT_GRPC(PutOf(request), INVALID_ARGUMENT,
                "a block of 32768 bytes at staging_offset " + std::to_string(offset) +
                    " is outside the session's staging memory");
  }
}

TEST_F(GrpcServiceTest, RemovingEverythingMustBeAskedForInSoManyWords) {
  StartAll();
  v1::RemoveReply reply;
  auto request = Signed<v1::RemoveRequest>();
  EXPECT_GRPC(Call(&Stub::Remove, request, &reply), INVALID_ARGUMENT, "keys must not be empty");
  request.set_whole_namespace(true);
  request.set_keys(KeyBytes('a'));
  EXPECT_GRPC(Call(&Stub::Remove, request, &reply), INVALID_ARGUMENT, "either keys or whole_namespace");
  request.clear_keys();
  ASSERT_TRUE(Call(&Stub::Remove, request, &reply).ok());
  EXPECT_EQ(reply.removed(), 1000u);
  request.set_whole_namespace(false);
  request.set_keys(KeyBytes('a'));
  ASSERT_TRUE(Call(&Stub::Remove, request, &reply).ok());
  EXPECT_EQ(reply.removed(), 1u);
}

TEST_F(GrpcServiceTest, TiersAndPagesAreBounded) {
  StartAll();
  v1::CountReply count;
  auto demote = Signed<v1::TierCountRequest>();
  demote.set_tier(3);
  EXPECT_GRPC(Call(&Stub::Demote, demote, &count), INVALID_ARGUMENT, "no tier 3");
  auto prefetch = Signed<v1::PrefetchRequest>();
  prefetch.set_tier(256);
  prefetch.set_keys(KeyBytes('a'));
  v1::PrefetchReply prefetched;
  EXPECT_GRPC(Call(&Stub::Prefetch, prefetch, &prefetched), INVALID_ARGUMENT, "no tier 256");
  auto list = Signed<v1::ListBlocksRequest>();
  list.set_limit(4097);
  v1::ListBlocksReply blocks;
  EXPECT_GRPC(Call(&Stub::ListBlocks, list, &blocks), INVALID_ARGUMENT, "limit must be at most 4096");
}

TEST_F(GrpcServiceTest, S57_RandomRequestsNeverHarm) {
  StartAll();
  RegisterSmall();
  const uint32_t seed = std::random_device()();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937_64 random(seed);
  const auto any = [&](uint64_t limit) { return random() % limit; };
  const auto key = [&] { return std::string(any(8) == 0 ? any(70) : 32, static_cast<char>(random())); };
  for (int i = 0; i < 2000; ++i) {
    v1::PutRequest request = OnePut();
    request.set_model(any(4) == 0 ? static_cast<uint32_t>(random()) : 5);
    request.set_durability(static_cast<v1::Durability>(any(3)));
    v1::PutBlock& block = *request.mutable_blocks(0);
    block.set_key(key());
    block.set_tokens(static_cast<uint32_t>(any(4) == 0 ? random() : any(66)));
    block.set_first_position(any(4) == 0 ? random() : any(100) * 64);
    block.set_staging_offset(any(4) == 0 ? random() : any(options_.staging_bytes / 64 + 2) * 64);
    const grpc::Status status = PutOf(request);
    if (!status.ok()) {
      ASSERT_TRUE(status.error_code() == grpc::StatusCode::INVALID_ARGUMENT ||
                  status.error_code() == grpc::StatusCode::NOT_FOUND)
          << status.error_message();
    }
  }
  std::lock_guard lock(mutex_);
  for (const size_t bytes : put_sizes_) EXPECT_LE(bytes, kSmallBlockBytes);
}

}  // namespace
}  // namespace kvtier
