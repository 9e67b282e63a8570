#include "tests/support/scratch_disk.h"

#include <signal.h>
#include <sys/mount.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "tiers/base/check.h"

namespace kvtier {
namespace {

namespace fs = std::filesystem;

/// The process that made the folder stands in its name.
constexpr char kName[] = "kvtier-disk-";

void UnmountLeftOvers() {
  std::ifstream mounts("/proc/mounts");
  std::string source, path, rest;
  while (mounts >> source >> path && std::getline(mounts, rest)) {
    const size_t at = path.find(kName);
    if (at == std::string::npos) continue;
    const int pid = std::atoi(path.c_str() + at + sizeof(kName) - 1);
    if (pid <= 0 || ::kill(pid, 0) == 0 || errno != ESRCH) continue;
    ::umount2(path.c_str(), MNT_DETACH);
    std::error_code ignored;
    fs::remove_all(path.substr(0, path.find('/', at)), ignored);
  }
}

/// The first line of the output. Errors: kUnavailable, with the output.
Result<std::string> RunCommand(const std::string& command) {
  FILE* pipe = ::popen((command + " 2>&1").c_str(), "re");
  KVTIER_CHECK(pipe != nullptr);
  std::string output;
  std::array<char, 1024> piece;
  while (std::fgets(piece.data(), piece.size(), pipe) != nullptr) output += piece.data();
  if (::pclose(pipe) != 0) return Status(Code::kUnavailable, command + ": " + output);
  return output.substr(0, output.find('\n'));
}

}  // namespace

ScratchDisk::ScratchDisk() {
  UnmountLeftOvers();
  std::string pattern =
      (fs::temp_directory_path() / (kName + std::to_string(::getpid()) + "-XXXXXX")).string();
  KVTIER_CHECK(::mkdtemp(pattern.data()) != nullptr);
  root_ = pattern;
  path_ = root_ + "/disk";
  fs::create_directory(path_);
}

ScratchDisk::~ScratchDisk() {
  ::umount2(path_.c_str(), MNT_DETACH);
  std::error_code ignored;
  fs::remove_all(root_, ignored);
}

Result<std::unique_ptr<ScratchDisk>> ScratchDisk::MakeTmpfs(uint64_t bytes) {
  std::unique_ptr<ScratchDisk> disk(new ScratchDisk);
  const std::string options = "mode=0700,size=" + std::to_string(bytes);
  if (::mount("kvtier-disk", disk->path_.c_str(), "tmpfs", 0, options.c_str()) != 0) {
    return StatusFromErrno(errno, "mount a tmpfs");
  }
  return disk;
}

Result<std::unique_ptr<ScratchDisk>> ScratchDisk::MakeLoop(const std::string& type, uint64_t bytes,
                                                           uint32_t sector_bytes) {
  std::unique_ptr<ScratchDisk> disk(new ScratchDisk);
  const std::string image = disk->root_ + "/image";
  std::ofstream(image).close();
  fs::resize_file(image, bytes);
  KVTIER_ASSIGN(const std::string device, RunCommand("losetup --find --show --sector-size " +
                                                     std::to_string(sector_bytes) + " " + image));
  const auto mount = [&]() -> Status {
    const std::string quiet = type == "ext4" ? "mkfs.ext4 -q -F -m 0 " : "mkfs.xfs -q -f ";
    KVTIER_TRY(RunCommand(quiet + device).status());
    if (::mount(device.c_str(), disk->path_.c_str(), type.c_str(), 0, nullptr) == 0) return Status::Ok();
    return StatusFromErrno(errno, "mount " + type);
  };
  const Status mounted = mount();
  // From now on the device goes with the mount.
  RunCommand("losetup --detach " + device).status().IgnoreBecause("it is of no use any more or goes later");
  if (!mounted.ok()) return mounted;
  return disk;
}

void ScratchDisk::Resize(uint64_t bytes) const {
  const std::string options = "size=" + std::to_string(bytes);
  KVTIER_CHECK(::mount("kvtier-disk", path_.c_str(), "tmpfs", MS_REMOUNT, options.c_str()) == 0);
}

uint64_t ScratchDisk::UsedBytes() const {
  struct statvfs info {};
  KVTIER_CHECK(::statvfs(path_.c_str(), &info) == 0);
  return (info.f_blocks - info.f_bfree) * info.f_frsize;
}

uint64_t ScratchDisk::FreeBytes() const {
  struct statvfs info {};
  KVTIER_CHECK(::statvfs(path_.c_str(), &info) == 0);
  return info.f_bavail * info.f_frsize;
}

}  // namespace kvtier
