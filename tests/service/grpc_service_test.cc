#include <sys/stat.h>

#include "tests/service/grpc_service_fixture.h"

namespace kvtier {
namespace {

using Stub = v1::Kvtier::Stub;

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
  auto other = std::make_shared<ClientSession>();
  other->id = SessionId{1000};
  other->tenant_name = "uid:4242";
  SessionToken token;
  token.fill(std::byte{'t'});
  registry_.Add(token, other);
  const std::string mine = token_;
  token_ = std::string(16, 't');

  const std::string text = "for root, the daemon's own user and [admin] only";
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

}  // namespace
}  // namespace kvtier
