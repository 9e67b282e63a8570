#include <sys/stat.h>

#include <random>

#include "daemon/service/convert.h"
#include "tests/service/grpc_fixture.h"

namespace kvtier {
namespace {

using Stub = v1::Kvtier::Stub;

/// Answers every kind of command with something recognisable and keeps the last put, acquire and demote.
class GrpcServiceTest : public GrpcFixture {
 protected:
  bool Answer(Command& command) override {
    std::lock_guard lock(mutex_);
    last_deadline_ = command.deadline;
    if (auto* lookup = std::get_if<Lookup>(&command.body)) {
      if (lookup->model.value == 99) {
        lookup->reply(Status(Code::kStale, "gone"));
        return true;
      }
      LookupReply reply;
      for (size_t i = 0; i < lookup->keys.size(); ++i) {
        reply.run.push_back({.precision = Precision::kInt4, .tier = TierId{static_cast<uint8_t>(i % 3)}});
      }
      reply.next_pending = true;
      reply.tails.push_back({.tokens = 7, .key = lookup->keys[0]});
      lookup->reply(reply);
    } else if (auto* acquire = std::get_if<Acquire>(&command.body)) {
      AcquireReply reply;
      AcquiredBlock block;
      block.key = acquire->keys[0];
      block.tokens = 64;
      block.codec = CodecId::kKv2p;
      block.precision = Precision::kInt2;
      block.served_from = TierId{2};
      block.image_bytes = 1000;
      block.place =
          Place{.tier = TierId{1}, .container = 3, .slot = 4, .offset = 8192, .bytes = 4096, .epoch = 77};
      block.k_error = 0.25f;
      reply.run.push_back(block);
      reply.stopped_by = Code::kNotFound;
      reply.expires = clock_.Now() + acquire->ttl;
      acquire->reply(reply);
    } else if (auto* put = std::get_if<Put>(&command.body)) {
      PutReply reply;
      for (const PutBlock& block : put->blocks) {
        put_bytes_.push_back(block.source.raw.empty() ? std::byte{0} : block.source.raw[0]);
        put_sizes_.push_back(block.source.raw.size());
        reply.blocks.push_back({.code = Code::kOk, .precision = Precision::kBits16, .tier = TierId{0}});
      }
      put->reply(reply);
    } else if (auto* remove = std::get_if<Remove>(&command.body)) {
      remove->reply(remove->keys.empty() ? 1000 : remove->keys.size());
    } else if (auto* stats = std::get_if<Stats>(&command.body)) {
      StatsReply reply;
      TierStats tier;
      tier.name = "hot";
      tier.blocks[5] = 12;
      reply.tiers.push_back(tier);
      stats->reply(reply);
    } else if (auto* demote = std::get_if<AdminDemote>(&command.body)) {
      demote->reply(demote->count);
    } else {
      return GrpcFixture::Answer(command);
    }
    return true;
  }
  TimePoint last_deadline() const {
    std::lock_guard lock(mutex_);
    return last_deadline_;
  }

  v1::PutRequest OnePut() {
    auto request = Signed<v1::PutRequest>();
    request.set_model(5);
    v1::PutBlock& block = *request.add_blocks();
    block.set_key(KeyBytes('k'));
    block.set_parent(KeyBytes('p'));
    block.set_tokens(64);
    return request;
  }
  grpc::Status PutOf(const v1::PutRequest& request) {
    v1::PutReply reply;
    return Call(&Stub::Put, request, &reply);
  }
  grpc::Status RegisterOf(const v1::ModelSpec& spec) {
    auto request = Signed<v1::RegisterModelRequest>();
    *request.mutable_spec() = spec;
    v1::RegisterModelReply reply;
    return Call(&Stub::RegisterModel, request, &reply);
  }
  grpc::Status LookupOf(const std::string& parent, const std::string& keys, uint32_t model = 5) {
    auto request = Signed<v1::LookupRequest>();
    request.set_model(model);
    request.set_parent(parent);
    request.set_keys(keys);
    v1::LookupReply reply;
    return Call(&Stub::Lookup, request, &reply);
  }

