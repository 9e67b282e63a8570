#include <gmock/gmock.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>

#include <set>
#include <sstream>

#include "tests/support/paths.h"
#include "tests/tiers/cold_parts.h"
#include "tests/tiers/cxl_fixture.h"
#include "tiers/base/unique_fd.h"

extern char** environ;

namespace kvtier {
namespace {

/// What the helper acknowledged before it died.
struct Acknowledged {
  std::set<uint64_t> stored, erasing, erased;
};

class ColdCrashTest : public ColdStoreTest {
 protected:
  void SetUp() override { io_ = MakeBlockIo(BlockIoKind::kSync).value(); }
  virtual bool in_memory() const { return false; }
  Result<std::unique_ptr<ColdStore>> MakeStore(const std::string& path) override {
    return in_memory() ? MakeCxlStore(path) : ColdStoreTest::MakeStore(path);
  }

  /// Runs the helper until it kills itself.
  Acknowledged RunHelper(const std::string& point, uint64_t n, uint64_t first_seed) {
    int pipe_ends[2];
    KVTIER_CHECK(::pipe(pipe_ends) == 0);
    UniqueFd read_end(pipe_ends[0]), write_end(pipe_ends[1]);
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, write_end.get(), STDOUT_FILENO);
    const std::string program = ProgramFolder() + "/kvtier_cold_crash_helper";
    const std::string n_text = std::to_string(n), seed_text = std::to_string(first_seed);
    const std::string medium = in_memory() ? "cxl" : "files";
    std::string arguments[] = {program, medium, folder_.path(), point, n_text, seed_text};
    std::vector<char*> argv;
    for (std::string& argument : arguments) argv.push_back(argument.data());
    argv.push_back(nullptr);
    pid_t pid = 0;
    KVTIER_CHECK(::posix_spawn(&pid, program.c_str(), &actions, nullptr, argv.data(), environ) == 0);
    posix_spawn_file_actions_destroy(&actions);
    write_end.Reset();

    std::string output;
    char buffer[4096];
    for (ssize_t got; (got = ::read(read_end.get(), buffer, sizeof(buffer))) > 0;) {
      output.append(buffer, static_cast<size_t>(got));
    }
    int wait_status = 0;
    KVTIER_CHECK(::waitpid(pid, &wait_status, 0) == pid);
    EXPECT_TRUE(WIFSIGNALED(wait_status) && WTERMSIG(wait_status) == SIGKILL)
        << point << ": the helper was not killed; status " << wait_status;
    return Parse(output);
  }

  /// Every acknowledged block is there with its bytes, no removed one is, and none is wrong.
  void Check(const Acknowledged& all) {
    for (uint64_t seed : all.stored) {
      if (all.erasing.contains(seed)) continue;
      ASSERT_NE(Recovered(seed), nullptr) << "block " << seed << " was acknowledged and is lost";
    }
    for (uint64_t seed : all.erased) EXPECT_EQ(Recovered(seed), nullptr) << "block " << seed << " is back";
    for (const ColdRecord& block : recovery_.blocks) {
      const uint64_t seed = block.identity.first_position / 64;
      const Status status = CheckBlock(*store_, *io_, block, seed);
      // An entry whose record was marked dead just before the crash may be left: a miss, never wrong bytes.
      if (all.erasing.contains(seed) && status.code() == Code::kDataLoss) continue;
      EXPECT_TRUE(status.ok()) << "block " << seed << ": " << status.ToString();
    }
  }

