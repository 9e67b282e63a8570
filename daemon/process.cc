#include "daemon/process.h"

#include <malloc.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/sysinfo.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <fstream>
#include <string>

namespace kvtier {
namespace {

constexpr int kMallocArenas = 2;
constexpr int kTrimBytes = 4 << 20;
constexpr int kMmapBytes = 1 << 20;
/// The daemon's own, a cold store's segments and index, and a few sessions.
constexpr rlim_t kMinDescriptors = 256;

/// The number in a cgroup file; UINT64_MAX for "max", a missing file or anything else.
uint64_t ReadLimit(const char* path) {
  std::ifstream file(path);
  uint64_t bytes = UINT64_MAX;
  return file >> bytes ? bytes : UINT64_MAX;
}

}  // namespace

void LimitHeap() {
  ::mallopt(M_ARENA_MAX, kMallocArenas);
  ::mallopt(M_TRIM_THRESHOLD, kTrimBytes);
  ::mallopt(M_MMAP_THRESHOLD, kMmapBytes);
}

Status RaiseDescriptorLimit() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return StatusFromErrno(errno, "getrlimit");
  rlimit raised = limit;
  raised.rlim_cur = raised.rlim_max;
  // Refused (a hard limit above the system's): what was allowed so far may do.
  if (::setrlimit(RLIMIT_NOFILE, &raised) == 0) limit = raised;
  if (limit.rlim_cur >= kMinDescriptors) return Status::Ok();
  return Status(Code::kResourceExhausted, "only " + std::to_string(limit.rlim_cur) +
                                              " open files are allowed (ulimit -n): at least " +
                                              std::to_string(kMinDescriptors) + " are needed");
}

uint64_t MemoryLimitBytes() {
  struct sysinfo info {};
  const uint64_t machine = ::sysinfo(&info) == 0 ? uint64_t{info.totalram} * info.mem_unit : UINT64_MAX;
  const uint64_t v2 = ReadLimit("/sys/fs/cgroup/memory.max");
  const uint64_t v1 = ReadLimit("/sys/fs/cgroup/memory/memory.limit_in_bytes");
  return std::min({machine, v2, v1});
}

Result<std::array<std::byte, 16>> RandomId() {
  std::array<std::byte, 16> id{};
  if (::getrandom(id.data(), id.size(), 0) != static_cast<ssize_t>(id.size())) {
    return StatusFromErrno(errno, "getrandom");
  }
  return id;
}

bool GpuVisible() {
  return ::access("/dev/nvidiactl", F_OK) == 0;
}

}  // namespace kvtier
