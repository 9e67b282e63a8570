// Every step of the cold store's commit protocol, by name: a kill there and an error there. After each, what
// was acknowledged is there with its bytes, what was erased is not, and nothing is wrong.
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>

#include <set>
#include <sstream>

#include "tests/support/eventually.h"
#include "tests/support/fault_mount.h"
#include "tests/support/paths.h"
#include "tests/tiers/cold_steps.h"
#include "tiers/base/unique_fd.h"

extern char** environ;

namespace kvtier {
namespace {

/// One step, by the system call that makes it.
struct Step {
  const char* name;
  const char* call;  ///< operations and path, as a fault names them
  uint64_t visits[3];
};
constexpr Step kSteps[] = {
    {"ModelFileWrite", "write %s path=.model", {0, 1, 3}},
    {"ModelFileSync", "sync %s path=.model", {0, 1, 3}},
    {"ModelFileRename", "rename %s path=.model", {0, 1, 3}},
    {"SegmentMake", "create %s path=.seg", {0, 1, 2}},
    {"SegmentAllocate", "allocate %s path=.seg", {0, 1, 2}},
    {"SegmentHeaderWrite", "write %s path=.seg.new", {0, 1, 2}},
    {"SegmentHeaderSync", "sync %s path=.seg.new", {0, 1, 2}},
    {"SegmentRename", "rename %s path=.seg.new", {0, 1, 2}},
    {"FolderSync", "sync %s path=/segments", {0, 2, 5}},
    // Records, dead headers and recycled headers, and their syncs, in the order in which they come.
    {"RecordWrite", "write %s path=.seg", {1, 5, 9}},
    {"DeadOrRecycledHeaderWrite", "write %s path=.seg", {14, 18, 24}},
    {"DataSync", "sync %s path=.seg", {1, 3, 4}},
    {"DeadOrRecycledHeaderSync", "sync %s path=.seg", {5, 7, 9}},
    {"IndexBatch", "write %s path=/index/", {2, 6, 12}},
};
constexpr uint64_t kRounds = 9;
constexpr uint64_t kFirstSeed = 100;

class ProtocolTest : public testing::TestWithParam<Step> {
 protected:
  static void SetUpTestSuite() { KeepTemporaryFilesInMemory(); }
  void SetUp() override {
    io_ = MakeBlockIo(BlockIoKind::kSync).value();
    std::filesystem::create_directory(folder_.path() + "/mount");
  }
  /// A store without blocks, shown through the fault file system.
  bool Begin() {
    store_.reset();
    mount_.reset();
    std::filesystem::remove_all(backing());
    std::filesystem::create_directory(backing());
    auto mount = FaultMount::Make(backing(), folder_.path() + "/mount");
    if (!mount.ok()) {
      skip_ = mount.status().ToString();
      return false;
    }
    mount_ = std::move(mount).value();
    KVTIER_CHECK(ColdStore::Make(TestColdOptions(mount_->path())).ok());
    return true;
  }
  std::string backing() const { return folder_.path() + "/backing"; }
  uint64_t Fault(const char* action, uint64_t after, const char* more) {
    char text[128];
    std::snprintf(text, sizeof(text), GetParam().call, action);
    return mount_->Fault(std::string(text) + " after=" + std::to_string(after) + more);
  }

  void Note(const std::string& what, uint64_t seed) {
    if (what == "stored") stored_.insert(seed);
    if (what == "erasing") erasing_.insert(seed);
    if (what == "erased") erased_.insert(seed);
  }
  /// Opens the store that is on the disk now and looks at every block.
  void Check() {
    store_ = ColdStore::Make(TestColdOptions(backing())).value();
    const ColdRecovery recovery = store_->Recover().value();
    std::set<uint64_t> found;
    for (const ColdRecord& block : recovery.blocks) {
      const uint64_t seed = block.identity.first_position / 64;
      const Status status = CheckBlock(*store_, *io_, block, seed);
      // An entry whose record was marked dead just before may be left: a miss, never wrong bytes.
      if (erasing_.contains(seed) && status.code() == Code::kDataLoss) continue;
      EXPECT_TRUE(status.ok()) << "block " << seed << ": " << status.ToString();
      found.insert(seed);
    }
    for (const uint64_t seed : stored_) {
      EXPECT_TRUE(erasing_.contains(seed) || found.contains(seed)) << "acknowledged and lost: " << seed;
    }
    for (const uint64_t seed : erased_) EXPECT_FALSE(found.contains(seed)) << "erased and back: " << seed;
    store_.reset();
  }
  void ForgetBlocks() {
    stored_.clear();
    erasing_.clear();
    erased_.clear();
  }

