#include "daemon/service/session_server.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "daemon/service/session_connection.h"
#include "tests/service/session_fixture.h"
#include "tiers/cxl_format.h"

namespace kvtier {
namespace {

using SessionServerTest = SessionFixture;

TEST_F(SessionServerTest, WelcomesWithLimitsTokenAndSealedStaging) {
  options_.limits.models = 3;
  Start();
  RawClient client = Open();
  EXPECT_EQ(welcome_.protocol(), 1u);
  EXPECT_EQ(welcome_.boot_id(), std::string(16, '\x42'));
  EXPECT_EQ(welcome_.session_token().size(), 16u);
  EXPECT_EQ(welcome_.limits().staging_bytes(), 1u << 20);
  EXPECT_EQ(welcome_.limits().models(), 3u);
  EXPECT_TRUE(welcome_.admin());  // the test runs under the daemon's own uid
  EXPECT_TRUE(CheckSealed(staging_.get(), F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL, 1 << 20).ok());

  const auto session = registry_.Find(welcome_.session_token());
  ASSERT_NE(session, nullptr);
  EXPECT_EQ(session->tenant_name, "uid:" + std::to_string(::getuid()));
  auto memory = MappedMemory::MapShared(staging_.get(), 1 << 20, MapAccess::kReadWrite);
  ASSERT_TRUE(memory.ok());
  memory->data()[77] = std::byte{9};
  EXPECT_EQ(session->staging->bytes()[77], std::byte{9});
}

TEST_F(SessionServerTest, TokensAndSessionsDiffer) {
  Start();
  RawClient first = Open();
  const v1::Welcome one = welcome_;
  RawClient second = Open();
  EXPECT_NE(one.session_token(), welcome_.session_token());
  EXPECT_NE(one.session(), welcome_.session());
}

TEST_F(SessionServerTest, S67_SocketIsForItsOwnerOnly) {
  Start();
  struct stat info {};
  ASSERT_EQ(::stat(options_.socket_path.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 07777, 0600u);
}

TEST_F(SessionServerTest, TheSocketIsOpenToWhomTheConfigurationNames) {
  options_.socket_mode = 0660;
  const mode_t before = ::umask(0077);  // as under systemd
  Start();
  EXPECT_EQ(::umask(before), 0077u) << "of the process, as it was";
  struct stat info {};
  ASSERT_EQ(::stat(options_.socket_path.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 07777, 0660u);
}

TEST_F(SessionServerTest, S37_EndOfFileEndsTheSession) {
  Start();
  RawClient client = Open();
  client.Close();
  EXPECT_TRUE(Eventually([&] { return engine_->closed().size() == 1; }));
  EXPECT_EQ(engine_->closed()[0].value, welcome_.session());
  EXPECT_EQ(registry_.Find(welcome_.session_token()), nullptr);
  EXPECT_TRUE(Eventually([&] { return metrics_.staged_bytes.Get() == 0; }));
}

TEST_F(SessionServerTest, S37_DeathOfTheProcessEndsTheSessionThoughAnotherKeepsTheSocket) {
  Start();
  // The child connects, so that it is the peer; this process gets a copy of the socket, as a forked child
  // would have.
  int pair[2];
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    RawClient client = RawClient::Connect(options_.socket_path);
    client.Hello();
    const int fd = client.fd();
    const bool sent = SendDatagram(pair[1], "x", fd) == WireOutcome::kDone;
    char wait;
    ::_exit(sent && ::read(pair[1], &wait, 1) == 1 ? 0 : 1);
  }
  char byte;
  iovec part{.iov_base = &byte, .iov_len = 1};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr header{};
  header.msg_iov = &part;
  header.msg_iovlen = 1;
  header.msg_control = control;
  header.msg_controllen = sizeof(control);
  ASSERT_EQ(::recvmsg(pair[0], &header, MSG_CMSG_CLOEXEC), 1);
  int held;
  std::memcpy(&held, CMSG_DATA(CMSG_FIRSTHDR(&header)), sizeof(held));
  const UniqueFd socket(held);
  ASSERT_TRUE(Eventually([&] { return engine_->opened().size() == 1; }));
  const auto killed_at = std::chrono::steady_clock::now();
  ::kill(child, SIGKILL);
  EXPECT_TRUE(Eventually([&] { return engine_->closed().size() == 1; }));
  EXPECT_LT(std::chrono::steady_clock::now() - killed_at, std::chrono::seconds(1));
  ::waitpid(child, nullptr, 0);
  ::close(pair[0]);
  ::close(pair[1]);
}

TEST_F(SessionServerTest, S55_AnIdleSessionStays) {
  Start();
  RawClient client = Open();
  // Anything another client does later shows that the idle one was looked at and kept.
  for (int i = 0; i < 10; ++i) Open().Close();
  EXPECT_TRUE(Eventually([&] { return engine_->closed().size() == 10; }));
  EXPECT_NE(engine_->opened()[0].session, engine_->closed()[0]);
}

TEST_F(SessionServerTest, S65_OtherProtocolVersionsAreRefusedLoudlyAndCounted) {
  Start();
  RawClient newer = RawClient::Connect(options_.socket_path);
  newer.Hello(2, 3);
  EXPECT_EQ(RefusalOf(newer), "this daemon speaks session protocol 1, the client 2 to 3");
  RawClient none = RawClient::Connect(options_.socket_path);
  none.Hello(0, 0);
  EXPECT_EQ(RefusalOf(none), "this daemon speaks session protocol 1, the client 0 to 0");
  EXPECT_EQ(metrics_.sessions_refused.Get(), 2u);
  RawClient range = RawClient::Connect(options_.socket_path);
  range.Hello(1, 9);
  const auto welcome = range.Receive();
  ASSERT_TRUE(welcome && welcome->message.has_welcome());
  EXPECT_EQ(welcome->message.welcome().protocol(), 1u);
}

TEST_F(SessionServerTest, S57_MalformedMessagesAreRefused) {
  Start();
  RawClient garbage = RawClient::Connect(options_.socket_path);
  garbage.SendBytes("\xff\xff\xff\xff");
  EXPECT_EQ(RefusalOf(garbage), "malformed message");
  RawClient impatient = RawClient::Connect(options_.socket_path);
  impatient.Unmapped(1);
  EXPECT_EQ(RefusalOf(impatient), "the first message must be a hello");
  RawClient oversized = RawClient::Connect(options_.socket_path);
  oversized.SendBytes(std::string(5000, 'x'));
  EXPECT_EQ(RefusalOf(oversized), "message longer than 1024 bytes");
  RawClient verbose = RawClient::Connect(options_.socket_path);
  verbose.Hello(1, 1, std::string(65, 'n'));
  EXPECT_EQ(RefusalOf(verbose), "client name longer than 64 bytes");
  EXPECT_EQ(metrics_.sessions_refused.Get(), 4u);
  EXPECT_TRUE(engine_->opened().empty());
}

TEST_F(SessionServerTest, S57_ASecondHelloEndsTheSession) {
  Start();
  RawClient client = Open();
  client.Hello();
  EXPECT_EQ(RefusalOf(client), "not a message of an open session");
  EXPECT_TRUE(Eventually([&] { return engine_->closed().size() == 1; }));
}

TEST_F(SessionServerTest, S57_AnAcknowledgementOfAnArenaThatWasNotRetiredEndsTheSession) {
  Start();
  arenas_at_open_ = {MakeArena()};
  RawClient client = Open();
  ASSERT_TRUE(client.Receive()->message.has_offer());
  client.Unmapped(1);
  EXPECT_EQ(RefusalOf(client), "acknowledged an arena that was not retired");
  EXPECT_TRUE(Eventually([&] { return engine_->closed().size() == 1; }));
  EXPECT_TRUE(engine_->unmapped().empty());
}

TEST_F(SessionServerTest, MoreSilentConnectionsThanTheBoundKeepOthersWaitingNotOut) {
  Start();
  std::vector<RawClient> silent;
  for (uint32_t i = 0; i < kMaxWaitingForHello; ++i)
    silent.push_back(RawClient::Connect(options_.socket_path));
  RawClient client = RawClient::Connect(options_.socket_path);
  client.Hello();
  EXPECT_FALSE(client.Receive(200).has_value());
  silent.pop_back();
  const auto welcome = client.Receive();
  EXPECT_TRUE(welcome && welcome->message.has_welcome());
  EXPECT_EQ(metrics_.sessions_refused.Get(), 0u);
}

TEST_F(SessionServerTest, OffersArenasAfterTheWelcomeAndRetiresThem) {
  Start();
  arenas_at_open_ = {MakeArena()};
  RawClient client = Open();
  const auto offer = client.Receive();
  ASSERT_TRUE(offer && offer->message.has_offer());
  EXPECT_EQ(offer->message.offer().arena(), 1u);
  EXPECT_EQ(offer->message.offer().bytes(), ArenaBytes(2, 4096));
  EXPECT_EQ(offer->message.offer().slots(), 2u);
  EXPECT_EQ(offer->message.offer().slot_bytes(), 4096u);
  struct stat sent {
  }, kept{};
  ASSERT_EQ(::fstat(offer->descriptor.get(), &sent), 0);
  ASSERT_EQ(::fstat(arena_file_.get(), &kept), 0);
  EXPECT_EQ(sent.st_ino, kept.st_ino);

  server_->OnArenaRetired(ArenaId{1}, kTenant);
  const auto retire = client.Receive();
  ASSERT_TRUE(retire && retire->message.has_retire());
  EXPECT_EQ(retire->message.retire().arena(), 1u);
  client.Unmapped(1);
  EXPECT_TRUE(Eventually([&] { return engine_->unmapped().size() == 1; }));
  EXPECT_EQ(engine_->unmapped()[0].session.value, welcome_.session());
  EXPECT_EQ(engine_->unmapped()[0].arena.value, 1u);
}

class SharedStoreTest : public SessionFixture {
 protected:
  static constexpr TierId kTier{2};
  static constexpr uint32_t kStore = StoreArenaId(kTier).value;

  void StartWithStoreOf(const std::string& tenant) {
    file_ = std::move(MakeMemoryFile("store", kCxlMetaBytes + (2 << 20))).value();
    SharedStore store{.tier = kTier,
                      .tenant = tenant,
                      .descriptor = file_.get(),
                      .bytes = kCxlMetaBytes + (2 << 20),
                      .segments = 2,
                      .segment_bytes = 1 << 20};
    store.uuid.fill(std::byte{'u'});
    stores_ = {store};
    Start();
  }
  static std::string Ours() { return "uid:" + std::to_string(::getuid()); }
  RawClient OpenMapper() {
    RawClient client = RawClient::Connect(options_.socket_path);
    EXPECT_TRUE(client.HelloOfMapper());
    const auto welcome = client.Receive();
    EXPECT_TRUE(welcome && welcome->message.has_welcome());
    return client;
  }
  /// Whether nothing has come before an arena that is published now.
  bool HearsOfNoStore(RawClient& client) {
    server_->OnArenaPublished(MakeArena());
    const auto next = client.Receive();
    return next && next->message.has_offer();
  }

  UniqueFd file_;
};

TEST_F(SharedStoreTest, IsOfferedToItsTenantAndTheEngineHearsOnceThatItIsMapped) {
  StartWithStoreOf(Ours());
  RawClient client = OpenMapper();
  const auto incoming = client.Receive();
  ASSERT_TRUE(incoming && incoming->message.has_store());
  const v1::StoreOffer& offer = incoming->message.store();
  EXPECT_EQ(offer.arena(), kStore);
  EXPECT_EQ(offer.bytes(), kCxlMetaBytes + (2 << 20));
  EXPECT_EQ(offer.segments(), 2u);
  EXPECT_EQ(offer.segment_bytes(), 1u << 20);
  EXPECT_EQ(offer.first_segment(), kCxlMetaBytes);
  EXPECT_EQ(offer.store_uuid(), std::string(16, 'u'));
  struct stat sent {
  }, kept{};
  ASSERT_EQ(::fstat(incoming->descriptor.get(), &sent), 0);
  ASSERT_EQ(::fstat(file_.get(), &kept), 0);
  EXPECT_EQ(sent.st_ino, kept.st_ino);
  EXPECT_TRUE(engine_->mapped().empty());
  client.Mapped(kStore);
  EXPECT_TRUE(Eventually([&] { return engine_->mapped().size() == 1; }));
  EXPECT_EQ(engine_->mapped()[0].tier, kTier);
  client.Mapped(kStore);
  EXPECT_EQ(RefusalOf(client), "mapped a store that was not offered, or twice");
}

TEST_F(SharedStoreTest, S70_IsNotOfferedToOthersNorToLibrariesThatDoNotAsk) {
  StartWithStoreOf("uid:4000000000");
  RawClient stranger = OpenMapper();
  EXPECT_TRUE(HearsOfNoStore(stranger));
  stranger.Mapped(kStore);
  EXPECT_EQ(RefusalOf(stranger), "mapped a store that was not offered, or twice");
  EXPECT_TRUE(engine_->mapped().empty());
}

TEST_F(SharedStoreTest, S65_IsNotOfferedToAnOlderLibrary) {
  StartWithStoreOf(Ours());
  RawClient older = Open();
  EXPECT_TRUE(HearsOfNoStore(older));
}

TEST_F(SharedStoreTest, WhatIsWithdrawnIsUnmappedAndOfferedNoMore) {
  StartWithStoreOf(Ours());
  RawClient client = OpenMapper();
  ASSERT_TRUE(client.Receive()->message.has_store());
  client.Mapped(kStore);
  EXPECT_TRUE(Eventually([&] { return engine_->mapped().size() == 1; }));
  server_->WithdrawStore(kTier);
  const auto retire = client.Receive();
  ASSERT_TRUE(retire && retire->message.has_retire());
  EXPECT_EQ(retire->message.retire().arena(), kStore);
  EXPECT_TRUE(Eventually([&] { return engine_->unmapped().size() == 1; })) << "at once";
  EXPECT_EQ(engine_->unmapped()[0].arena.value, kStore);
  client.Unmapped(kStore);
  EXPECT_TRUE(Eventually([&] { return engine_->unmapped().size() == 2; }));
  RawClient later = OpenMapper();
  EXPECT_TRUE(HearsOfNoStore(later));
}

TEST_F(SessionServerTest, S70_ArenasGoToTheirTenantOnly) {
  Start();
  RawClient client = Open();
  ArenaSpec foreign = MakeArena();
  foreign.tenant = TenantId{8};
  server_->OnArenaPublished(foreign);
  server_->OnArenaPublished(
      ArenaSpec{.id = ArenaId{1}, .tier = TierId{0}, .tenant = kTenant, .slots = 9, .slot_bytes = 4096});
  const auto offer = client.Receive();
  ASSERT_TRUE(offer && offer->message.has_offer());
  EXPECT_EQ(offer->message.offer().slots(), 9u);  // the foreign one, published first, did not come
}

TEST_F(SessionServerTest, SessionsAreBounded) {
  options_.sessions = 2;
  Start();
  RawClient first = Open(), second = Open();
  RawClient third = RawClient::Connect(options_.socket_path);
  third.Hello();
  EXPECT_EQ(RefusalOf(third), "all 2 sessions are taken");
  first.Close();
  EXPECT_TRUE(Eventually([&] { return engine_->closed().size() == 1; }));
  Open();
}

TEST_F(SessionServerTest, StagingOfAllSessionsIsBounded) {
  options_.staging_total_bytes = options_.staging_bytes * 2;
  Start();
  RawClient first = Open(), second = Open();
  RawClient third = RawClient::Connect(options_.socket_path);
  third.Hello();
  EXPECT_EQ(RefusalOf(third), "no staging memory left for another session ([server] staging_total)");
  second.Close();
  EXPECT_TRUE(Eventually([&] { return engine_->closed().size() == 1; }));
  Open();
}

TEST_F(SessionServerTest, StagingLivesAsLongAsAPutReadsFromIt) {
  Start();
  RawClient client = Open();
  std::shared_ptr<const Staging> staging = registry_.Find(welcome_.session_token())->staging;
  client.Close();
  ASSERT_TRUE(Eventually([&] { return engine_->closed().size() == 1; }));
  EXPECT_EQ(staging->bytes()[0], std::byte{0});
  EXPECT_TRUE(Eventually([&] { return staging.use_count() == 1; }));
}

TEST_F(SessionServerTest, AClientThatDoesNotReadIsDisconnected) {
  Start();
  RawClient client = Open();
  RawClient reader = Open();
  MakeArena();
  // More offers than the socket and the outbox together hold.
  for (uint32_t i = 0; i < 3 * kMaxOutbox; ++i) {
    server_->OnArenaPublished(
        ArenaSpec{.id = ArenaId{1}, .tier = TierId{0}, .tenant = kTenant, .slots = 1, .slot_bytes = 4096});
    while (reader.Receive()->message.offer().arena() != 1) {
    }
    if (!engine_->closed().empty()) break;
  }
  EXPECT_TRUE(Eventually([&] { return engine_->closed().size() == 1; }));
  EXPECT_NE(engine_->closed()[0].value, welcome_.session());
}

TEST_F(SessionServerTest, LostArenaEventsEndEverySessionSoThatTheyComeBack) {
  options_.event_queue = 4;
  Start();
  RawClient client = Open();
  MakeArena();
  for (int i = 0; i < 100'000; ++i) {
    server_->OnArenaPublished(
        ArenaSpec{.id = ArenaId{1}, .tier = TierId{0}, .tenant = kTenant, .slots = 1, .slot_bytes = 4096});
  }
  EXPECT_TRUE(Eventually([&] { return engine_->closed().size() == 1; }));
  EXPECT_TRUE(client.SeesEndOfFile());
}

TEST_F(SessionServerTest, StopEndsEverySessionAndRemovesTheSocket) {
  Start();
  RawClient first = Open(), second = Open();
  server_->Stop();
  EXPECT_TRUE(Eventually([&] { return engine_->closed().size() == 2; }));
  EXPECT_TRUE(first.SeesEndOfFile());
  EXPECT_TRUE(second.SeesEndOfFile());
  EXPECT_NE(::access(options_.socket_path.c_str(), F_OK), 0);
}

class StuckEngineTest : public SessionFixture {
 protected:
  bool Answer(Command&) override { return false; }
};

TEST_F(StuckEngineTest, ClosingAConnectionThatIsBeingOpenedTellsTheEngineAfterwards) {
  Start();
  RawClient client = RawClient::Connect(options_.socket_path);
  client.Hello();
  EXPECT_TRUE(Eventually([&] { return engine_->opened().size() == 1; }));
  client.Close();
  EXPECT_TRUE(Eventually([&] { return engine_->closed().size() == 1; }));
  EXPECT_EQ(engine_->closed()[0], engine_->opened()[0].session);
}

class RefusingEngineTest : public SessionFixture {
 protected:
  bool Answer(Command& command) override {
    if (auto* open = std::get_if<OpenSession>(&command.body)) {
      open->reply(Status(Code::kResourceExhausted, "no room for another session"));
    }
    return true;
  }
};

TEST_F(RefusingEngineTest, TheReasonReachesTheClient) {
  Start();
  RawClient client = RawClient::Connect(options_.socket_path);
  client.Hello();
  EXPECT_EQ(RefusalOf(client), "no room for another session");
  EXPECT_EQ(metrics_.sessions_refused.Get(), 0u);  // the engine counts its own refusals
}

TEST_F(SessionServerTest, AFullCommandQueueRefusesAndStillGetsEveryClose) {
  Start();
  std::vector<RawClient> clients;
  for (int i = 0; i < 40; ++i) clients.push_back(Open());
  clients.clear();
  EXPECT_TRUE(Eventually([&] { return engine_->closed().size() == 40; }));
}

}  // namespace
}  // namespace kvtier
