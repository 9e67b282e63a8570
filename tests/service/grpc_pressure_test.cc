#include <atomic>
#include <mutex>
#include <thread>

#include "tests/service/grpc_fixture.h"

namespace kvtier {
namespace {

using Stub = v1::Kvtier::Stub;

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
  // 64 wait; one more is being served if the consumer took it before the queue was full.
  EXPECT_TRUE(Eventually([&] { return exhausted.load() >= kCalls - 65; }));
  gate_.unlock();
  for (std::thread& caller : callers) caller.join();
  EXPECT_EQ(served.load() + exhausted.load(), kCalls);
  EXPECT_TRUE(served.load() == 64 || served.load() == 65) << served.load();
  EXPECT_EQ(metrics_.commands_rejected_full.Get(), static_cast<uint64_t>(exhausted.load()));
}

TEST_F(GrpcFixture, ASecondDaemonOnTheSameSocketIsRefused) {
  StartAll();
  const auto second = GrpcServer::Make(grpc_options_, {.commands = commands_,
                                                       .on_queued = [this] { commands_.Wake(); },
                                                       .registry = registry_,
                                                       .metrics = metrics_,
                                                       .clock = clock_,
                                                       .events = hub_});
  EXPECT_EQ(second.status().message(), "another process answers on " + grpc_options_.socket_path);
  RegisterSmall();  // the first still serves
}

}  // namespace
}  // namespace kvtier
