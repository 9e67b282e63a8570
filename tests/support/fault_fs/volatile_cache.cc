#include "tests/support/fault_fs/volatile_cache.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <string>

namespace kvtier::fault_fs {

VolatileCache::FileId VolatileCache::IdOf(int fd) {
  struct stat info {};
  if (::fstat(fd, &info) != 0) return {};
  return {info.st_dev, info.st_ino};
}

void VolatileCache::Start() {
  std::lock_guard lock(mutex_);
  started_ = true;
}

void VolatileCache::BeforeWrite(int fd, uint64_t offset, uint64_t bytes) {
  std::lock_guard lock(mutex_);
  if (!started_) return;
  File& file = files_[IdOf(fd)];
  // Its own descriptor: readable, without O_DIRECT, and there after the writer has closed its one.
  if (file.fd < 0) file.fd = ::open(("/proc/self/fd/" + std::to_string(fd)).c_str(), O_RDWR | O_CLOEXEC);
  struct stat info {};
  ::fstat(file.fd, &info);
  Undo undo{.offset = offset, .bytes = std::vector<char>(bytes), .file_bytes = info.st_size};
  const ssize_t got = ::pread(file.fd, undo.bytes.data(), bytes, static_cast<off_t>(offset));
  undo.bytes.resize(got > 0 ? static_cast<size_t>(got) : 0);
  file.undos.push_back(std::move(undo));
}

void VolatileCache::OnSync(int fd) {
  std::lock_guard lock(mutex_);
  const auto file = files_.find(IdOf(fd));
  if (file == files_.end()) return;
  if (file->second.fd >= 0) ::close(file->second.fd);
  files_.erase(file);
}

void VolatileCache::OnSyncFailed(int fd) {
  std::lock_guard lock(mutex_);
  const auto file = files_.find(IdOf(fd));
  if (file == files_.end()) return;
  TakeBack(file->second);
  files_.erase(file);
}

void VolatileCache::LosePower() {
  std::lock_guard lock(mutex_);
  for (auto& [id, file] : files_) TakeBack(file);
  files_.clear();
}

void VolatileCache::TakeBack(File& file) {
  for (auto undo = file.undos.rbegin(); undo != file.undos.rend(); ++undo) {
    struct stat info {};
    const bool grew = ::fstat(file.fd, &info) == 0 && info.st_size > undo->file_bytes;
    if (grew && ::ftruncate(file.fd, undo->file_bytes) != 0) ::abort();
    const auto bytes = static_cast<ssize_t>(undo->bytes.size());
    if (::pwrite(file.fd, undo->bytes.data(), undo->bytes.size(), static_cast<off_t>(undo->offset)) !=
        bytes) {
      ::abort();  // the test would prove nothing
    }
  }
  if (file.fd >= 0) ::close(file.fd);
}

}  // namespace kvtier::fault_fs
