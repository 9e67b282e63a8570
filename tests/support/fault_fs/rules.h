#pragma once

#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <random>
#include <string>
#include <string_view>
#include <vector>

namespace kvtier::fault_fs {

enum class Op : uint8_t { kOpen, kCreate, kRead, kWrite, kSync, kAllocate, kRename, kUnlink, kOther };

/// What a rule does to an operation that it applies to.
struct Effect {
  int error = 0;           ///< errno to answer instead of doing it; 0: do it
  bool halve = false;      ///< move half of the bytes, in whole sectors
  bool flip = false;       ///< flip one bit of what was read
  bool lose_sync = false;  ///< answer a sync without doing it
  uint64_t random = 0;     ///< which bit
};

/// Which operations go wrong, and how. Commands and their answers are lines:
///   fault OPS ACTION [path=PART] [after=N] [count=N] [percent=P] [seed=S] [direct]   answers "rule N"
///     OPS: open,create,read,write,sync,allocate,rename,unlink,other or all
///     ACTION: EIO, ENOSPC, ENODEV, ENOTCONN, EROFS, EINVAL, EOPNOTSUPP, hang, stop (hangs, then is an error
///     and not done), delay=MILLISECONDS, short, flip, lose
///     It applies to paths that contain PART, from match N + 1 on, N times at most; "direct": to files opened
///     with O_DIRECT.
///   hits N        how often rule N was applied
///   waiting       how many operations hang now
///   clear         forgets all rules; what hangs goes on
/// Threads: any.
class Rules {
 public:
  /// Empty: not a command of these.
  std::optional<std::string> Command(const std::string& line);
  /// Waits where a rule says so, then says what else to do. The first rule that applies counts.
  Effect Apply(Op op, std::string_view path, bool direct);

 private:
  struct Rule {
    std::vector<Op> ops;  ///< empty: all
    std::string path;
    uint64_t after = 0, count = UINT64_MAX;
    uint32_t percent = 100;
    bool only_direct = false;
    bool hang = false;
    uint32_t delay_ms = 0;
    Effect effect;
    std::mt19937_64 random;
    uint64_t matches = 0, hits = 0;
    bool Matches(Op op, std::string_view path, bool direct);
  };
  static std::unique_ptr<Rule> Parse(const std::string& line);

  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::unique_ptr<Rule>> rules_;
  std::vector<uint64_t> cleared_hits_;
  uint64_t generation_ = 0;  ///< of rules: what hangs goes on when it changes
  uint32_t waiting_ = 0;
};

}  // namespace kvtier::fault_fs