 private:
  static Acknowledged Parse(const std::string& output) {
    Acknowledged result;
    std::istringstream lines(output);
    std::string what;
    uint64_t seed = 0;
    while (lines >> what >> seed) {
      if (what == "stored") result.stored.insert(seed);
      if (what == "erasing") result.erasing.insert(seed);
      if (what == "erased") result.erased.insert(seed);
    }
    return result;
  }
};

/// A point, and whether the store is in memory.
class ColdCrashPointTest : public ColdCrashTest,
                           public testing::WithParamInterface<std::tuple<const char*, bool>> {
 protected:
  bool in_memory() const override { return std::get<bool>(GetParam()); }
};

TEST_P(ColdCrashPointTest, S45_EveryAcknowledgedBlockIsThereAndNoRemovedOneIs) {
  const std::string point = std::get<const char*>(GetParam());
  // The first block of a segment also makes the file; later ones do not. Every third is erased.
  for (uint64_t n : {1, 3, 12, 30}) {
    if ((point == "during_erase" || point == "after_erase") && n % 3 != 0) continue;
    std::filesystem::remove_all(folder_.path());
    std::filesystem::create_directory(folder_.path());
    const Acknowledged acknowledged = RunHelper(point, n, 100);
    EXPECT_GE(acknowledged.stored.size(), n - 1);
    recovery_ = OpenStore(folder_.path());
    Check(acknowledged);
    // The same with the index lost on top.
    if (!in_memory()) LoseIndex();
    CrashAndReopen();
    Check(acknowledged);
    store_.reset();
  }
}
INSTANTIATE_TEST_SUITE_P(Points, ColdCrashPointTest,
                         testing::Combine(testing::Values("before_write", "torn_write", "after_write",
                                                          "before_sync", "after_sync", "after_commit",
                                                          "during_erase", "after_erase"),
                                          testing::Bool()));

/// Blocks of base, K tail and V tail, killed at each step of what writes and commits them.
class ColdCrashPartsTest : public ColdCrashTest, public testing::WithParamInterface<const char*> {
 protected:
  /// The rung that the parts found give; its bytes are compared.
  CodecId CheckParts(const RecoveredBlock& found, uint64_t seed) {
    const PartsBlock block = MakePartsBlock(seed);
    AlignedBuffer base_memory, k_memory, v_memory, joined;
    const ImageView base = ParseImage(store_->Read(found.place, *io_, base_memory).value()).value();
    if (found.k_tail.place.bytes == 0) {
      EXPECT_TRUE(VerifyImage(base).ok() && Same(base.bytes, RungBytes(block, CodecId::kKv2p))) << seed;
      return CodecId::kKv2p;
    }
    const TailView k_tail = ParseTail(store_->Read(found.k_tail.place, *io_, k_memory).value()).value();
    EXPECT_TRUE(MatchTail(k_tail, base).ok()) << seed;
    TailView v_tail;
    const bool has_v = found.v_tail.place.bytes > 0;
    if (has_v) {
      v_tail = ParseTail(store_->Read(found.v_tail.place, *io_, v_memory).value()).value();
      EXPECT_TRUE(MatchTail(v_tail, base).ok()) << seed;
    }
    const std::span<std::byte> room = joined.Reserve(uint64_t{1} << 20).value();
    const JoinedImage image = JoinImage(base, k_tail, has_v ? &v_tail : nullptr, room);
    EXPECT_TRUE(image.image.status.ok()) << seed;
    const CodecId rung = has_v ? CodecId::kKv4p : CodecId::kKv42;
    EXPECT_TRUE(Same(room.first(image.image.image_bytes), RungBytes(block, rung))) << seed;
    return rung;
  }
  static bool Same(std::span<const std::byte> a, const std::vector<std::byte>& b) {
    return std::equal(a.begin(), a.end(), b.begin(), b.end());
  }
  void CheckAll(uint64_t n) {
    for (uint64_t seed = 100; seed < 100 + n - 1; ++seed) {
      ASSERT_NE(Recovered(seed), nullptr) << "block " << seed << " was acknowledged and is lost";
      EXPECT_EQ(CheckParts(*Recovered(seed), seed), CodecId::kKv4p) << "block " << seed << " lost a tail";
    }
    // The one that was under way may be there at any rung, with right bytes.
    if (Recovered(100 + n - 1) != nullptr) CheckParts(*Recovered(100 + n - 1), 100 + n - 1);
  }
};

TEST_P(ColdCrashPartsTest, S45_ABlockOfThreePartsIsNeverWrongAndNoAcknowledgedTailIsLost) {
  const std::string what = GetParam();
  for (const uint64_t n : {1, 4}) {
    // Making a segment takes a write and a sync of its own, three times for the first block.
    const uint64_t requests = n == 1 ? 6 : 3;
    for (uint64_t k = 1; k <= requests; ++k) {
      SCOPED_TRACE(what + " " + std::to_string(k) + " of block " + std::to_string(n));
      std::filesystem::remove_all(folder_.path());
      std::filesystem::create_directory(folder_.path());
      const Acknowledged acknowledged = RunHelper("parts:" + what + ":" + std::to_string(k), n, 100);
      EXPECT_GE(acknowledged.stored.size(), n - 1);
      recovery_ = OpenStore(folder_.path());
      CheckAll(n);
      LoseIndex();
      CheckAll(n);
      store_.reset();
    }
  }
}
INSTANTIATE_TEST_SUITE_P(Points, ColdCrashPartsTest,
                         testing::Values("before_write", "torn_write", "after_write", "before_sync",
                                         "after_sync"));

class ColdCrashManyTest : public ColdCrashTest, public testing::WithParamInterface<bool> {
 protected:
  bool in_memory() const override { return GetParam(); }
};
INSTANTIATE_TEST_SUITE_P(Stores, ColdCrashManyTest, testing::Bool(),
                         [](const auto& info) { return info.param ? "Cxl" : "Files"; });

TEST_P(ColdCrashManyTest, S40_BlocksOutliveManyCrashesInARow) {
  const uint64_t seed = testing::UnitTest::GetInstance()->random_seed() + 1;
  SCOPED_TRACE("random seed " + std::to_string(seed));
  std::mt19937_64 random(seed);
  const char* points[] = {"before_write", "torn_write", "after_write",
                          "before_sync",  "after_sync", "after_commit"};
  Acknowledged all;
  uint64_t first_seed = 1;
  for (int round = 0; round < 25; ++round) {
    const uint64_t n = 1 + random() % 12;
    const Acknowledged some = RunHelper(points[random() % std::size(points)], n, first_seed);
    all.stored.insert(some.stored.begin(), some.stored.end());
    all.erasing.insert(some.erasing.begin(), some.erasing.end());
    all.erased.insert(some.erased.begin(), some.erased.end());
    first_seed += n + 1;
    // Crash again without a start in between every other time: the helper itself recovers.
    if (round % 2 == 0) continue;
    recovery_ = OpenStore(folder_.path());
    Check(all);
    store_.reset();
  }
}

}  // namespace
}  // namespace kvtier
