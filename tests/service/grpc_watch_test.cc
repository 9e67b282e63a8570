// The stream of events, over a real gRPC connection.
#include <atomic>
#include <thread>

#include "tests/service/grpc_service_fixture.h"

namespace kvtier {
namespace {

class GrpcWatchTest : public GrpcServiceTest {
 protected:
  struct Stream {
    std::unique_ptr<grpc::ClientContext> context = std::make_unique<grpc::ClientContext>();
    std::unique_ptr<grpc::ClientReader<v1::Event>> reader;

    v1::Event Read() {
      v1::Event event;
      EXPECT_TRUE(reader->Read(&event)) << reader->Finish().error_message();
      return event;
    }
    grpc::Status End() {
      v1::Event event;
      while (reader->Read(&event)) {
      }
      return reader->Finish();
    }
  };
  Stream Watch(const v1::WatchRequest& request) {
    Stream stream;
    stream.context->set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(30));
    stream.reader = stub_->Watch(stream.context.get(), request);
    return stream;
  }
  Stream Watch() { return Watch(Signed<v1::WatchRequest>()); }
  static v1::Event Numbered(uint64_t number, size_t bytes = 0) {
    v1::Event event;
    event.mutable_session()->set_session(number);
    event.mutable_session()->set_reason(std::string(bytes, 'x'));
    return event;
  }
};

TEST_F(GrpcWatchTest, BeginsWithASnapshotAndTellsWhatHappensThen) {
  StartAll();
  Stream stream = Watch();
  const v1::Event first = stream.Read();
  EXPECT_EQ(first.sequence(), 1u);
  ASSERT_TRUE(first.has_snapshot());
  EXPECT_EQ(first.snapshot().stats().tiers(0).name(), "hot");
  EXPECT_EQ(first.snapshot().stats().version(), "1.2.3");

  std::optional<RawClient> other = Open();
  const v1::Event opened = stream.Read();
  EXPECT_EQ(opened.sequence(), 2u);
  EXPECT_EQ(opened.session().kind(), v1::SessionChange::OPENED);
  EXPECT_EQ(opened.session().tenant(), "uid:" + std::to_string(::getuid()));
  EXPECT_EQ(opened.session().uid(), ::getuid());
  EXPECT_EQ(opened.session().pid(), ::getpid());
  other.reset();
  const v1::Event ended = stream.Read();
  EXPECT_EQ(ended.session().kind(), v1::SessionChange::ENDED);
  EXPECT_EQ(ended.session().session(), opened.session().session());
  EXPECT_EQ(ended.session().reason(), "its socket was closed");
}

TEST_F(GrpcWatchTest, WantsASessionOfItsOwnAndEndsWithIt) {
  StartAll();
  EXPECT_GRPC(Watch({}).End(), UNAUTHENTICATED, "no open session has this token");
  Stream stream = Watch();
  EXPECT_TRUE(stream.Read().has_snapshot());
  session_.reset();
  EXPECT_GRPC(stream.End(), UNAUTHENTICATED, "the session has ended");
  EXPECT_TRUE(Eventually([this] { return hub_.watchers() == 0; }));
}

TEST_F(GrpcWatchTest, SnapshotsComeAgain) {
  StartAll();
  auto request = Signed<v1::WatchRequest>();
  request.set_snapshot_ms(1);  // a second is the least
  Stream stream = Watch(request);
  EXPECT_TRUE(stream.Read().has_snapshot());
  std::atomic<bool> read = false;
  std::thread ticks([&] {
    EXPECT_TRUE(Eventually([&] {
      grpc_->TakeSnapshots();
      return read.load();
    }));
  });
  const v1::Event second = stream.Read();
  read = true;
  ticks.join();
  EXPECT_TRUE(second.has_snapshot());
  EXPECT_EQ(second.sequence(), 2u);
}

TEST_F(GrpcWatchTest, AClientThatDoesNotReadHoldsUpNobodyAndSeesWhatItLost) {
  StartAll();
  Stream stream = Watch();
  EXPECT_TRUE(stream.Read().has_snapshot());
  // Far more than sockets and flow control hold.
  constexpr uint64_t kEvents = 4000;
  constexpr size_t kBytes = 16 << 10;
  for (uint64_t i = 1; i <= kEvents; ++i) hub_.TellEverybody(Numbered(i, kBytes));
  v1::StatsReply stats;
  EXPECT_TRUE(Call(&v1::Kvtier::Stub::Stats, Signed<v1::StatsRequest>(), &stats).ok());
  uint64_t told = kEvents, last = 1, read = 0;
  while (last <= kEvents + 1) {
    const v1::Event event = stream.Read();
    ASSERT_GT(event.sequence(), last);
    ASSERT_EQ(event.sequence(), event.session().session() + 1) << "lost ones have numbers, too";
    last = event.sequence();
    ++read;
    hub_.TellEverybody(Numbered(++told));
  }
  EXPECT_LT(read, kEvents) << "some were lost";
  EXPECT_GE(read, EventHubOptions().queue) << "as many as may wait were not";
}

TEST_F(GrpcWatchTest, WatchersAreBoundedAndOneThatGoesMakesRoom) {
  StartAll();
  std::vector<Stream> streams;
  for (size_t i = 0; i < EventHubOptions().watchers; ++i) {
    streams.push_back(Watch());
    EXPECT_TRUE(streams.back().Read().has_snapshot());
  }
  EXPECT_GRPC(Watch().End(), RESOURCE_EXHAUSTED, "too many watch");
  streams.back().context->TryCancel();
  EXPECT_EQ(streams.back().End().error_code(), grpc::StatusCode::CANCELLED);
  EXPECT_TRUE(Eventually([this] { return hub_.watchers() == EventHubOptions().watchers - 1; }));
  EXPECT_TRUE(Watch().Read().has_snapshot());
}

TEST_F(GrpcWatchTest, StopEndsStreamsThatNobodyReads) {
  StartAll();
  Stream reading = Watch(), silent = Watch();
  EXPECT_TRUE(reading.Read().has_snapshot());
  EXPECT_TRUE(silent.Read().has_snapshot());
  for (uint64_t i = 1; i <= 400; ++i) hub_.TellEverybody(Numbered(i, 64 << 10));
  std::thread reader([&] { EXPECT_GRPC(reading.End(), UNAVAILABLE, "the daemon stops"); });
  hub_.Close();
  reader.join();
  grpc_->Stop();
  EXPECT_EQ(hub_.watchers(), 0u);
}

}  // namespace
}  // namespace kvtier
