// Shows that every fault of kvtier-fault-fs reaches who reads and writes through it: a fault that does not
// would let every other test of this folder pass.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <bit>
#include <cstring>
#include <filesystem>
#include <thread>

#include "tests/support/eventually.h"
#include "tests/support/fault_mount.h"
#include "tiers/base/aligned_buffer.h"
#include "tiers/base/block_io.h"

namespace kvtier {
namespace {

constexpr uint64_t kBytes = 16384;
constexpr Duration kPatience = std::chrono::seconds(20);

/// Each kind of I/O, buffered and with O_DIRECT.
struct Way {
  BlockIoKind io;
  int flags;
};

class FaultCanary : public testing::TestWithParam<Way> {
 protected:
  void SetUp() override {
    std::string pattern = (std::filesystem::temp_directory_path() / "kvtier-canary-XXXXXX").string();
    ASSERT_NE(::mkdtemp(pattern.data()), nullptr);
    root_ = pattern;
    std::filesystem::create_directory(root_ + "/backing");
    std::filesystem::create_directory(root_ + "/mount");
    auto mount = FaultMount::Make(root_ + "/backing", root_ + "/mount");
    if (!mount.ok()) GTEST_SKIP() << mount.status().ToString();
    mount_ = std::move(mount).value();
    auto io = MakeBlockIo(GetParam().io);
    if (!io.ok()) GTEST_SKIP() << io.status().ToString();
    io_ = std::move(io).value();
    file_ = UniqueFd(::open((root_ + "/mount/file").c_str(), O_RDWR | O_CREAT | GetParam().flags, 0600));
    ASSERT_TRUE(file_.valid());
    memory_ = buffer_.Reserve(kBytes).value().first(kBytes);
    Fill(0x5A);
    ASSERT_TRUE(Write().ok());
  }
  void TearDown() override {
    file_.Reset();
    mount_.reset();
    std::error_code ignored;
    std::filesystem::remove_all(root_, ignored);
  }

  void Fill(int byte) { std::memset(memory_.data(), byte, memory_.size()); }
  uint64_t BitsThatDiffer(int byte) const {
    uint64_t bits = 0;
    for (const std::byte b : memory_)
      bits += std::popcount(static_cast<uint8_t>(static_cast<uint8_t>(b) ^ byte));
    return bits;
  }
  Status Run(IoRequest::Op op, std::span<std::byte> memory, Duration within = kPatience) {
    IoRequest request{.op = op, .fd = file_.get(), .offset = 0, .memory = memory, .status = {}};
    return io_->RunBatch({&request, 1}, SteadyClock{}.Now() + within);
  }
  Status Read(Duration within = kPatience) { return Run(IoRequest::Op::kRead, memory_, within); }
  Status Write() { return Run(IoRequest::Op::kWrite, memory_); }
  Status Sync() { return Run(IoRequest::Op::kDataSync, {}); }

