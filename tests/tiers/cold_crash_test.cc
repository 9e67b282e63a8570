#include <gmock/gmock.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>

#include <set>
#include <sstream>

#include "tests/support/paths.h"
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
