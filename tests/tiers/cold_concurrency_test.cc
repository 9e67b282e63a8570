#include <gtest/gtest.h>

#include <atomic>
#include <mutex>
#include <thread>

#include "tests/tiers/cold_fixture.h"
#include "tiers/committer.h"

namespace kvtier {
namespace {

constexpr int kWorkers = 4;
constexpr uint64_t kBlocksPerWorker = 60;
constexpr Duration kPatience = std::chrono::seconds(60);

/// Places for several writers: the engine's part, under a lock here.
class SharedAllocator {
 public:
  Place Next(uint64_t image_bytes) {
    std::lock_guard lock(mutex_);
    return allocator_.Next(image_bytes);
  }

 private:
  std::mutex mutex_;
  TestAllocator allocator_;
};

class ColdConcurrencyTest : public ColdStoreTest {
 protected:
  /// One worker's share: writes, reads back before and after its commits were queued.
  void Work(int worker) {
    auto io = MakeBlockIo(BlockIoKind::kSync).value();
    AlignedBuffer bounce;
    for (uint64_t i = 0; i < kBlocksPerWorker; ++i) {
      const uint64_t seed = 1 + static_cast<uint64_t>(worker) * kBlocksPerWorker + i;
      const TestBlock block = MakeTestBlock(seed);
      const std::vector<std::byte> image = ImageOf(block);
      CommitJob job{.tier = TierId{2}, .item = {}};
      job.item.identity = block.identity;
      job.item.meta = block.meta;
      job.item.codec = CodecId::kRaw16;
      job.item.image_bytes = image.size();
      job.item.place = places_.Next(image.size());
      const auto built = store_->BeginWrite(job.item.place, bounce);
      std::copy(image.begin(), image.end(), built->begin());
      const Status written = store_->FinishWrite(job.item.place, *io, *built, image.size(), block.meta);
      if (!written.ok() || !CheckBlock(*store_, *io, job.item.place, seed)) ++failures_;
      if (!jobs_.TryPush(ColdJob{.id = JobId{seed}, .work = std::move(job)})) ++failures_;
    }
  }
  static bool CheckBlock(ColdStore& store, BlockIo& io, const Place& place, uint64_t seed) {
    ColdRecord record;
    record.place = place;
    return kvtier::CheckBlock(store, io, record, seed).ok();
  }

  SharedAllocator places_;
  BoundedQueue<ColdJob> jobs_{kWorkers * kBlocksPerWorker};
  BoundedQueue<Completion> completions_{kWorkers * kBlocksPerWorker};
  Metrics metrics_;
  std::atomic<int> failures_{0};
};

TEST_F(ColdConcurrencyTest, S19_WorkersAndTheCommitterShareAStore) {
  Committer committer({.io = BlockIoKind::kSync, .on_completion = {}}, {{TierId{2}, store_.get()}}, jobs_,
                      completions_, metrics_);
  ASSERT_TRUE(committer.Start().ok());
  std::vector<std::thread> workers;
  for (int worker = 0; worker < kWorkers; ++worker) workers.emplace_back([this, worker] { Work(worker); });
  for (std::thread& worker : workers) worker.join();
  for (uint64_t i = 0; i < kWorkers * kBlocksPerWorker; ++i) {
    const std::optional<Completion> done = completions_.PopUntil(SteadyClock{}.Now() + kPatience);
    ASSERT_TRUE(done.has_value());
    EXPECT_TRUE(done->status.ok()) << done->status.ToString();
  }
  committer.Stop();
  EXPECT_EQ(failures_.load(), 0);
  EXPECT_EQ(metrics_.worker_restarts.Get(), 0u);

  CrashAndReopen();
  EXPECT_EQ(recovery_.blocks.size(), kWorkers * kBlocksPerWorker);
  EXPECT_EQ(recovery_.scanned_records, 0u);
  for (const ColdRecord& block : recovery_.blocks) {
    EXPECT_TRUE(CheckBlock(*store_, *io_, block.place, block.identity.first_position / 64));
  }
}

/// Everybody wants the first segment at once: one makes it, the others wait for it.
TEST_F(ColdConcurrencyTest, ASegmentIsMadeOnce) {
  std::atomic<int> ready{0};
  std::vector<std::thread> workers;
  std::vector<ColdRecord> records(kWorkers);
  for (int worker = 0; worker < kWorkers; ++worker) {
    workers.emplace_back([&, worker] {
      auto io = MakeBlockIo(BlockIoKind::kSync).value();
      AlignedBuffer bounce;
      const std::vector<std::byte> image = ImageOf(MakeTestBlock(worker + 1));
      records[worker].place = places_.Next(image.size());
      const auto built = store_->BeginWrite(records[worker].place, bounce);
      std::copy(image.begin(), image.end(), built->begin());
      ++ready;
      while (ready < kWorkers) std::this_thread::yield();
      if (!store_->FinishWrite(records[worker].place, *io, *built, image.size(), {}).ok()) ++failures_;
    });
  }
  for (std::thread& worker : workers) worker.join();
  EXPECT_EQ(failures_.load(), 0);
  for (int worker = 0; worker < kWorkers; ++worker) {
    EXPECT_TRUE(CheckBlock(*store_, *io_, records[worker].place, worker + 1));
  }
}

}  // namespace
}  // namespace kvtier
