#include "tiers/committer.h"

#include <gtest/gtest.h>

#include <map>
#include <mutex>
#include <stdexcept>

namespace kvtier {
namespace {

constexpr Duration kPatience = std::chrono::seconds(20);

/// Remembers what it was asked; fails or throws for chosen segments.
class FakeColdStore final : public ColdStore {
 public:
  struct Call {
    std::string what;
    size_t items = 0;
    uint32_t segment = 0;
  };

  Result<std::span<const std::byte>> Read(const Place&, BlockIo&, AlignedBuffer&) override {
    return Unused();
  }
  Result<std::span<std::byte>> BeginWrite(const Place&, AlignedBuffer&) override { return Unused(); }
  Status FinishWrite(const Place&, BlockIo&, std::span<std::byte>, uint64_t, const RecordMeta&) override {
    return Unused();
  }
  Result<ColdRecovery> Recover() override { return Unused(); }

  Status PutModel(const ModelRecord&) override { return Note("model", 1, 0); }
  Status Commit(std::span<const ColdCommit> items, BlockIo&) override {
    for (const ColdCommit& item : items) EXPECT_EQ(item.place.container, items[0].place.container);
    return Note("commit", items.size(), items[0].place.container);
  }
  Status Erase(std::span<const ColdCommit> items, BlockIo&) override {
    return Note("erase", items.size(), items[0].place.container);
  }
  Status RecycleSegment(uint32_t segment, uint64_t, BlockIo&) override { return Note("recycle", 1, segment); }
  bool direct_io() const override { return false; }
  uint64_t allocated_bytes() const override { return 0; }

  uint64_t metadata_bytes_written() const override { return 100 * calls.size(); }

  std::map<uint32_t, Status> answers;  ///< by segment
  std::optional<uint32_t> throws_for;
  std::vector<Call> calls;  ///< read after Stop

 private:
  static Status Unused() { return Status(Code::kInternal, "not called by a committer"); }
  Status Note(std::string what, size_t items, uint32_t segment) {
    calls.push_back({std::move(what), items, segment});
    if (throws_for == segment) throw std::runtime_error("injected");
    const auto answer = answers.find(segment);
    return answer == answers.end() ? Status::Ok() : answer->second;
  }
};

class CommitterTest : public testing::Test {
 protected:
  void Push(uint64_t id, decltype(ColdJob::work) work) {
    ASSERT_TRUE(jobs_.TryPush(ColdJob{.id = JobId{id}, .work = std::move(work)}));
  }
  static CommitJob CommitTo(uint32_t segment, uint8_t tier = 2) {
    CommitJob job{.tier = TierId{tier}, .item = {}};
    job.item.place.container = segment;
    return job;
  }
  static EraseJob EraseFrom(uint32_t segment) {
    EraseJob job{.tier = TierId{2}, .items = std::vector<ColdCommit>(3)};
    for (ColdCommit& item : job.items) item.place.container = segment;
    return job;
  }
  /// Exactly `count` completions, by job.
  std::map<uint64_t, Status> Completions(size_t count) {
    std::map<uint64_t, Status> all;
    for (size_t i = 0; i < count; ++i) {
      std::optional<Completion> completion = completions_.PopUntil(SteadyClock{}.Now() + kPatience);
      if (!completion.has_value()) {
        ADD_FAILURE() << "only " << i << " of " << count << " completions";
        break;
      }
      EXPECT_TRUE(all.emplace(completion->id.value, completion->status).second) << "completed twice";
    }
    EXPECT_EQ(completions_.size(), 0u);
    return all;
  }

