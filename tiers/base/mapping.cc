#include "tiers/base/mapping.h"

#include <sys/mman.h>

#include <cerrno>
#include <utility>

namespace kvtier {

MappedMemory::MappedMemory(MappedMemory&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

MappedMemory& MappedMemory::operator=(MappedMemory&& other) noexcept {
  if (this != &other) {
    Reset();
    data_ = std::exchange(other.data_, nullptr);
    size_ = std::exchange(other.size_, 0);
  }
  return *this;
}

MappedMemory::~MappedMemory() {
  Reset();
}

Result<MappedMemory> MappedMemory::MapShared(int fd, uint64_t bytes, MapAccess access) {
  if (bytes == 0) return Status(Code::kInvalidArgument, "a mapping of no bytes");
  const int protection = access == MapAccess::kReadOnly ? PROT_READ : PROT_READ | PROT_WRITE;
  void* memory = ::mmap(nullptr, bytes, protection, MAP_SHARED, fd, 0);
  if (memory == MAP_FAILED) return StatusFromErrno(errno, "mmap of " + std::to_string(bytes) + " bytes");
  return MappedMemory(static_cast<std::byte*>(memory), bytes);
}

Status MappedMemory::Prefault() {
#ifndef MADV_POPULATE_WRITE
  constexpr int kPopulateWrite = 23;
#else
  constexpr int kPopulateWrite = MADV_POPULATE_WRITE;
#endif
  int error = 0;
  do {
    error = ::madvise(data_, size_, kPopulateWrite) == 0 ? 0 : errno;
  } while (error == EINTR);
  if (error == 0) return Status::Ok();
  // ENOMEM is also what a mapping beyond the file gives; EINVAL means a kernel before 5.14: touch the pages
  // instead.
  if (error != EINVAL) return Status(Code::kResourceExhausted, "no memory to back a mapping");
  constexpr uint64_t kPageBytes = 4096;
  for (uint64_t at = 0; at < size_; at += kPageBytes) {
    auto* byte = reinterpret_cast<volatile std::byte*>(data_ + at);
    *byte = *byte;
  }
  return Status::Ok();
}

void MappedMemory::Reset() {
  if (data_ == nullptr) return;
  KVTIER_CHECK(::munmap(data_, size_) == 0);
  data_ = nullptr;
  size_ = 0;
}

}  // namespace kvtier