  TempFolder folder_;
  std::unique_ptr<FaultMount> mount_;
  std::unique_ptr<BlockIo> io_;
  std::unique_ptr<ColdStore> store_;
  std::set<uint64_t> stored_, erasing_, erased_;
  std::string skip_;
};

/// The helper program, which works through the steps until it is killed.
class Helper {
 public:
  Helper(const std::string& folder, uint64_t rounds) {
    int ends[2];
    KVTIER_CHECK(::pipe2(ends, O_CLOEXEC) == 0);
    output_ = UniqueFd(ends[0]);
    const UniqueFd write_end(ends[1]);
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, write_end.get(), STDOUT_FILENO);
    const std::string program = ProgramFolder() + "/kvtier_cold_crash_helper";
    const std::string rounds_text = std::to_string(rounds), seed = std::to_string(kFirstSeed);
    const char* const arguments[] = {program.c_str(),     "files",      folder.c_str(), "steps",
                                     rounds_text.c_str(), seed.c_str(), nullptr};
    KVTIER_CHECK(::posix_spawn(&pid_, program.c_str(), &actions, nullptr, const_cast<char* const*>(arguments),
                               environ) == 0);
    posix_spawn_file_actions_destroy(&actions);
  }
  void Kill() const { ::kill(pid_, SIGKILL); }
  bool Ended() { return ended_ || (ended_ = ::waitpid(pid_, nullptr, WNOHANG) == pid_); }
  /// All that it said; after its end.
  std::string Output() {
    if (!ended_) ::waitpid(pid_, nullptr, 0);
    std::string text;
    char piece[4096];
    for (ssize_t got; (got = ::read(output_.get(), piece, sizeof(piece))) > 0;) {
      text.append(piece, static_cast<size_t>(got));
    }
    return text;
  }

 private:
  pid_t pid_ = -1;
  bool ended_ = false;
  UniqueFd output_;
};

TEST_P(ProtocolTest, S45_AKillThereLosesNothingThatIsAcknowledged) {
  for (const bool done : {true, false}) {
    for (const uint64_t visit : GetParam().visits) {
      SCOPED_TRACE(std::string(GetParam().name) + (done ? " done, visit " : " not done, visit ") +
                   std::to_string(visit));
      if (!Begin()) GTEST_SKIP() << skip_;
      ForgetBlocks();
      // The step hangs; the process is killed in it; then the step is done after all, or is not.
      Fault(done ? "hang" : "stop", visit, " count=1");
      Helper helper(mount_->path(), kRounds);
      ASSERT_TRUE(Eventually(20, [&] { return mount_->Waiting() > 0 || helper.Ended(); }));
      EXPECT_GT(mount_->Waiting(), 0u) << "the step was never reached";
      helper.Kill();
      mount_->Heal();
      std::istringstream lines(helper.Output());
      std::string what;
      for (uint64_t seed = 0; lines >> what >> seed;) Note(what, seed);
      Check();
      // The same with the index lost on top.
      std::filesystem::remove_all(backing() + "/index");
      Check();
    }
  }
}

TEST_P(ProtocolTest, S47_AnErrorThereCostsWhatItTouchesAndTheRestIsTried) {
  for (const uint64_t visit : GetParam().visits) {
    SCOPED_TRACE(std::string(GetParam().name) + ", visit " + std::to_string(visit));
    if (!Begin()) GTEST_SKIP() << skip_;
    ForgetBlocks();
    store_ = ColdStore::Make(TestColdOptions(mount_->path())).value();
    KVTIER_CHECK(store_->Recover().ok());
    TestAllocator allocator;
    const uint64_t rule = Fault("EIO", visit, " count=1");
    ColdSteps steps(*store_, *io_, allocator, [this](const char* what, uint64_t seed) { Note(what, seed); });
    steps.Run(kFirstSeed, kRounds);
    EXPECT_EQ(mount_->Hits(rule), 1u) << "the step was never reached";
    EXPECT_GE(steps.errors(), 1u) << "nobody was told";
    EXPECT_GE(stored_.size(), (kRounds - 2) * ColdSteps::kBatch) << "one error costs one batch at most";
    store_.reset();
    Check();
    std::filesystem::remove_all(backing() + "/index");
    Check();
  }
}

INSTANTIATE_TEST_SUITE_P(Steps, ProtocolTest, testing::ValuesIn(kSteps),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace kvtier