  FakeColdStore store_, other_store_;
  BoundedQueue<ColdJob> jobs_{1024};
  BoundedQueue<Completion> completions_{1024};
  Metrics metrics_;
  std::atomic<uint64_t> wakes_{0};
  Committer committer_{{.io = BlockIoKind::kSync, .on_completion = [this] { ++wakes_; }},
                       {{TierId{2}, &store_}, {TierId{3}, &other_store_}},
                       jobs_,
                       completions_,
                       metrics_};
};

TEST_F(CommitterTest, WhatAStoreWritesBesideRecordsIsCountedForItsTier) {
  for (uint64_t id = 1; id <= 4; ++id) Push(id, EraseFrom(static_cast<uint32_t>(id)));
  Push(5, CommitTo(1, 3));
  ASSERT_TRUE(committer_.Start().ok());
  Completions(5);
  committer_.Stop();
  EXPECT_EQ(metrics_.tier[2].written_for_metadata.Get(), 400u);
  EXPECT_EQ(metrics_.tier[3].written_for_metadata.Get(), 100u);
}

TEST_F(CommitterTest, TailsAreCommittedBeforeTheirBlocksAndFailAlone) {
  store_.answers[7] = Status(Code::kUnavailable, "injected");
  for (uint64_t id = 1; id <= 2; ++id) {
    CommitJob job = CommitTo(5);
    for (const ColdPart part : kColdTails) {
      job.tails.emplace_back().place.part = part;
      job.tails.back().place.container = part == ColdPart::kKTail ? 6 : 7;
    }
    Push(id, std::move(job));
  }
  ASSERT_TRUE(committer_.Start().ok());
  for (int i = 0; i < 2; ++i) {
    const std::optional<Completion> done = completions_.PopUntil(SteadyClock{}.Now() + kPatience);
    ASSERT_TRUE(done.has_value());
    EXPECT_TRUE(done->status.ok());
    EXPECT_EQ(done->outcome.tails[TailIndex(ColdPart::kKTail)].code, Code::kOk);
    EXPECT_EQ(done->outcome.tails[TailIndex(ColdPart::kVTail)].code, Code::kUnavailable);
  }
  committer_.Stop();
  std::vector<uint32_t> order;
  for (const FakeColdStore::Call& call : store_.calls) order.push_back(call.segment);
  EXPECT_EQ(std::vector(order.begin(), order.begin() + 3), (std::vector<uint32_t>{6, 7, 5}));
}

TEST_F(CommitterTest, QueuedCommitsOfOneSegmentShareOneBatch) {
  for (uint64_t id = 1; id <= 40; ++id) Push(id, CommitTo(5));
  ASSERT_TRUE(committer_.Start().ok());
  for (const auto& [id, status] : Completions(40)) EXPECT_TRUE(status.ok()) << id;
  committer_.Stop();
  size_t items = 0;
  for (const FakeColdStore::Call& call : store_.calls) items += call.items;
  EXPECT_EQ(items, 40u);
  EXPECT_LT(store_.calls.size(), 40u);
  EXPECT_EQ(wakes_.load(), store_.calls.size()) << "one wake for all of a batch";
}

TEST_F(CommitterTest, ABatchHoldsAtMostItsBound) {
  for (uint64_t id = 1; id <= 3 * kMaxCommitBatch; ++id) Push(id, CommitTo(5));
  ASSERT_TRUE(committer_.Start().ok());
  Completions(3 * kMaxCommitBatch);
  committer_.Stop();
  for (const FakeColdStore::Call& call : store_.calls) EXPECT_LE(call.items, kMaxCommitBatch);
}

TEST_F(CommitterTest, S47_AFailedSegmentFailsItsOwnCommitsOnly) {
  store_.answers.emplace(7, Status(Code::kUnavailable, "injected"));
  for (uint64_t id = 1; id <= 20; ++id) Push(id, CommitTo(id % 2 == 0 ? 7 : 8));
  ASSERT_TRUE(committer_.Start().ok());
  for (const auto& [id, status] : Completions(20)) {
    EXPECT_EQ(status.code(), id % 2 == 0 ? Code::kUnavailable : Code::kOk) << id;
  }
}

TEST_F(CommitterTest, JobsAreDoneInTheOrderGiven) {
  Push(1, CommitTo(1));
  Push(2, EraseFrom(1));
  Push(3, RecycleJob{.tier = TierId{2}, .segment = 1, .new_sequence = 9});
  Push(4, CommitTo(1));
  ASSERT_TRUE(committer_.Start().ok());
  Completions(4);
  committer_.Stop();
  std::vector<std::string> order;
  for (const FakeColdStore::Call& call : store_.calls) order.push_back(call.what);
  EXPECT_EQ(order, (std::vector<std::string>{"commit", "erase", "recycle", "commit"}));
}

TEST_F(CommitterTest, EachTierGetsItsOwn) {
  Push(1, CommitTo(1, 2));
  Push(2, CommitTo(1, 3));
  Push(3, PutModelJob{.tier = TierId{2}, .model = {}});
  ASSERT_TRUE(committer_.Start().ok());
  Completions(3);
  committer_.Stop();
  EXPECT_EQ(store_.calls.size(), 2u);
  EXPECT_EQ(other_store_.calls.size(), 1u);
}

TEST_F(CommitterTest, AnUnknownTierIsAnError) {
  Push(1, CommitTo(1, 9));
  ASSERT_TRUE(committer_.Start().ok());
  EXPECT_EQ(Completions(1)[1].code(), Code::kInvalidArgument);
}

TEST_F(CommitterTest, S28_AnExceptionIsACompletionAndTheThreadGoesOn) {
  store_.throws_for = 7;
  Push(1, CommitTo(7));
  Push(2, EraseFrom(7));
  Push(3, CommitTo(8));
  ASSERT_TRUE(committer_.Start().ok());
  std::map<uint64_t, Status> all = Completions(3);
  EXPECT_EQ(all[1].code(), Code::kInternal);
  EXPECT_EQ(all[2].code(), Code::kInternal);
  EXPECT_TRUE(all[3].ok());
  EXPECT_EQ(metrics_.worker_restarts.Get(), 2u);
}

TEST_F(CommitterTest, StopFinishesWhatIsQueued) {
  for (uint64_t id = 1; id <= 200; ++id) Push(id, CommitTo(static_cast<uint32_t>(id % 3)));
  ASSERT_TRUE(committer_.Start().ok());
  committer_.Stop();
  EXPECT_EQ(completions_.size(), 200u);
  EXPECT_GT(committer_.LastProgress(), TimePoint{});
}

}  // namespace
}  // namespace kvtier
