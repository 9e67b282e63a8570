#include "tests/support/fault_mount.h"

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "tests/support/paths.h"
#include "tiers/base/check.h"

extern char** environ;

namespace kvtier {
namespace {

/// Mounts whose process is gone: of tests that were killed together with it.
void UnmountLeftOvers() {
  std::ifstream mounts("/proc/mounts");
  std::string source, path, rest;
  while (mounts >> source >> path && std::getline(mounts, rest)) {
    struct stat info {};
    if (source != "kvtier-fault-fs" || ::stat(path.c_str(), &info) == 0 || errno != ENOTCONN) continue;
    ::umount2(path.c_str(), MNT_DETACH);
  }
}

struct Pipe {
  UniqueFd read, write;
};
Pipe MakePipe() {
  int ends[2];
  KVTIER_CHECK(::pipe2(ends, O_CLOEXEC) == 0);
  return {UniqueFd(ends[0]), UniqueFd(ends[1])};
}

}  // namespace

void KeepTemporaryFilesInMemory() {
  if (std::filesystem::is_directory("/dev/shm")) ::setenv("TMPDIR", "/dev/shm", /*overwrite=*/0);
}

Result<std::unique_ptr<FaultMount>> FaultMount::Make(const std::string& backing,
                                                     const std::string& mount_point) {
  if (::access("/dev/fuse", R_OK | W_OK) != 0) {
    return Status(Code::kUnavailable, "no access to /dev/fuse");
  }
  UnmountLeftOvers();
  std::unique_ptr<FaultMount> mount(new FaultMount(mount_point));
  KVTIER_TRY(mount->Launch(backing));
  return mount;
}

Status FaultMount::Launch(const std::string& backing) {
  Pipe commands = MakePipe(), answers = MakePipe();
  const std::string program = ProgramFolder() + "/kvtier-fault-fs";
  const char* const arguments[] = {program.c_str(), backing.c_str(), mount_point_.c_str(), nullptr};
  posix_spawn_file_actions_t actions;
  ::posix_spawn_file_actions_init(&actions);
  ::posix_spawn_file_actions_adddup2(&actions, commands.read.get(), STDIN_FILENO);
  ::posix_spawn_file_actions_adddup2(&actions, answers.write.get(), STDOUT_FILENO);
  const int error =
      ::posix_spawn(&pid_, program.c_str(), &actions, nullptr, const_cast<char* const*>(arguments), environ);
  ::posix_spawn_file_actions_destroy(&actions);
  if (error != 0) {
    pid_ = -1;
    return StatusFromErrno(error, program);
  }
  commands_ = std::move(commands.write);
  answers_ = std::move(answers.read);
  answers.write.Reset();
  const std::string first = ReadLine();
  return first == "ready" ? Status::Ok() : Status(Code::kUnavailable, "kvtier-fault-fs: " + first);
}

FaultMount::~FaultMount() {
  if (pid_ < 0) return;
  commands_.Reset();
  while (::waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) {
  }
  ::umount2(mount_point_.c_str(), MNT_DETACH);  // where it died before it could
}

std::string FaultMount::ReadLine() {
  std::string line;
  for (char c = 0; ::read(answers_.get(), &c, 1) == 1 && c != '\n';) line.push_back(c);
  return line;
}

std::string FaultMount::Command(const std::string& line) {
  const std::string text = line + "\n";
  KVTIER_CHECK(::write(commands_.get(), text.data(), text.size()) == static_cast<ssize_t>(text.size()));
  std::string answer = ReadLine();
  KVTIER_CHECK(!answer.empty() && !answer.starts_with("error"));
  return answer;
}

uint64_t FaultMount::Fault(const std::string& what) {
  return std::stoull(Command("fault " + what).substr(std::string("rule ").size()));
}

uint64_t FaultMount::Hits(uint64_t rule) {
  return std::stoull(Command("hits " + std::to_string(rule)));
}

uint64_t FaultMount::Waiting() {
  return std::stoull(Command("waiting"));
}

}  // namespace kvtier