  std::string root_;
  std::unique_ptr<FaultMount> mount_;
  std::unique_ptr<BlockIo> io_;
  UniqueFd file_;
  AlignedBuffer buffer_;
  std::span<std::byte> memory_;
};

TEST_P(FaultCanary, WithoutFaultsBytesComeBack) {
  Fill(0);
  ASSERT_TRUE(Read().ok());
  EXPECT_EQ(BitsThatDiffer(0x5A), 0u);
  EXPECT_TRUE(Sync().ok());
}

TEST_P(FaultCanary, ErrorsReachEveryOperation) {
  for (const char* error : {"EIO", "ENODEV", "ENOTCONN"}) {
    const uint64_t rule = mount_->Fault(std::string("read,write,sync ") + error);
    EXPECT_EQ(Read().code(), Code::kUnavailable) << error;
    EXPECT_EQ(Write().code(), Code::kUnavailable) << error;
    EXPECT_EQ(Sync().code(), Code::kUnavailable) << error;
    EXPECT_EQ(mount_->Hits(rule), 3u);
    mount_->Heal();
  }
  mount_->Fault("write ENOSPC");
  EXPECT_EQ(Write().code(), Code::kResourceExhausted);
  mount_->Heal();
  EXPECT_TRUE(Write().ok());
}

TEST_P(FaultCanary, AFaultMeetsTheNthMatchOnlyAndOnlyItsPath) {
  mount_->Fault("read EIO after=2 count=1");
  mount_->Fault("read EIO path=another");
  EXPECT_TRUE(Read().ok());
  EXPECT_TRUE(Read().ok());
  EXPECT_FALSE(Read().ok());
  EXPECT_TRUE(Read().ok());
}

TEST_P(FaultCanary, AShareOfOperationsFollowsFromTheSeed) {
  std::string first;
  for (int round = 0; round < 2; ++round) {
    mount_->Fault("read EIO percent=50 seed=7");
    std::string pattern;
    for (int i = 0; i < 32; ++i) pattern += Read().ok() ? '.' : 'x';
    mount_->Heal();
    EXPECT_NE(pattern.find('x'), std::string::npos);
    EXPECT_NE(pattern.find('.'), std::string::npos);
    EXPECT_TRUE(round == 0 || pattern == first) << first << " " << pattern;
    first = pattern;
  }
}

TEST_P(FaultCanary, AFlippedBitIsOneBitOfWhatWasRead) {
  mount_->Fault("read flip seed=3 count=1");
  Fill(0);
  ASSERT_TRUE(Read().ok());
  EXPECT_EQ(BitsThatDiffer(0x5A), 1u);
  ASSERT_TRUE(Read().ok());
  EXPECT_EQ(BitsThatDiffer(0x5A), 0u);
}

TEST_P(FaultCanary, ShortTransfersAreShort) {
  const uint64_t reads = mount_->Fault("read short count=1");
  Fill(0);
  EXPECT_TRUE(Read().ok()) << "the rest is asked for again";
  EXPECT_EQ(BitsThatDiffer(0x5A), 0u);
  EXPECT_EQ(mount_->Hits(reads), 1u);
  mount_->Fault("write short");
  // FUSE makes an error of a short direct write; a plain one is continued until nothing more moves.
  EXPECT_FALSE(Write().ok());
}

TEST_P(FaultCanary, AHungReadEndsWhenReleasedAndNotBefore) {
  mount_->Fault("read hang");
  bool done = false;
  std::thread reader([&] {
    // A ring belongs to the thread that made it.
    io_ = MakeBlockIo(GetParam().io).value();
    EXPECT_TRUE(Read().ok());
    io_.reset();
    done = true;
  });
  EXPECT_TRUE(Eventually(20, [&] { return mount_->Waiting() == 1; }));
  EXPECT_FALSE(done);
  mount_->Heal();
  reader.join();
  EXPECT_TRUE(done);
}

TEST_P(FaultCanary, DelaysDelay) {
  mount_->Fault("read delay=30");
  const TimePoint start = SteadyClock{}.Now();
  EXPECT_TRUE(Read().ok());
  EXPECT_GE(SteadyClock{}.Now() - start, std::chrono::milliseconds(30));
}

TEST_P(FaultCanary, PowerLossTakesWhatWasNotSyncedAndNothingElse) {
  mount_->Command("volatile");
  Fill(0x11);
  ASSERT_TRUE(Write().ok());
  ASSERT_TRUE(Sync().ok());
  Fill(0x22);
  ASSERT_TRUE(Write().ok());
  mount_->Command("powerloss");
  ASSERT_TRUE(Read().ok());
  EXPECT_EQ(BitsThatDiffer(0x11), 0u);
  // A sync that lies saves nothing.
  mount_->Fault("sync lose");
  Fill(0x33);
  ASSERT_TRUE(Write().ok());
  EXPECT_TRUE(Sync().ok());
  mount_->Command("powerloss");
  ASSERT_TRUE(Read().ok());
  EXPECT_EQ(BitsThatDiffer(0x11), 0u);
}

TEST_P(FaultCanary, ASyncThatFailsDropsWhatWasWritten) {
  ASSERT_TRUE(Sync().ok());
  mount_->Command("volatile");
  Fill(0x44);
  ASSERT_TRUE(Write().ok());
  mount_->Fault("sync EIO count=1");
  EXPECT_FALSE(Sync().ok());
  EXPECT_TRUE(Sync().ok());
  ASSERT_TRUE(Read().ok());
  EXPECT_EQ(BitsThatDiffer(0x5A), 0u);
}

TEST_P(FaultCanary, OpenAllocateAndRenameCanFail) {
  mount_->Fault("open,create,allocate,rename EROFS");
  const std::string path = root_ + "/mount/file";
  EXPECT_LT(::open(path.c_str(), O_RDONLY | O_CLOEXEC), 0);
  EXPECT_EQ(errno, EROFS);
  EXPECT_NE(::fallocate(file_.get(), 0, 0, kBytes * 2), 0);
  EXPECT_NE(::rename(path.c_str(), (path + "2").c_str()), 0);
}

TEST_P(FaultCanary, AFaultOfDirectFilesMeetsOnlyThem) {
  const bool direct = (GetParam().flags & O_DIRECT) != 0;
  mount_->Fault("write EINVAL direct");
  EXPECT_EQ(Write().ok(), !direct);
}

TEST_P(FaultCanary, AMountThatEndsFailsWhatIsOpen) {
  mount_.reset();
  EXPECT_EQ(Read().code(), Code::kUnavailable);
}

INSTANTIATE_TEST_SUITE_P(Ways, FaultCanary,
                         testing::Values(Way{BlockIoKind::kSync, 0}, Way{BlockIoKind::kSync, O_DIRECT},
                                         Way{BlockIoKind::kUring, 0}, Way{BlockIoKind::kUring, O_DIRECT}),
                         [](const auto& info) {
                           return std::string(info.param.io == BlockIoKind::kSync ? "Sync" : "Uring") +
                                  (info.param.flags != 0 ? "Direct" : "Buffered");
                         });

}  // namespace
}  // namespace kvtier