  mutable std::mutex mutex_;
  TimePoint last_deadline_;
  std::vector<std::byte> put_bytes_;
  std::vector<size_t> put_sizes_;
};

#define EXPECT_GRPC(status, wanted_code, text)                  \
  do {                                                          \
    const grpc::Status got = (status);                          \
    EXPECT_EQ(got.error_code(), grpc::StatusCode::wanted_code); \
    EXPECT_EQ(got.error_message(), text);                       \
  } while (false)

TEST_F(GrpcServiceTest, LookupAnswersOneByteABlock) {
  StartAll();
  auto request = Signed<v1::LookupRequest>();
  request.set_parent(KeyBytes('p'));
  request.set_keys(KeyBytes('a') + KeyBytes('b'));
  v1::LookupReply reply;
  ASSERT_TRUE(Call(&Stub::Lookup, request, &reply).ok());
  EXPECT_EQ(reply.run(), std::string("\x30\x31", 2));
  EXPECT_TRUE(reply.next_pending());
  ASSERT_EQ(reply.tails_size(), 1);
  EXPECT_EQ(reply.tails(0).tokens(), 7u);
  EXPECT_EQ(reply.tails(0).key(), KeyBytes('a'));
}

TEST_F(GrpcServiceTest, AcquireCarriesExtentsPrecisionAndErrors) {
  StartAll();
  auto request = Signed<v1::AcquireRequest>();
  request.set_parent(KeyBytes('p'));
  request.set_keys(KeyBytes('a'));
  request.set_ttl_ms(5000);
  v1::AcquireReply reply;
  ASSERT_TRUE(Call(&Stub::Acquire, request, &reply).ok());
  ASSERT_EQ(reply.run_size(), 1);
  const v1::AcquiredBlock& block = reply.run(0);
  EXPECT_EQ(block.key(), KeyBytes('a'));
  EXPECT_EQ(block.precision(), v1::PRECISION_INT2);
  EXPECT_EQ(block.served_from(), 2u);
  EXPECT_FLOAT_EQ(block.k_error(), 0.25f);
  ASSERT_EQ(block.extents_size(), 1);
  EXPECT_EQ(block.extents(0).arena(), 3u);
  EXPECT_EQ(block.extents(0).slot(), 4u);
  EXPECT_EQ(block.extents(0).offset(), 8192u);
  EXPECT_EQ(block.extents(0).bytes(), 1000u);
  EXPECT_EQ(block.extents(0).slot_epoch(), 77u);
  EXPECT_EQ(reply.stopped_by(), 5);
  EXPECT_GT(reply.ttl_ms(), 1000u);
  EXPECT_LE(reply.ttl_ms(), 5000u);
}

TEST_F(GrpcServiceTest, PutReadsFromTheSessionsStaging) {
  StartAll();
  RegisterSmall();
  auto memory = MappedMemory::MapShared(staging_.get(), options_.staging_bytes, MapAccess::kReadWrite);
  ASSERT_TRUE(memory.ok());
  memory->data()[0] = std::byte{1};
  memory->data()[kSmallBlockBytes] = std::byte{2};
  v1::PutRequest request = OnePut();
  *request.add_blocks() = request.blocks(0);
  request.mutable_blocks(1)->set_staging_offset(kSmallBlockBytes);
  request.mutable_blocks(1)->set_first_position(64);
  request.mutable_blocks(1)->set_tokens(3);
  ASSERT_TRUE(PutOf(request).ok());
  std::lock_guard lock(mutex_);
  EXPECT_EQ(put_bytes_, (std::vector{std::byte{1}, std::byte{2}}));
  EXPECT_EQ(put_sizes_, (std::vector<size_t>{kSmallBlockBytes, kSmallBlockBytes * 3 / 64}));
}

TEST_F(GrpcServiceTest, CodesAboveGrpcsTravelAsAborted) {
  StartAll();
  EXPECT_GRPC(LookupOf(KeyBytes('p'), KeyBytes('a'), 99), ABORTED, "STALE: gone");
}

TEST_F(GrpcServiceTest, StatsCarriesVersionAndTiers) {
  StartAll();
  v1::StatsReply reply;
  ASSERT_TRUE(Call(&Stub::Stats, Signed<v1::StatsRequest>(), &reply).ok());
  EXPECT_EQ(reply.version(), "1.2.3");
  ASSERT_EQ(reply.tiers_size(), 1);
  EXPECT_EQ(reply.tiers(0).name(), "hot");
  EXPECT_EQ(reply.tiers(0).blocks(5), 12u);
}

TEST_F(GrpcServiceTest, S55_CallsWithoutAnOpenSessionAreRefusedAtOnceAndCounted) {
  StartAll();
  v1::StatsReply reply;
  EXPECT_GRPC(Call(&Stub::Stats, v1::StatsRequest(), &reply), UNAUTHENTICATED,
              "no open session has this token");
  v1::StatsRequest wrong;
  wrong.set_session_token(std::string(16, 'x'));
  EXPECT_EQ(Call(&Stub::Stats, wrong, &reply).error_code(), grpc::StatusCode::UNAUTHENTICATED);
  wrong.set_session_token(std::string(100'000, 'x'));
  EXPECT_EQ(Call(&Stub::Stats, wrong, &reply).error_code(), grpc::StatusCode::UNAUTHENTICATED);
  EXPECT_EQ(metrics_.unauthenticated_calls.Get(), 3u);
  session_->Close();
  EXPECT_TRUE(Eventually([&] { return !engine_->closed().empty(); }));
  EXPECT_EQ(Call(&Stub::Stats, Signed<v1::StatsRequest>(), &reply).error_code(),
            grpc::StatusCode::UNAUTHENTICATED);
}

TEST_F(GrpcServiceTest, S67_TheSocketIsForItsOwnerOnly) {
  StartAll();
  struct stat info {};
  ASSERT_EQ(::stat(grpc_options_.socket_path.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600u);
}

TEST_F(GrpcServiceTest, S67_AdminVerbsNeedTheAdminIdentity) {
  StartAll();
  auto other = std::make_shared<Session>();
  other->id = SessionId{1000};
  other->tenant_name = "uid:4242";
  SessionToken token;
  token.fill(std::byte{'t'});
  registry_.Add(token, other);
  const std::string mine = token_;
  token_ = std::string(16, 't');

  const std::string text = "for the daemon's own user and root only";
  v1::CountReply count;
  v1::ListModelsReply models;
  v1::ListBlocksReply blocks;
  v1::VerifyReply verified;
  v1::StatsReply stats;
  EXPECT_GRPC(Call(&Stub::Demote, Signed<v1::TierCountRequest>(), &count), PERMISSION_DENIED, text);
  EXPECT_GRPC(Call(&Stub::Evict, Signed<v1::TierCountRequest>(), &count), PERMISSION_DENIED, text);
  EXPECT_GRPC(Call(&Stub::Drain, Signed<v1::DrainRequest>(), &count), PERMISSION_DENIED, text);
  EXPECT_GRPC(Call(&Stub::Verify, Signed<v1::VerifyRequest>(), &verified), PERMISSION_DENIED, text);
  EXPECT_GRPC(Call(&Stub::ListModels, Signed<v1::ListModelsRequest>(), &models), PERMISSION_DENIED, text);
  EXPECT_GRPC(Call(&Stub::ListBlocks, Signed<v1::ListBlocksRequest>(), &blocks), PERMISSION_DENIED, text);
  EXPECT_TRUE(Call(&Stub::Stats, Signed<v1::StatsRequest>(), &stats).ok());

  token_ = mine;
  auto demote = Signed<v1::TierCountRequest>();
  demote.set_count(3);
  ASSERT_TRUE(Call(&Stub::Demote, demote, &count).ok());
  EXPECT_EQ(count.count(), 3u);
  demote.set_count(0);
  ASSERT_TRUE(Call(&Stub::Demote, demote, &count).ok());
  EXPECT_EQ(count.count(), UINT64_MAX);  // all
}

TEST_F(GrpcServiceTest, DeadlinesAreTheEarlierOfBoth) {
  StartAll();
  auto request = Signed<v1::AcquireRequest>();
  request.set_parent(KeyBytes('p'));
  request.set_keys(KeyBytes('a'));
  v1::AcquireReply reply;
  const TimePoint before = clock_.Now();
  request.set_deadline_ms(500);
  ASSERT_TRUE(Call(&Stub::Acquire, request, &reply, std::chrono::seconds(5)).ok());
  EXPECT_GE(last_deadline(), before + std::chrono::milliseconds(500));
  EXPECT_LE(last_deadline(), clock_.Now() + std::chrono::milliseconds(500));
  request.set_deadline_ms(50'000);
  ASSERT_TRUE(Call(&Stub::Acquire, request, &reply, std::chrono::seconds(5)).ok());
  EXPECT_LE(last_deadline(), clock_.Now() + std::chrono::seconds(6));  // gRPC rounds time-outs up
  EXPECT_GE(last_deadline(), before + std::chrono::seconds(4));
  request.set_deadline_ms(0);
  grpc::ClientContext none;
  const TimePoint third = clock_.Now();
  ASSERT_TRUE(stub_->Acquire(&none, request, &reply).ok());
  EXPECT_GE(last_deadline(), third + grpc_options_.default_deadline);
  EXPECT_LE(last_deadline(), clock_.Now() + grpc_options_.default_deadline);
}

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

/// Never answers anything but sessions, until released.
class StuckServiceTest : public GrpcFixture {
 protected:
  bool Answer(Command& command) override {
    if (std::holds_alternative<OpenSession>(command.body)) return GrpcFixture::Answer(command);
    if (auto* stats = std::get_if<Stats>(&command.body)) {
      std::lock_guard lock(mutex_);
      if (released_) {
        stats->reply(StatsReply{});
      } else {
        held_.push_back(stats->reply);
      }
    }
    return true;
  }
  void ReleaseAll() {
    std::lock_guard lock(mutex_);
    released_ = true;
    for (const Reply<StatsReply>& reply : held_) reply(Status(Code::kUnavailable, "the daemon stops"));
    held_.clear();
  }
  void TearDown() override {
    ReleaseAll();
    GrpcFixture::TearDown();
  }

  std::mutex mutex_;
  bool released_ = false;
  std::vector<Reply<StatsReply>> held_;
};

TEST_F(StuckServiceTest, S54_CallsEndAtTheirDeadlineAndLateRepliesAreHarmless) {
  StartAll();
  v1::StatsReply reply;
  const auto before = std::chrono::steady_clock::now();
  const grpc::Status status =
      Call(&Stub::Stats, Signed<v1::StatsRequest>(), &reply, std::chrono::milliseconds(100));
  EXPECT_EQ(status.error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
  EXPECT_LT(std::chrono::steady_clock::now() - before, std::chrono::seconds(2));
  ReleaseAll();
  EXPECT_TRUE(Call(&Stub::Stats, Signed<v1::StatsRequest>(), &reply).ok());
}

TEST_F(StuckServiceTest, StopWaitsForEveryReply) {
  StartAll();
  std::thread caller([&] {
    v1::StatsReply reply;
    EXPECT_FALSE(Call(&Stub::Stats, Signed<v1::StatsRequest>(), &reply).ok());
  });
  EXPECT_TRUE(Eventually([&] {
    std::lock_guard lock(mutex_);
    return held_.size() == 1;
  }));
  std::thread stop([&] { grpc_->Stop(); });
  ReleaseAll();
  stop.join();
  caller.join();
}

/// Stops taking commands when told, so that the queue fills.
class BlockedServiceTest : public GrpcFixture {
 protected:
  bool Answer(Command& command) override {
    if (auto* cancel = std::get_if<Cancel>(&command.body)) {
      gate_.lock();  // held by the test until the queue has filled
      gate_.unlock();
      cancel->reply(Done{});
      return true;
    }
    return GrpcFixture::Answer(command);
  }
  std::mutex gate_;
};

TEST_F(BlockedServiceTest, AFullQueueAnswersResourceExhaustedAndIsCounted) {
  StartAll();
  constexpr int kCalls = 100;  // the queue holds 64
  gate_.lock();
  std::atomic<int> exhausted{0}, served{0};
  std::vector<std::thread> callers;
  for (int i = 0; i < kCalls; ++i) {
    callers.emplace_back([&] {
      v1::CancelReply reply;
      const grpc::Status status = Call(&Stub::Cancel, Signed<v1::CancelRequest>(), &reply);
      if (status.ok()) ++served;
      if (status.error_code() == grpc::StatusCode::RESOURCE_EXHAUSTED) ++exhausted;
    });
  }
  EXPECT_TRUE(Eventually([&] { return exhausted.load() == kCalls - 65; }));  // 64 wait, one is being served
  gate_.unlock();
  for (std::thread& caller : callers) caller.join();
  EXPECT_EQ(served.load(), 65);
  EXPECT_EQ(metrics_.commands_rejected_full.Get(), static_cast<uint64_t>(kCalls - 65));
}

TEST_F(GrpcFixture, ASecondDaemonOnTheSameSocketIsRefused) {
  StartAll();
  const auto second = GrpcServer::Make(
      grpc_options_, {.commands = commands_, .registry = registry_, .metrics = metrics_, .clock = clock_});
  EXPECT_EQ(second.status().message(), "another process answers on " + grpc_options_.socket_path);
  v1::RegisterModelReply reply;
  RegisterSmall();
}

}  // namespace
}  // namespace kvtier
