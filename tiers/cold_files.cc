#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <memory>

#include "tiers/cold_folder.h"

// Whole small files and folders: the system calls that every other cold_*.cc would repeat.

namespace kvtier {

Result<std::vector<std::string>> ListFolder(const std::string& path) {
  const std::unique_ptr<DIR, int (*)(DIR*)> folder(::opendir(path.c_str()), ::closedir);
  if (folder == nullptr) return StatusFromErrno(errno, "list " + path);
  std::vector<std::string> names;
  errno = 0;
  while (const dirent* entry = ::readdir(folder.get())) {
    const std::string_view name = entry->d_name;
    if (name != "." && name != "..") names.emplace_back(name);
  }
  if (errno != 0) return StatusFromErrno(errno, "list " + path);
  std::sort(names.begin(), names.end());
  return names;
}

Status SyncFolder(const std::string& path) {
  const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!fd.valid() || ::fsync(fd.get()) != 0) return StatusFromErrno(errno, "sync " + path);
  return Status::Ok();
}

Status WriteFileAtomically(const std::string& path, std::string_view bytes) {
  const std::string new_path = path + ".new";
  const auto write = [&]() -> Status {
    const UniqueFd fd(::open(new_path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
    if (!fd.valid()) return StatusFromErrno(errno, "make " + new_path);
    while (!bytes.empty()) {
      const ssize_t written = ::write(fd.get(), bytes.data(), bytes.size());
      if (written < 0 && errno == EINTR) continue;
      if (written < 0) return StatusFromErrno(errno, "write " + new_path);
      bytes.remove_prefix(static_cast<size_t>(written));
    }
    if (::fsync(fd.get()) != 0) return StatusFromErrno(errno, "sync " + new_path);
    if (::rename(new_path.c_str(), path.c_str()) != 0) return StatusFromErrno(errno, "name " + path);
    return Status::Ok();
  };
  const Status status = write();
  if (!status.ok()) {
    ::unlink(new_path.c_str());
    return status;
  }
  return SyncFolder(path.substr(0, path.rfind('/')));
}

Result<std::string> ReadWholeFile(const std::string& path, uint64_t limit_bytes) {
  const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd.valid()) return StatusFromErrno(errno, "open " + path);
  struct stat info {};
  if (::fstat(fd.get(), &info) != 0) return StatusFromErrno(errno, "stat " + path);
  if (!S_ISREG(info.st_mode) || static_cast<uint64_t>(info.st_size) > limit_bytes) {
    return Status(Code::kOutOfRange,
                  path + ": not a file of at most " + std::to_string(limit_bytes) + " bytes");
  }
  std::string bytes(static_cast<size_t>(info.st_size), '\0');
  size_t done = 0;
  while (done < bytes.size()) {
    const ssize_t got = ::read(fd.get(), bytes.data() + done, bytes.size() - done);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return StatusFromErrno(errno, "read " + path);
    if (got == 0) break;
    done += static_cast<size_t>(got);
  }
  bytes.resize(done);
  return bytes;
}

}  // namespace kvtier
